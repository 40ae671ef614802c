package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// fakeProcessQueue is how many frames a fake process accepts.
const fakeProcessQueue = 3

func TestRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := startWithScripts(nil, []script{{serves: true}}, []script{{serves: true}})
		synctest.Wait()
		for i := range fakeProcessQueue + 1 {
			testkit.ExpectNoError(t, s.BroadcastToAllConns(fmt.Append(nil, i)))
			synctest.Wait()
		}
		for _, a := range n.allProcesses() {
			for i := range fakeProcessQueue {
				if got := string((<-a.frames)[frameHeaderSize:]); got != fmt.Sprint(i) {
					t.Errorf("broadcast %d is %q", i, got)
				}
			}
		}
		if err := s.BroadcastToAllConns(make([]byte, maxBroadcast+1)); !errors.Is(err, engine.ErrTooLarge) {
			t.Errorf("too much: %v", err)
		}
		testkit.ExpectNoError(t, s.Stop(context.Background()))
		if err := s.BroadcastToAllConns([]byte("late")); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
		if said := n.logged.String(); strings.Count(said, "does not read messages") != 2 {
			t.Errorf("two workers had no room for the last one, and this was logged: %s", said)
		}
	})
	// A drain ends pauses of accepting, but not the closing of connections. A relay that does not keep up is an error.
	s := &Supervisor{messages: make(chan []byte, 1), draining: make(chan struct{}), done: make(chan struct{})}
	close(s.draining)
	for _, on := range []bool{true, false} {
		if err := s.PauseAccept(on); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("pausing %v in a drain: %v, want %v", on, err, engine.ErrClosed)
		}
	}
	for _, want := range []error{nil, engine.ErrFull} {
		if err := s.QueueCloseOfPeerConns(netip.MustParseAddrPort("192.0.2.1:80")); !errors.Is(err, want) || len(s.messages) != 1 {
			t.Errorf("closing connections in a drain: %v, want %v; %d left for the relay", err, want, len(s.messages))
		}
	}
}

type fullEngine struct {
	engine.Engine
	full int
	got  []string
}

func (e *fullEngine) BroadcastToAllConns(p []byte) error {
	if e.full > 0 {
		e.full--
		return engine.ErrFull
	}
	e.got = append(e.got, string(p))
	return nil
}

func TestBroadcaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fullEngine{full: 3}
		b := &broadcaster{engine: e}
		send := func(p string, waits time.Duration, want error) {
			t.Helper()
			began := time.Now()
			if err := b.broadcastRetryingBriefly([]byte(p)); !errors.Is(err, want) || time.Since(began) != waits {
				t.Errorf("%s: %v after %v; want %v after %v", p, err, time.Since(began), want, waits)
			}
		}
		send("waits", 3*broadcastRetryInterval, nil)
		e.full = 1 << 20
		send("so soon after a wait", 0, engine.ErrFull)
		time.Sleep(2 * writeTimeout)
		send("too long", controlTimeout, engine.ErrFull)
		e.full = 0
		send("late", 0, nil)
		if fmt.Sprint(e.got) != "[waits late]" {
			t.Errorf("got %q", e.got)
		}
	})
}

func FuzzReadFrame(f *testing.F) {
	frame, _ := encodeBroadcast([]byte("news"))
	f.Add(append(append(encodeFrame(kindServing, nil), frame...), encodeFrame(kindDrain, nil)...))
	f.Add(frame[:7])
	f.Add([]byte{kindBroadcast, 255, 255, 255, 255, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		var heard []byte
		for frame, err := readFrameWithHeader(r); err == nil; frame, err = readFrameWithHeader(r) {
			heard = append(heard, frame...)
		}
		if !bytes.HasPrefix(in, heard) {
			t.Errorf("%q was heard as %q", in, heard)
		}
	})
}

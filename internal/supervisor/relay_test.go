package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// roomForCasts is how many broadcasts a scripted worker takes.
const roomForCasts = 3

func TestRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := play(nil, []script{{serves: true}}, []script{{serves: true}})
		synctest.Wait()
		for i := range roomForCasts + 1 {
			if err := s.Broadcast(fmt.Append(nil, i)); err != nil {
				t.Errorf("broadcast %d: %v", i, err)
			}
			synctest.Wait()
		}
		for _, a := range n.all() {
			for i := range roomForCasts {
				if got := string((<-a.passed)[headSize:]); got != fmt.Sprint(i) {
					t.Errorf("broadcast %d is %q", i, got)
				}
			}
		}
		if err := s.Broadcast(make([]byte, maxBroadcast+1)); !errors.Is(err, engine.ErrTooLarge) {
			t.Errorf("too much: %v", err)
		}
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if err := s.Broadcast([]byte("late")); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
		if said := n.said.String(); strings.Count(said, "takes no messages") != 2 {
			t.Errorf("two workers had no room for the last one, and this was logged: %s", said)
		}
	})
}

// Where the relay does not come on, callers are told.
func TestRelayFull(t *testing.T) {
	s := &Supervisor{messages: make(chan []byte, maxWaiting), draining: make(chan struct{})}
	for i := range maxWaiting {
		if err := s.Broadcast(nil); err != nil {
			t.Fatalf("broadcast %d: %v", i, err)
		}
	}
	if err := s.Broadcast(nil); !errors.Is(err, engine.ErrFull) {
		t.Errorf("one too many: %v", err)
	}
}

// stubborn is an engine without room for a number of broadcasts.
type stubborn struct {
	engine.Engine
	full int
	got  []string
}

func (e *stubborn) Broadcast(p []byte) error {
	if e.full > 0 {
		e.full--
		return engine.ErrFull
	}
	e.got = append(e.got, string(p))
	return nil
}

func TestBroadcaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &stubborn{full: 3}
		b := &broadcaster{engine: e}
		send := func(p string, waits time.Duration, want error) {
			t.Helper()
			began := time.Now()
			if err := b.broadcast([]byte(p)); !errors.Is(err, want) || time.Since(began) != waits {
				t.Errorf("%s: %v after %v; want %v after %v", p, err, time.Since(began), want, waits)
			}
		}
		send("waits", 3*retryBroadcast, nil)
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

func FuzzReceive(f *testing.F) {
	frame, _ := broadcastFrame([]byte("news"))
	f.Add(append(append(newFrame(kindServing, nil), frame...), newFrame(kindDrain, nil)...))
	f.Add(append(holdFrame(true), frame...))
	f.Add(frame[:7])
	f.Add([]byte{kindBroadcast, 255, 255, 255, 255, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		var heard []byte
		for frame, err := receive(r); err == nil; frame, err = receive(r) {
			heard = append(heard, frame...)
		}
		if !bytes.HasPrefix(in, heard) {
			t.Errorf("%q was heard as %q", in, heard)
		}
	})
}

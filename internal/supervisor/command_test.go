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
)

// passedTo is what a scripted worker has been passed, as letters.
func (a *actor) passedTo() (what string) {
	for len(a.passed) > 0 {
		what += string((<-a.passed)[:1])
	}
	return what
}

// A command reaches all workers; one that is started again is told what holds, and
// nothing when nothing does.
func TestCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := play(nil, []script{{serves: true, lives: time.Hour}, {serves: true, lives: time.Hour}, {serves: true}}, []script{{serves: true}})
		synctest.Wait()
		if err := s.PauseAccept(true); err != nil {
			t.Error(err)
		}
		if err := s.ClosePeerConns(netip.MustParseAddrPort("192.0.2.1:80")); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		for i, a := range n.all() {
			if got := a.passedTo(); got != "px" {
				t.Errorf("worker %d was passed %q, want px", i, got)
			}
		}
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		if got := n.all()[2].passedTo(); got != "p" {
			t.Errorf("the worker that was started again was passed %q, want p", got)
		}
		s.PauseAccept(false)
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		if got := n.all()[2].passedTo(); got != "r" {
			t.Errorf("a worker was passed %q, want r", got)
		}
		if got := n.all()[3].passedTo(); got != "" {
			t.Errorf("a worker that was started again when nothing holds was passed %q", got)
		}
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		for _, err := range []error{s.PauseAccept(true), s.ClosePeerConns(netip.MustParseAddrPort("192.0.2.1:80"))} {
			if !errors.Is(err, engine.ErrClosed) {
				t.Errorf("after the end: %v, want %v", err, engine.ErrClosed)
			}
		}
	})
}

// While workers drain they accept nothing, which callers are told; connections can be
// closed still.
func TestCommandsWhileDraining(t *testing.T) {
	s := &Supervisor{messages: make(chan []byte, 1), draining: make(chan struct{}), done: make(chan struct{})}
	close(s.draining)
	for _, on := range []bool{true, false} {
		if err := s.PauseAccept(on); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("Hold(%v): %v, want %v", on, err, engine.ErrClosed)
		}
	}
	if err := s.ClosePeerConns(netip.MustParseAddrPort("192.0.2.1:80")); err != nil || len(s.messages) != 1 {
		t.Errorf("Expel: %v, %d left for the relay, want one", err, len(s.messages))
	}
}

// heeding is an engine that notes what it is told.
type heeding struct {
	engine.Engine
	told []string
}

func (e *heeding) PauseAccept(on bool) error {
	e.told = append(e.told, fmt.Sprint("hold ", on))
	return nil
}

func (e *heeding) ClosePeerConns(peer netip.AddrPort) error {
	e.told = append(e.told, "expel "+peer.String())
	return nil
}

// Commands go over a control socket to an engine; what it can't read is an error.
func TestObeyCommand(t *testing.T) {
	e := &heeding{}
	for _, c := range []struct {
		frame []byte
		told  string
		err   string
	}{
		{holdFrame(true), "hold true", ""},
		{holdFrame(false), "hold false", ""},
		{expelFrame(netip.MustParseAddrPort("192.0.2.1:80")), "expel 192.0.2.1:80", ""},
		{expelFrame(netip.MustParseAddrPort("[2001:db8::1]:443")), "expel [2001:db8::1]:443", ""},
		{newFrame(kindExpel, []byte{1, 2}), "", "the peer to expel is 0102; expected"},
	} {
		e.told = nil
		frame, err := receive(bytes.NewReader(c.frame))
		if err != nil {
			t.Fatalf("received %q, %v", frame, err)
		}
		err = obeyCommand(e, frame[0], frame[headSize:])
		if got := strings.Join(e.told, ", "); got != c.told || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: the engine was told %q, %v; want %q, %s", c.frame, got, err, c.told, c.err)
		}
	}
}

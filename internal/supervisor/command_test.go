package supervisor

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
		frame := <-a.passed
		if frame[0] == carries {
			what += "b"
			continue
		}
		what += string(frame[headSize : headSize+1])
	}
	return what
}

// A command reaches all workers; one that is started again is told what holds, and
// nothing when nothing does.
func TestCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := play(nil, []script{{serves: true, lives: time.Hour}, {serves: true, lives: time.Hour}, {serves: true}}, []script{{serves: true}})
		synctest.Wait()
		if err := s.Hold(true); err != nil {
			t.Error(err)
		}
		if err := s.Expel(netip.MustParseAddrPort("192.0.2.1:80")); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		for i, a := range n.all() {
			if got := a.passedTo(); got != "hx" {
				t.Errorf("worker %d was passed %q, want hx", i, got)
			}
		}
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		if got := n.all()[2].passedTo(); got != "h" {
			t.Errorf("the worker that was started again was passed %q, want h", got)
		}
		s.Hold(false)
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
		for _, err := range []error{s.Hold(true), s.Expel(netip.MustParseAddrPort("192.0.2.1:80"))} {
			if !errors.Is(err, engine.ErrClosed) {
				t.Errorf("after the end: %v, want %v", err, engine.ErrClosed)
			}
		}
	})
}

// While workers drain they accept nothing, which callers are told; connections can be
// closed still.
func TestCommandsWhileDraining(t *testing.T) {
	s := &Supervisor{relayed: make(chan []byte, 1), draining: make(chan struct{}), done: make(chan struct{})}
	close(s.draining)
	for _, on := range []bool{true, false} {
		if err := s.Hold(on); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("Hold(%v): %v, want %v", on, err, engine.ErrClosed)
		}
	}
	if err := s.Expel(netip.MustParseAddrPort("192.0.2.1:80")); err != nil || len(s.relayed) != 1 {
		t.Errorf("Expel: %v, %d left for the relay, want one", err, len(s.relayed))
	}
}

// Where the relay does not come on, callers are told.
func TestCommandsFull(t *testing.T) {
	s := &Supervisor{relayed: make(chan []byte, maxWaiting), done: make(chan struct{})}
	for i := range maxWaiting {
		if err := s.Hold(true); err != nil {
			t.Fatalf("command %d: %v", i, err)
		}
	}
	if err := s.Hold(true); !errors.Is(err, engine.ErrFull) {
		t.Errorf("one too many: %v", err)
	}
}

// heeding is an engine that notes what it is told.
type heeding struct {
	engine.Engine
	told []string
	err  error
}

func (e *heeding) Hold(on bool) error {
	e.told = append(e.told, fmt.Sprint("hold ", on))
	return e.err
}

func (e *heeding) Expel(peer netip.AddrPort) error {
	e.told = append(e.told, "expel "+peer.String())
	return e.err
}

// TestObeyCommand has commands go over a life-line to an engine.
func TestObeyCommand(t *testing.T) {
	var line bytes.Buffer
	for _, frame := range [][]byte{holdFrame(true), holdFrame(false), expelFrame(netip.MustParseAddrPort("192.0.2.1:80")),
		expelFrame(netip.MustParseAddrPort("[2001:db8::1]:443")), frameOf(commands, []byte{expels, 1, 2})} {
		line.Write(frame)
	}
	var said strings.Builder
	e, in := &heeding{}, bufio.NewReader(&line)
	for range 5 {
		what, frame, err := hear(in)
		if err != nil || what != commands {
			t.Fatalf("heard %q, %v", what, err)
		}
		obeyCommand(e, frame[headSize:], slog.New(slog.NewTextHandler(&said, nil)))
	}
	if got, want := strings.Join(e.told, ", "), "hold true, hold false, expel 192.0.2.1:80, expel [2001:db8::1]:443"; got != want {
		t.Errorf("the engine was told %s, want %s", got, want)
	}
	if strings.Count(said.String(), "dropped") != 1 {
		t.Errorf("of a command that can't be read this was logged: %s", said.String())
	}
	if _, _, err := hear(bufio.NewReader(bytes.NewReader(frameOf(commands, nil)))); err == nil {
		t.Error("a command of no bytes was heard")
	}
	e.err = engine.ErrClosed
	said.Reset()
	obeyCommand(e, []byte{holds}, slog.New(slog.NewTextHandler(&said, nil)))
	if said.Len() > 0 {
		t.Errorf("of an engine that has ended this was logged: %s", said.String())
	}
}

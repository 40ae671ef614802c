package tcp

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

func TestBroadcastBeforeTheStartAndAfterTheEnd(t *testing.T) {
	var idle Server
	if _, err := idle.Broadcast(Broadcast{All: true, Message: []byte("x")}); !errors.Is(err, ErrServerClosed) {
		t.Errorf("Broadcast before the start: %v, want %v", err, ErrServerClosed)
	}
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops, Limits: Limits{MaxUnsent: 1000}})
		c := dial(t, s.addr)
		c.Exchange("hello", "hello")
		if _, err := s.Broadcast(Broadcast{All: true, Message: make([]byte, 1001)}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("Broadcast of too much: %v, want %v", err, ErrTooLarge)
		}
		if _, err := s.Broadcast(Broadcast{All: true, Message: []byte("news\n")}); err != nil {
			t.Error(err)
		}
		c.Expect("news\n")
		s.Close()
		if _, err := s.Broadcast(Broadcast{All: true, Message: []byte("late")}); !errors.Is(err, ErrServerClosed) {
			t.Errorf("Broadcast after the end: %v, want %v", err, ErrServerClosed)
		}
		if n := s.Stats().Broadcasts; n != 1 {
			t.Errorf("counted %d broadcasts, want 1", n)
		}
	})
}

// groupJoiner is a handler that adds each connection to a group, twice.
type groupJoiner struct {
	Base
	group *Group
}

func (m groupJoiner) Opened(c *Conn) {
	m.group.Add(c.Ref())
	m.group.Add(c.Ref())
}

func TestGroup(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		var g Group
		if sent, full := g.Broadcast([]byte("nobody")); sent+full != 0 {
			t.Errorf("an empty group took %d and %d", sent, full)
		}
		g.Remove(Ref{})
		s := startServer(t, &Server{Model: model, Loops: loops, Handler: groupJoiner{group: &g}, Limits: Limits{MaxUnsent: 1000}})
		var conns []*testkit.Conn
		for range 10 {
			conns = append(conns, dial(t, s.addr))
		}
		waitFor(t, "not 10 in the group", func() bool { return g.Len() == 10 })
		if sent, full := g.Broadcast(make([]byte, 1001)); sent != 0 || full != 10 {
			t.Errorf("too much: %d sent, %d full; want 0, 10", sent, full)
		}
		p := []byte("news")
		if sent, full := g.Broadcast(p); sent != 10 || full != 0 {
			t.Errorf("%d sent, %d full; want 10, 0", sent, full)
		}
		copy(p, "gone") // it was copied
		for _, c := range conns {
			c.Expect("news")
		}
		if sent, full := g.SendLatest([]byte("value")); sent != 10 || full != 0 {
			t.Errorf("published to %d, %d full; want 10, 0", sent, full)
		}
		for _, c := range conns {
			c.Expect("value")
		}
		if sent, full := g.SendLatest(make([]byte, 1001)); sent != 0 || full != 10 {
			t.Errorf("too large a value: published to %d, %d full; want 0, 10", sent, full)
		}
		conns[0].Close()
		waitFor(t, "not 9 are open", func() bool { return s.Stats().Open == 9 })
		if sent, full := g.Broadcast([]byte("more")); sent != 9 || full != 0 || g.Len() != 9 {
			t.Errorf("%d sent, %d full, %d in the group; want 9, 0, 9", sent, full, g.Len())
		}
		var all sync.WaitGroup
		for range 4 { // what the race detector is to see
			all.Go(func() {
				for range 20 {
					g.Broadcast([]byte("x"))
					g.Add(Ref{})
					g.Remove(Ref{})
				}
			})
		}
		all.Wait()
	})
}

// recordingHandler is a line handler with all optional methods, which records their calls.
type recordingHandler struct {
	mu    sync.Mutex
	calls []string
}

func (w *recordingHandler) recordCall(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.calls, call) {
		w.calls = append(w.calls, call)
	}
}

func (w *recordingHandler) wasCalled(call string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.calls, call)
}

func (w *recordingHandler) Opened(*Conn)                    {}
func (w *recordingHandler) Closed(*Conn, error)             {}
func (w *recordingHandler) Ended(_ *Conn, rest []byte) int  { return len(rest) }
func (w *recordingHandler) Received(c *Conn, in []byte) int { w.Message(c, in); return len(in) }
func (w *recordingHandler) Message(c *Conn, in []byte) {
	c.Write(make([]byte, 8<<20))
	w.recordCall("wrote")
}
func (w *recordingHandler) Writable(*Conn)   { w.recordCall("Writable") }
func (w *recordingHandler) Draining(c *Conn) { w.recordCall("Draining"); c.WriteString("goodbye") }

// Writable and Draining are called for a handler, also behind a framer.
func TestExtensions(t *testing.T) {
	for name, frame := range map[string]func(w *recordingHandler) Handler{
		"plain": func(w *recordingHandler) Handler { return w },
		"Lines": func(w *recordingHandler) Handler { return Lines(w) },
		"Split": func(w *recordingHandler) Handler { return Split(bufio.ScanWords, w) },
	} {
		t.Run(name, func(t *testing.T) {
			w := &recordingHandler{}
			s := startServer(t, &Server{Handler: frame(w), Limits: Limits{MaxUnsent: 16 << 20, HighWater: 1000}})
			c := dial(t, s.addr)
			c.Send("go \n")
			// Nobody reads meanwhile, so it is more than the kernel takes.
			waitFor(t, "nothing was written", func() bool { return w.wasCalled("wrote") })
			_, err := io.CopyN(io.Discard, c, 8<<20)
			requireNoError(t, err)
			waitFor(t, "Writable was not called", func() bool { return w.wasCalled("Writable") })
			s.stop()
			got, err := io.ReadAll(c)
			if err != nil || !bytes.HasSuffix(got, []byte("goodbye")) || !w.wasCalled("Draining") {
				t.Errorf("at the end: got %d bytes, %v", len(got), err)
			}
		})
	}
	if _, ok := handlerAs[WritableHandler](Lines(MessageFunc(echoLine))); ok {
		t.Error("a function has Writable")
	}
	if _, ok := handlerAs[DrainingHandler](Base{}); ok {
		t.Error("Base has Draining")
	}
}

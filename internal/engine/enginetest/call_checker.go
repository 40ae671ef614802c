package enginetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// callChecker is the handler passed to the models. It runs a script, records each connection, and
// checks the rules: calls for a connection are serialized, Opened is first, Closed last, each once;
// refused input comes again only with more appended.
type callChecker struct {
	t      testing.TB
	script *Script

	mu     sync.Mutex
	lives  map[engine.Ref]*connRecord
	opened []engine.Ref // in order
	ended  int
	whys   []error // close reasons in order
	failed []error // errors passed to DialFailed
}

type connRecord struct {
	busy    bool // a call is under way
	ended   bool
	closed  bool
	refused int // length of the last input, if none of it was used
}

func newWitness(t testing.TB, s *Script) *callChecker {
	return &callChecker{t: t, script: s, lives: map[engine.Ref]*connRecord{}}
}

func (w *callChecker) enterCall(c *engine.Conn, call string, note func(l *connRecord)) (leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lives[c.Ref()]
	switch {
	case l == nil && call != "Opened":
		w.t.Errorf("%s without Opened", call)
		l = &connRecord{}
	case l == nil:
		l = &connRecord{}
		w.lives[c.Ref()] = l
	case call == "Opened":
		w.t.Error("Opened twice for a connection, or one Ref for two")
	}
	if l.busy {
		w.t.Errorf("%s while another call for the connection is under way", call)
	}
	if l.closed {
		w.t.Errorf("%s after Closed", call)
	}
	l.busy = true
	note(l)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		l.busy = false
	}
}

// recordOpened enters the call that opens a connection, which is Restore in the process that takes it over.
func (w *callChecker) recordOpened(c *engine.Conn) (leave func()) {
	return w.enterCall(c, "Opened", func(*connRecord) { w.opened = append(w.opened, c.Ref()) })
}

func (w *callChecker) Opened(c *engine.Conn) {
	defer w.recordOpened(c)()
	if w.script.Opened != nil {
		w.script.Opened(c)
	}
}

func (w *callChecker) Received(c *engine.Conn, in []byte) (used int) {
	return w.checkedOffer(c, "Received", in, w.script.Received)
}

// checkedShed is a Config.Shed with the same checks as Received.
func (w *callChecker) checkedShed(f func(*engine.Conn, []byte) int) func(*engine.Conn, []byte, error) int {
	return func(c *engine.Conn, in []byte, reason error) int {
		if reason == nil {
			w.t.Error("Shed without a reason")
		}
		return w.checkedOffer(c, "Shed", in, f)
	}
}

// checkedOffer checks a call that passes input to the handler.
func (w *callChecker) checkedOffer(c *engine.Conn, call string, in []byte, f func(*engine.Conn, []byte) int) (used int) {
	var l *connRecord
	defer w.enterCall(c, call, func(life *connRecord) {
		l = life
		switch {
		case l.ended:
			w.t.Errorf("%s after Ended", call)
		case len(in) <= l.refused:
			w.t.Errorf("%s offers %d bytes after %d were not used", call, len(in), l.refused)
		}
	})()
	if used = len(in); f != nil {
		used = f(c, in)
	}
	l.refused = 0
	if used == 0 && !c.IsPaused() {
		l.refused = len(in)
	}
	return used
}

func (w *callChecker) Ended(c *engine.Conn, in []byte) int {
	defer w.enterCall(c, "Ended", func(l *connRecord) {
		if l.ended {
			w.t.Error("Ended twice")
		}
		if len(in) != l.refused {
			w.t.Errorf("Ended with %d bytes unused, but the last offer left %d", len(in), l.refused)
		}
		l.ended = true
		w.ended++
	})()
	if w.script.Ended != nil {
		w.script.Ended(c, in)
	}
	return len(in)
}

func (w *callChecker) Nudged(c *engine.Conn) {
	defer w.enterCall(c, "Nudged", func(*connRecord) {})()
	if w.script.Nudged != nil {
		w.script.Nudged(c)
	}
}

func (w *callChecker) Closed(c *engine.Conn, reason error) {
	var l *connRecord
	leave := w.enterCall(c, "Closed", func(life *connRecord) { l = life })
	defer func() {
		leave()
		w.mu.Lock()
		defer w.mu.Unlock()
		l.closed = true
		w.whys = append(w.whys, reason)
	}()
	if w.script.Closed != nil {
		w.script.Closed(c, reason)
	}
}

func (w *callChecker) DialFailed(err error) {
	w.mu.Lock()
	w.failed = append(w.failed, err)
	w.mu.Unlock()
	if w.script.DialFailed != nil {
		w.script.DialFailed(err)
	}
}

func (w *callChecker) wantOpened(n int) []engine.Ref {
	w.t.Helper()
	testkit.WaitFor(w.t, fmt.Sprintf("not %d connections opened", n), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.opened) >= n
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.opened) > n {
		w.t.Errorf("%d connections opened, want %d", len(w.opened), n)
	}
	return slices.Clone(w.opened)
}

func (w *callChecker) wantEndedCalls(n int) {
	w.t.Helper()
	testkit.WaitFor(w.t, fmt.Sprintf("not %d connections ended", n), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.ended >= n
	})
}

// wantClosed waits for len(whys) closed connections and compares their close reasons with whys, in order.
func (w *callChecker) wantClosed(whys ...error) {
	w.t.Helper()
	got := w.awaitClosed(len(whys))
	if !slices.EqualFunc(got, whys, errors.Is) {
		w.t.Errorf("closed for %v, want %v", got, whys)
	}
}

func (w *callChecker) awaitClosed(n int) []error {
	w.t.Helper()
	testkit.WaitFor(w.t, fmt.Sprintf("not %d connections closed", n), func() bool {
		return len(w.reasons()) >= n
	})
	return w.reasons()
}

func (w *callChecker) reasons() []error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.whys)
}

func (w *callChecker) wantDialFailed(whys ...error) {
	w.t.Helper()
	got := w.awaitDialFailed(len(whys))
	if !slices.EqualFunc(got, whys, errors.Is) {
		w.t.Errorf("dials failed for %v, want %v", got, whys)
	}
}

func (w *callChecker) awaitDialFailed(n int) (got []error) {
	w.t.Helper()
	testkit.WaitFor(w.t, fmt.Sprintf("not %d dials failed", n), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		got = slices.Clone(w.failed)
		return len(got) >= n
	})
	return got
}

// checkOpenedEqualsClosed checks at the end that every opened connection is closed.
func (w *callChecker) checkOpenedEqualsClosed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.opened) != len(w.whys) {
		w.t.Errorf("%d connections opened, %d closed", len(w.opened), len(w.whys))
	}
}

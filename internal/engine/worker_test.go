package engine

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func newConnWithWorker(t *testing.T, h *recordingHandler) *manualConn {
	d := newManualConn(t, h)
	d.Abort(nil) // Opened has been called already
	d.OnClosed()
	h.notes, h.why = nil, nil
	d.host.OnWorkers = true
	d.host.Loop = workerLoop{}
	d.host.Shed = func(*Conn, []byte, error) int { return 0 }
	d.OnOpen(loopback, false)
	return d
}

type workerLoop struct{ Loop }

func (workerLoop) ReturnFromWorker(*Conn, error)    {}
func (workerLoop) OnLoop() bool                     { return false }
func (workerLoop) LeaveToWait() bool                { return true }
func (workerLoop) QueueJobOnLoop(LoopJob, int) bool { return false }

// If a connection ends before a worker has called Opened, both Opened and Closed must be called, by
// a worker or otherwise by the owner.
func TestClosedBeforeOpened(t *testing.T) {
	for name, end := range map[string]func(d *manualConn){
		"worker": func(d *manualConn) { d.FreeBuffersAndDeferClosed(); d.Conn.Run(context.Background()); d.OnClosed() },
		"owner":  func(d *manualConn) { d.FreeBuffersAndDeferClosed(); d.UndeferClosed(); d.OnClosed() },
	} {
		t.Run(name, func(t *testing.T) {
			d := newConnWithWorker(t, &recordingHandler{})
			d.opened = func(c *Conn) {
				if _, err := c.Write([]byte("hello")); !errors.Is(err, ErrClosed) {
					t.Errorf("writing to a connection that has failed: %v, want ErrClosed", err)
				}
			}
			d.OnTransportError(io.ErrUnexpectedEOF)
			end(d)
			if got := strings.Join(d.notes, ", "); got != "opened, closed" || d.why != io.ErrUnexpectedEOF {
				t.Errorf("the handler was called: %s, for %v; want opened, closed", got, d.why)
			}
		})
	}
}

// Time spent waiting for a worker, or for space, must not count against the peer.
func TestWaitingForWorkerIsForgiven(t *testing.T) {
	none := func(*Conn, []byte) int { return 0 }
	d := newConnWithWorker(t, &recordingHandler{received: none})
	d.host.Limits.MessageTimeout = time.Second
	d.MakeDeferredHandlerCalls()
	d.host.SetClock(time.Second)
	d.OnRead([]byte("abc"))
	d.RecordSubmittedTime()
	d.host.SetClock(10 * time.Second)
	d.ExcludeWorkerTimeFromTimeouts()
	d.CallShedHandler(ErrOverloaded)
	if why, _ := d.exceededTimeLimit(10*time.Second + 900*time.Millisecond); why != nil {
		t.Errorf("half a message that has waited 9 s for a worker is closed for %v after 0.9 s", why)
	}
	if why, _ := d.exceededTimeLimit(12 * time.Second); why != ErrMessageTimeout {
		t.Errorf("after 2 s: %v, want ErrMessageTimeout", why)
	}
}

// TestCanShed checks that Shed is called only for buffered input, and never before a handler call that is due.
func TestCanShed(t *testing.T) {
	c := &Conn{runtime: &Runtime{}}
	c.runtime.Shed = func(*Conn, []byte, error) int { return 0 }
	for _, row := range []struct {
		name  string
		state uint32
		want  bool
	}{
		{"buffered input", inputHeld, true},
		{"no input", 0, false},
		{"Opened is due", inputHeld | openPending, false},
		{"Drained is due", inputHeld | drainedPending, false},
		{"Draining is due", inputHeld | drainingPending, false},
		{"a handler of its own", inputHeld | ownHandler, false},
		{"it closes", inputHeld | closing, false},
		{"it has failed", inputHeld | failed, false},
	} {
		if c.state = row.state; c.CanShed() != row.want {
			t.Errorf("%s: CanShed is %v; expected %v", row.name, !row.want, row.want)
		}
	}
	c.runtime.Shed = nil
	if c.state = inputHeld; c.CanShed() {
		t.Error("CanShed is true without a Shed")
	}
}

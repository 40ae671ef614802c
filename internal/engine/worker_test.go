package engine

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"
)

// newConnWithWorker opens a connection whose handler runs on workers, and records the errors with
// which it is returned.
func newConnWithWorker(t *testing.T, h *recordingHandler) (d *manualConn, returned *[]error) {
	d, returned = newManualConn(t, h), new([]error)
	d.Abort(nil) // Opened has been called already
	d.OnClosed()
	h.notes, h.why = nil, nil
	d.host.OnWorkers = true
	d.host.Loop = workerLoop{returned: returned}
	d.host.Shed = func(c *Conn, in []byte, why error) int {
		h.record("shed %q: %v", in, why)
		return len(in)
	}
	d.OnOpen(loopback, false)
	return d, returned
}

// workerLoop records the errors with which connections are returned.
type workerLoop struct {
	Loop
	returned *[]error
}

func (o workerLoop) ReturnFromWorker(_ *Conn, why error) { *o.returned = append(*o.returned, why) }

func (workerLoop) OnLoop() bool { return false }

func (workerLoop) LeaveToWait() bool { return true }

func (workerLoop) QueueJobOnLoop(LoopJob, int) bool { return false }

var errNoTime = errors.New("no worker has time")

// If a connection ends before a worker has called Opened, both Opened and Closed must be called, by
// a worker or otherwise by the owner.
func TestClosedBeforeOpened(t *testing.T) {
	for name, end := range map[string]func(d *manualConn){
		"worker": func(d *manualConn) { d.FreeBuffersAndDeferClosed(); d.Conn.Run(context.Background()); d.OnClosed() },
		"owner":  func(d *manualConn) { d.FreeBuffersAndDeferClosed(); d.UndeferClosed(); d.OnClosed() },
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := newConnWithWorker(t, &recordingHandler{})
			d.opened = func(c *Conn) {
				if _, err := c.Write([]byte("hello")); !errors.Is(err, ErrClosed) {
					t.Errorf("writing to a connection that has failed: %v, want ErrClosed", err)
				}
			}
			d.OnTransportError(io.ErrUnexpectedEOF)
			end(d)
			d.wantNotes("opened", "closed")
			if d.why != io.ErrUnexpectedEOF {
				t.Errorf("closed because of %v", d.why)
			}
		})
	}
}

// Time spent waiting for a worker, or for space, must not count against the peer.
func TestWaitingForWorkerIsForgiven(t *testing.T) {
	d, _ := newConnWithWorker(t, &recordingHandler{received: useNone})
	d.host.Limits.MessageTimeout = time.Second
	d.MakeDeferredHandlerCalls()
	d.host.SetClock(time.Second)
	d.OnRead([]byte("abc"))
	d.RecordSubmittedTime()
	d.host.SetClock(10 * time.Second)
	d.ExcludeWorkerTimeFromTimeouts()
	d.host.Shed = func(*Conn, []byte, error) int { return 0 }
	d.CallShedHandler(errNoTime)
	if why, _ := d.exceededTimeLimit(10*time.Second + 900*time.Millisecond); why != nil {
		t.Errorf("half a message that has waited 9 s for a worker is closed for %v after 0.9 s", why)
	}
	if why, _ := d.exceededTimeLimit(12 * time.Second); why != ErrMessageTimeout {
		t.Errorf("after 2 s: %v, want ErrMessageTimeout", why)
	}
}

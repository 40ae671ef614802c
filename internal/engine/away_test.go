package engine

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"
)

// newAway opens a connection whose handler workers call, and keeps why it was given
// back.
func newAway(t *testing.T, h *calls) (d *desk, returned *[]error) {
	d, returned = newDesk(t, h), new([]error)
	d.Kill(nil) // Opened has been called already
	d.Finish()
	h.notes, h.why = nil, nil
	d.host.Away = true
	d.host.Returned = func(_ *Conn, why error) { *returned = append(*returned, why) }
	d.host.Shed = func(c *Conn, in []byte, why error) int {
		h.note("shed %q: %v", in, why)
		return len(in)
	}
	d.Open(loopback, false)
	return d, returned
}

var errNoTime = errors.New("no worker has time")

// What may be shed is input, when nothing else is due.
func TestMayShed(t *testing.T) {
	d, _ := newAway(t, &calls{})
	if d.MayShed() {
		t.Error("Opened may be shed")
	}
	d.Deliver()
	if d.MayShed() {
		t.Error("nothing is due, and may be shed")
	}
	d.Arrived([]byte("abc"))
	if !d.MayShed() {
		t.Error("input may not be shed")
	}
	for name, bit := range map[string]uint32{
		"Opened": fresh, "Writable": relieved, "Draining": warned, "a close": closing, "a failure": failed,
	} {
		d.state |= bit
		if d.MayShed() {
			t.Errorf("%s is due beside input, and may be shed", name)
		}
		d.state &^= bit
	}
	shed := d.host.Shed
	if d.host.Shed = nil; d.MayShed() {
		t.Error("input may be shed without a handler that sheds")
	}
	d.host.Shed = shed
	d.PeerClosed()
	if !d.MayShed() {
		t.Error("input with the end behind it may not be shed")
	}
	d.Shed(errNoTime)
	if d.MayShed() {
		t.Error("Ended may be shed")
	}
	d.want("when its input was shed", Deliver)
	d.Deliver()
	d.wantNotes("opened", `shed "abc": no worker has time`, `ended ""`)
	if n := d.host.Counters.Get(Shed); n != 1 {
		t.Errorf("%d sheds are counted, want 1", n)
	}
}

// What Shed leaves is kept, and comes again with more behind it.
func TestShedLeavesInput(t *testing.T) {
	h := &calls{}
	d, _ := newAway(t, h)
	d.Deliver()
	d.host.Shed = func(c *Conn, in []byte, _ error) int {
		h.note("shed %q", in)
		return min(2, len(in)/2*2)
	}
	d.Arrived([]byte("abc"))
	d.Shed(errNoTime)
	d.want("with half a message left", Wait)
	d.Arrived([]byte("d"))
	d.want("with all of it", Deliver)
	d.Deliver()
	d.wantNotes("opened", `shed "abc"`, `shed "c"`, `received "cd"`)
}

// A pool gives a connection back once: run, or not and why.
func TestRunAndDropped(t *testing.T) {
	d, returned := newAway(t, &calls{})
	d.Conn.Run(context.Background())
	d.Dropped(errNoTime)
	if got := *returned; len(got) != 2 || got[0] != nil || got[1] != errNoTime {
		t.Errorf("given back with %v; want nil for Run, and what Dropped was told", got)
	}
	d.wantNotes("opened")
}

// A connection that ends before a worker has called Opened is opened and closed: by a
// worker, or if none will do it on its owner.
func TestClosedBeforeOpened(t *testing.T) {
	for name, end := range map[string]func(d *desk){
		"worker": func(d *desk) { d.Part(); d.Conn.Run(context.Background()); d.Finish() },
		"owner":  func(d *desk) { d.Part(); d.Unpart(); d.Finish() },
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := newAway(t, &calls{})
			d.opened = func(c *Conn) {
				if _, err := c.Write([]byte("hello")); !errors.Is(err, ErrClosed) {
					t.Errorf("writing to a connection that has failed: %v, want ErrClosed", err)
				}
			}
			d.Failed(io.ErrUnexpectedEOF)
			end(d)
			d.wantNotes("opened", "closed")
			if d.why != io.ErrUnexpectedEOF {
				t.Errorf("closed because of %v", d.why)
			}
		})
	}
}

// The time that a connection waits for a worker, or for room, is not its peer's.
func TestWaitingForWorkerIsForgiven(t *testing.T) {
	d, _ := newAway(t, &calls{received: useNone})
	d.host.Limits.MessageTimeout = time.Second
	d.Deliver()
	d.host.SetClock(time.Second)
	d.Arrived([]byte("abc"))
	d.HandedOver()
	d.host.SetClock(10 * time.Second)
	d.TakenBack()
	d.host.Shed = func(*Conn, []byte, error) int { return 0 }
	d.Shed(errNoTime)
	if why := d.overdue(10*time.Second + 900*time.Millisecond); why != nil {
		t.Errorf("half a message that has waited 9 s for a worker is closed for %v after 0.9 s", why)
	}
	if why := d.overdue(12 * time.Second); why != ErrMessageTimeout {
		t.Errorf("after 2 s: %v, want ErrMessageTimeout", why)
	}
}

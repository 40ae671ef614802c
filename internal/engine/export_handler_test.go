package engine

import (
	"errors"
	"testing"
	"time"
)

type ownCalls struct {
	*recordingHandler
	value any
}

func (*ownCalls) NewLayer(*Conn) Layer { return nil }
func (*ownCalls) Drained(*Conn)        {}
func (*ownCalls) Missed(*Conn, int64)  {}
func (*ownCalls) Draining(*Conn)       {}
func (*ownCalls) Timer(*Conn)          {}
func (*ownCalls) DialFailed(error)     {}
func (o *ownCalls) Value() any         { return o.value }
func (o *ownCalls) SetValue(v any)     { o.value = v }

// exportAndSnapshot starts the export and takes a snapshot, as far as possible.
func (d *manualConn) exportAndSnapshot() (Record, error) {
	if err := d.RequestExport(); err != nil {
		return Record{}, err
	}
	d.wantAction("when it leaves", DetachOrExport)
	d.OnKernelIdleForExport()
	return d.BlockPostsAndSnapshot()
}

// TestOwnedMoves checks that a connection with a ConnHandler is exported only if that can be saved,
// together with the handler's partial message and its age.
func TestOwnedMoves(t *testing.T) {
	d := newManualConn(t, &recordingHandler{})
	d.now = time.Hour
	d.host.SetClock(d.now)
	d.SetConnHandler(&ownCalls{d.recordingHandler, "v"})
	d.OnRead([]byte("x"))
	_, err := d.exportAndSnapshot()
	wantErr(t, "with nobody who saves it", err, ErrNotExportable)
	saveErr := ErrSaveLater
	d.host.SaveConnHandler = func(c *Conn, to []byte) ([]byte, error) { return append(to, c.Value().(string)...), saveErr }
	d.SetHandlerMemory(100, true)
	_, err = d.exportAndSnapshot()
	wantErr(t, "not now", err, ErrSaveLater)
	d.AbortExport(false)
	saveErr = nil
	d.Retain()
	_, err = d.exportAndSnapshot()
	wantErr(t, "in the middle of a request", err, ErrNotExportable)
	d.Release()
	d.now += 5 * time.Second
	d.host.SetClock(d.now)
	r, err := d.exportAndSnapshot()
	if err != nil || !r.HasConnHandler || string(r.State) != "v" || r.InputAge != 5*time.Second {
		t.Fatalf("packed: %+v, %v; want the state v, and that it has waited for 5 s", r, err)
	}
	d.AbortAsHandedOver()
	d.wantClosed(ErrHandedOver)

	restored := func(restore func(c *Conn, state []byte) error) *manualConn {
		to := newManualConn(t, &recordingHandler{})
		to.host.Limits.MessageTimeout = 20 * time.Second
		to.now = time.Minute
		to.host.SetClock(to.now)
		to.host.RestoreConnHandler = restore
		to.Conn = &Conn{}
		to.Bind(&to.host, 1, 0)
		to.ImportOrAbort(&r)
		return to
	}
	to := restored(func(c *Conn, state []byte) error {
		c.SetConnHandler(&ownCalls{&recordingHandler{}, string(state)})
		c.SetHandlerMemory(100, true)
		return nil
	})
	if to.Value() != "v" || to.BufferMemory() != 100 {
		t.Errorf("it has the value %v, and holds %d bytes; want v and 100", to.Value(), to.BufferMemory())
	}
	to.now += 14 * time.Second
	to.CheckTimeouts(to.now)
	to.wantAction("after 19 of 20 s", Wait)
	to.now += 2 * time.Second
	to.CheckTimeouts(to.now)
	to.wantAction("after 21 of 20 s", Read)
	if to.CloseIfTimedOutAfterEmptyRead(); !to.IsClosing() || to.CloseReason() != ErrMessageTimeout {
		t.Error("not closed after 21 of 20 s")
	}
	for _, c := range []struct {
		restore func(c *Conn, state []byte) error
		want    error
	}{{nil, errNoConnHandler}, {func(*Conn, []byte) error { return errState }, errState}} {
		restored(c.restore).wantClosed(c.want)
	}
}

var errState = errors.New("no such state")

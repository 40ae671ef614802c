package engine

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

var loopback = netip.MustParseAddrPort("127.0.0.1:4242")

// recordingHandler is a Handler of functions. It records which of Opened and Closed were called.
type recordingHandler struct {
	opened   func(c *Conn)
	received func(c *Conn, in []byte) int
	notes    []string
	why      error
}

func (h *recordingHandler) Opened(c *Conn) {
	h.notes = append(h.notes, "opened")
	if h.opened != nil {
		h.opened(c)
	}
}

func (h *recordingHandler) Received(c *Conn, in []byte) int {
	if h.received == nil {
		return len(in)
	}
	return h.received(c, in)
}

func (h *recordingHandler) Ended(_ *Conn, in []byte) int { return len(in) }

func (h *recordingHandler) Closed(_ *Conn, why error) {
	h.notes = append(h.notes, "closed")
	h.why = why
}

// manualConn is a connection that a test drives by hand.
type manualConn struct {
	*testing.T
	*recordingHandler
	*Conn
	host Runtime
	now  time.Duration
}

// newManualConn opens a connection with a MaxMessage of 8 and a MaxUnsent of 16.
func newManualConn(t *testing.T, h *recordingHandler) *manualConn {
	d := &manualConn{T: t, recordingHandler: h, Conn: &Conn{}}
	d.host = Runtime{
		Config: Config{
			Handler: h,
			Limits:  Limits{MaxMessage: 8, MaxUnsent: 16, HighWater: 8, LowWater: 8, CloseTimeout: time.Second, Linger: time.Minute},
			Log:     slog.New(slog.DiscardHandler),
		},
		Buffers:   &FreeList{},
		Admission: admitAll,
		Counters:  &Counters{},
		Now:       func() time.Duration { return d.now },
	}
	d.Bind(&d.host, 0, 0)
	d.OnOpen(loopback, false)
	return d
}

func (d *manualConn) wantAction(when string, a Action) {
	d.Helper()
	if got := d.AdvanceToNextAction(); got != a {
		d.Fatalf("%s: Next is %d, want %d (state %b)", when, got, a, d.state)
	}
}

func (d *manualConn) wantClosed(why error) {
	d.Helper()
	d.wantAction("at the end", Close)
	d.OnClosed()
	if !errors.Is(d.why, why) {
		d.Errorf("closed for %v, want %v", d.why, why)
	}
}

func TestConnSize(t *testing.T) {
	if got := unsafe.Sizeof(Conn{}); got > 104 {
		t.Errorf("a connection's slab entry is %d bytes, want at most 104", got)
	}
}

func TestReason(t *testing.T) {
	other := errors.New("another")
	wrap := func(err error) error {
		return &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", err)}
	}
	for _, test := range []struct{ in, want error }{
		{nil, nil},
		{fmt.Errorf("wrapped: %w", io.EOF), io.EOF},
		{syscall.ECONNRESET, syscall.ECONNRESET},
		{wrap(syscall.EPIPE), syscall.ECONNRESET},
		{wrap(syscall.ECONNABORTED), syscall.ECONNRESET},
		{wrap(syscall.ENOTCONN), syscall.ECONNRESET},
		{wrap(syscall.Errno(10053)), syscall.ECONNRESET},
		{wrap(syscall.Errno(10054)), syscall.ECONNRESET},
		{wrap(syscall.ETIMEDOUT), syscall.ETIMEDOUT},
		{&net.OpError{Op: "read", Err: net.ErrClosed}, ErrClosed},
		{os.ErrClosed, ErrClosed},
		{other, other},
	} {
		if got := NormalizeError(test.in); got != test.want {
			t.Errorf("Reason(%v) is %#v, want %#v", test.in, got, test.want)
		}
	}
}

func TestPanicError(t *testing.T) {
	cause := errors.New("the cause")
	d := newManualConn(t, &recordingHandler{opened: func(*Conn) { panic(cause) }})
	d.wantClosed(cause)
	var p *PanicError
	if !errors.As(d.why, &p) || p.Value != cause {
		t.Fatalf("closed for %#v, want a PanicError with the value", d.why)
	}
	if !strings.Contains(string(p.Stack), "TestPanicError") {
		t.Errorf("the stack does not show who panicked:\n%s", p.Stack)
	}
	if err := (&PanicError{Value: "no error"}); err.Unwrap() != nil {
		t.Errorf("a PanicError of a string unwraps to %v", err.Unwrap())
	}
}

// A connection that waits for a worker to call Closed must not keep buffers, or others would be
// closed for their memory.
func TestPartHoldsNothing(t *testing.T) {
	d := newManualConn(t, &recordingHandler{})
	d.Write([]byte("unsent"))
	d.bufferUnusedInput([]byte("unused"))
	if d.BufferMemory() == 0 {
		t.Fatal("the connection holds nothing from the beginning")
	}
	d.Abort(ErrOverBudget)
	d.FreeBuffersAndDeferClosed()
	if n, counted := d.BufferMemory(), d.host.Counters.Get(Buffered); n != 0 || counted != 0 {
		t.Errorf("after Part the connection holds %d bytes, and %d are counted; want none", n, counted)
	}
}

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
)

var loopback = netip.MustParseAddrPort("127.0.0.1:4242")

// calls is a Handler of functions that notes what was called.
type calls struct {
	opened   func(c *Conn)
	received func(c *Conn, in []byte) int
	ended    func(c *Conn, in []byte)
	closed   func(c *Conn, why error)
	notes    []string
	why      error
}

func (h *calls) note(format string, args ...any) {
	h.notes = append(h.notes, fmt.Sprintf(format, args...))
}

func (h *calls) Opened(c *Conn) {
	h.note("opened")
	if h.opened != nil {
		h.opened(c)
	}
}

func (h *calls) Received(c *Conn, in []byte) int {
	h.note("received %.10q", in)
	if h.received == nil {
		return len(in)
	}
	return h.received(c, in)
}

func (h *calls) Ended(c *Conn, in []byte) int {
	h.note("ended %q", in)
	if h.ended != nil {
		h.ended(c, in)
	}
	return len(in)
}

func (h *calls) Closed(c *Conn, why error) {
	h.note("closed")
	h.why = why
	if h.closed != nil {
		h.closed(c, why)
	}
}

// desk is a connection on a test's desk, driven by hand.
type desk struct {
	*testing.T
	*calls
	*Conn
	host Host
	now  time.Duration
	wire string
}

// newDesk opens a connection with a MaxMessage of 8 and a MaxUnsent of 16.
func newDesk(t *testing.T, h *calls) *desk {
	d := &desk{T: t, calls: h, Conn: &Conn{}}
	d.host = Host{
		Handler:   h,
		Limits:    Limits{MaxMessage: 8, MaxUnsent: 16, HighWater: 8, LowWater: 8, CloseTimeout: time.Second, Linger: time.Minute},
		Log:       slog.New(slog.DiscardHandler),
		Buffers:   &FreeList{},
		Admission: admitAll,
		Counters:  &Counters{},
		Now:       func() time.Duration { return d.now },
	}
	d.Bind(&d.host, 0, 0)
	d.Open(loopback, false)
	return d
}

// want checks what is to be done next.
func (d *desk) want(when string, a Action) {
	d.Helper()
	if got := d.Next(); got != a {
		d.Fatalf("%s: Next is %d, want %d (state %b)", when, got, a, d.state)
	}
}

// send takes at most n bytes of output.
func (d *desk) send(n int) {
	d.Helper()
	d.want("before sending", Send)
	n = min(n, len(d.Output()))
	d.wire += string(d.Output()[:n])
	d.Sent(n)
}

// wantClosed finishes the connection and checks why.
func (d *desk) wantClosed(why error) {
	d.Helper()
	d.want("at the end", Close)
	d.Finish()
	if !errors.Is(d.why, why) {
		d.Errorf("closed for %v, want %v", d.why, why)
	}
}

func (d *desk) wantNotes(want ...string) {
	d.Helper()
	if got := strings.Join(d.notes, ", "); got != strings.Join(want, ", ") {
		d.Errorf("the handler saw %s;\nwant %s", got, strings.Join(want, ", "))
	}
}

func useNone(*Conn, []byte) int { return 0 }

func TestMaxMessage(t *testing.T) {
	t.Run("a byte less is kept", func(t *testing.T) {
		d := newDesk(t, &calls{received: useNone})
		d.Arrived([]byte("1234567"))
		d.want("with a byte less than MaxMessage unused", Wait)
		if !d.WantsInput() {
			t.Error("does not want the rest of a message that is not too long yet")
		}
	})
	t.Run("exactly, at once", func(t *testing.T) {
		d := newDesk(t, &calls{received: useNone})
		d.Arrived([]byte("12345678"))
		d.wantTooLong()
	})
	t.Run("exactly, in pieces", func(t *testing.T) {
		d := newDesk(t, &calls{received: useNone})
		d.Arrived([]byte("1234"))
		d.want("after the first half", Wait)
		d.Arrived([]byte("5678"))
		d.wantTooLong()
	})
	t.Run("exactly, and used", func(t *testing.T) {
		d := newDesk(t, &calls{received: func(_ *Conn, in []byte) int { return len(in) / 8 * 8 }})
		d.Arrived([]byte("1234"))
		d.Arrived([]byte("5678"))
		d.want("when a message of MaxMessage bytes is used", Wait)
		d.wantNotes("opened", `received "1234"`, `received "12345678"`)
	})
	t.Run("more than one message at once is not too long", func(t *testing.T) {
		d := newDesk(t, &calls{received: func(_ *Conn, in []byte) int { return len(in) / 8 * 8 }})
		d.Arrived([]byte("1234567812345678123"))
		d.want("with 3 bytes left", Wait)
	})
	t.Run("answers before it are sent", func(t *testing.T) {
		d := newDesk(t, &calls{received: func(c *Conn, in []byte) int {
			if in[0] != 'a' {
				return 0
			}
			c.WriteString("A")
			return 1
		}})
		d.Arrived([]byte("aa12345678"))
		d.send(100)
		if d.wire != "AA" {
			t.Errorf("sent %q, want %q", d.wire, "AA")
		}
		d.wantTooLong()
	})
}

func (d *desk) wantTooLong() {
	d.Helper()
	d.want("when the message is too long", Shut)
	d.ShutDone()
	d.PeerClosed()
	d.wantClosed(ErrMessageTooLong)
}

func TestWriteOverMaxUnsent(t *testing.T) {
	for name, write := range map[string]func(c *Conn, n int) (int, error){
		"Write":       func(c *Conn, n int) (int, error) { return c.Write(make([]byte, n)) },
		"WriteString": func(c *Conn, n int) (int, error) { return c.WriteString(strings.Repeat("x", n)) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, &calls{})
			if n, err := write(d.Conn, 16); n != 16 || err != nil {
				t.Errorf("a write of MaxUnsent bytes: %d, %v; want 16, nil", n, err)
			}
			if n, err := write(d.Conn, 0); n != 0 || err != nil {
				t.Errorf("a write of nothing: %d, %v; want 0, nil", n, err)
			}
			if n, err := write(d.Conn, 1); n != 0 || !errors.Is(err, ErrSlowConsumer) {
				t.Errorf("a byte more: %d, %v; want 0, %v", n, err, ErrSlowConsumer)
			}
			if n, err := write(d.Conn, 1); n != 0 || !errors.Is(err, ErrClosed) {
				t.Errorf("a write afterwards: %d, %v; want 0, %v", n, err, ErrClosed)
			}
			d.wantClosed(ErrSlowConsumer)
			if n, err := write(d.Conn, 1); n != 0 || !errors.Is(err, ErrClosed) {
				t.Errorf("a write after Closed: %d, %v; want 0, %v", n, err, ErrClosed)
			}
		})
	}
}

// Posted bytes have a bound of their own: they never make a handler's write
// fail.
func TestWriteDoesNotCountPostedBytes(t *testing.T) {
	d := newDesk(t, &calls{})
	d.mark.reserve(0, 16, 16)
	d.Mailed(Mail{Conn: d.Conn, Kind: MailSend}, make([]byte, 16))
	if _, err := d.Write(make([]byte, 16)); err != nil {
		t.Errorf("a write of MaxUnsent bytes behind as many posted ones: %v", err)
	}
	if d.Pending() != 32 {
		t.Errorf("%d bytes pending, want 32", d.Pending())
	}
}

func TestPausesAtHalfOfMaxUnsent(t *testing.T) {
	d := newDesk(t, &calls{received: func(c *Conn, in []byte) int {
		c.Write(in[:1])
		return 1
	}})
	d.Arrived([]byte("0123456789"))
	if d.Pending() != 9 || !d.Paused() || d.WantsInput() {
		t.Errorf("%d bytes pending, Paused %v, WantsInput %v; want 9, true, false", d.Pending(), d.Paused(), d.WantsInput())
	}
	d.send(0)
	d.want("while nothing can be sent", Wait)
	d.Room()
	d.send(1)
	d.want("with half of MaxUnsent owed and input held", Deliver)
	d.Deliver()
	if d.Pending() != 9 || d.in != nil {
		t.Errorf("%d bytes pending, unused input %v; want 9, none", d.Pending(), d.in)
	}
	d.Room()
	d.send(100)
	d.want("when all is sent", Wait)
	if d.wire != "0123456789" || d.Paused() || !d.WantsInput() {
		t.Errorf("sent %q, Paused %v, WantsInput %v; want all, false, true", d.wire, d.Paused(), d.WantsInput())
	}
}

func TestPausedConnectionThatClosesStillLingers(t *testing.T) {
	d := newDesk(t, &calls{received: func(c *Conn, in []byte) int {
		c.Write(make([]byte, 9))
		return 1
	}})
	d.Arrived([]byte("01"))
	d.CloseWith(nil)
	d.send(100)
	d.want("when all is sent", Shut)
	d.ShutDone()
	if !d.WantsInput() {
		t.Error("does not read while it lingers, so that closing would send a reset")
	}
}

func TestUnusedInputIsOfferedOnlyWithMore(t *testing.T) {
	d := newDesk(t, &calls{received: useNone})
	d.Arrived([]byte("ab"))
	d.Arrived([]byte("cd"))
	d.PeerClosed()
	d.want("when the peer has ended", Deliver)
	d.Deliver()
	d.wantClosed(io.EOF)
	d.wantNotes("opened", `received "ab"`, `received "abcd"`, `ended "abcd"`, "closed")
}

func TestExpire(t *testing.T) {
	t.Run("while open", func(t *testing.T) {
		d := newDesk(t, &calls{})
		d.Expire(time.Hour)
		d.want("an open connection after Expire", Wait)
	})
	t.Run("while it owes", func(t *testing.T) {
		d := newDesk(t, &calls{})
		d.WriteString("owed")
		d.CloseWith(nil)
		d.send(1)
		d.Expire(time.Second - 1)
		d.want("before it is due", Wait)
		d.Expire(time.Second)
		d.wantClosed(ErrCloseTimeout)
	})
	t.Run("while it lingers", func(t *testing.T) {
		d := newDesk(t, &calls{})
		d.now = time.Second
		d.CloseWith(nil)
		d.want("after CloseWith", Shut)
		d.ShutDone()
		d.Expire(time.Second + time.Minute - 1)
		d.want("before the linger time is over", Wait)
		d.Expire(time.Second + time.Minute)
		d.wantClosed(nil)
	})
}

func TestRefInEveryCall(t *testing.T) {
	refs := map[string]Ref{}
	h := &calls{
		opened:   func(c *Conn) { refs["Opened"] = c.Ref() },
		received: func(c *Conn, in []byte) int { refs["Received"] = c.Ref(); return len(in) },
		ended:    func(c *Conn, _ []byte) { refs["Ended"] = c.Ref() },
		closed:   func(c *Conn, _ error) { refs["Closed"] = c.Ref() },
	}
	d := newDesk(t, h)
	d.Arrived([]byte("x"))
	d.PeerClosed()
	d.Deliver()
	d.wantClosed(io.EOF)
	for name, r := range refs {
		if r != refs["Opened"] {
			t.Errorf("the Ref in %s differs from the one in Opened", name)
		}
	}
	if len(refs) != 4 {
		t.Errorf("Refs were taken in %d calls, want 4", len(refs))
	}
	d.Open(loopback, false)
	if refs["Opened"] == refs["Closed"] {
		t.Error("the next connection in the slot has the same Ref")
	}
}

func TestFirstReasonCounts(t *testing.T) {
	other := errors.New("another")
	d := newDesk(t, &calls{})
	d.CloseWith(other)
	d.CloseWith(nil)
	d.Failed(syscall.ECONNRESET)
	d.wantClosed(other)
}

func TestResetWhileOwingIsTheReason(t *testing.T) {
	d := newDesk(t, &calls{})
	d.WriteString("owed")
	d.CloseWith(nil)
	d.send(0)
	d.Failed(syscall.EPIPE)
	d.wantClosed(syscall.ECONNRESET)
}

func TestBadUse(t *testing.T) {
	for _, n := range []int{-1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			d := newDesk(t, &calls{received: func(*Conn, []byte) int { return n }})
			d.Arrived([]byte("ab"))
			d.wantClosed(ErrBadUse)
		})
	}
}

func TestMailOfNothing(t *testing.T) {
	d := newDesk(t, &calls{})
	d.mark.reserve(0, 2*noBytes, 100)
	d.Mailed(Mail{Conn: d.Conn, Kind: MailSend}, nil)
	d.want("after mail without bytes", Wait)
	if _, isNudger := any(d.calls).(Nudger); isNudger {
		t.Fatal("the test needs a handler that is no Nudger")
	}
	d.Mailed(Mail{Conn: d.Conn, Kind: MailNudge}, nil)
	d.want("after a nudge to a handler that is no Nudger", Wait)
	if d.mark.posted() != 0 {
		t.Errorf("%d bytes are still marked as posted", d.mark.posted())
	}
}

func TestMailToAConnectionThatCloses(t *testing.T) {
	d := newDesk(t, &calls{})
	for range 2 {
		d.mark.reserve(0, 5, 100)
	}
	d.CloseWith(nil)
	d.Mailed(Mail{Conn: d.Conn, Kind: MailSend}, make([]byte, 5))
	d.want("after mail that came too late", Shut)
	d.ShutDone()
	d.PeerClosed()
	d.wantClosed(nil)
	d.Open(loopback, false)
	d.Mailed(Mail{Conn: d.Conn, Kind: MailSend}, make([]byte, 5))
	d.want("a new connection after mail to the old one", Wait)
	if d.mark.posted() != 0 || d.Pending() != 0 {
		t.Errorf("%d bytes are still marked, %d pending; want none", d.mark.posted(), d.Pending())
	}
}

func TestReason(t *testing.T) {
	other := errors.New("another")
	wrap := func(err error) error {
		return &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", err)}
	}
	for _, test := range []struct{ in, want error }{
		{nil, nil},
		{io.EOF, io.EOF},
		{fmt.Errorf("wrapped: %w", io.EOF), io.EOF},
		{syscall.ECONNRESET, syscall.ECONNRESET},
		{wrap(syscall.ECONNRESET), syscall.ECONNRESET},
		{wrap(syscall.EPIPE), syscall.ECONNRESET},
		{wrap(syscall.ECONNABORTED), syscall.ECONNRESET},
		{wrap(syscall.ENOTCONN), syscall.ECONNRESET},
		{wrap(syscall.Errno(10053)), syscall.ECONNRESET},
		{wrap(syscall.Errno(10054)), syscall.ECONNRESET},
		{wrap(syscall.ECONNREFUSED), syscall.ECONNREFUSED},
		{wrap(syscall.ETIMEDOUT), syscall.ETIMEDOUT},
		{net.ErrClosed, ErrClosed},
		{&net.OpError{Op: "read", Err: net.ErrClosed}, ErrClosed},
		{os.ErrClosed, ErrClosed},
		{other, other},
	} {
		if got := Reason(test.in); got != test.want {
			t.Errorf("Reason(%v) is %#v, want %#v", test.in, got, test.want)
		}
	}
}

func TestPanicError(t *testing.T) {
	cause := errors.New("the cause")
	d := newDesk(t, &calls{opened: func(*Conn) { panic(cause) }})
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

// A connection that waits for a worker to call Closed holds no buffers: otherwise
// others would be closed for the memory that it takes.
func TestPartHoldsNothing(t *testing.T) {
	d := newDesk(t, &calls{})
	d.Write([]byte("unsent"))
	d.keep([]byte("unused"))
	if d.Holds() == 0 {
		t.Fatal("the connection holds nothing from the beginning")
	}
	d.Kill(ErrOverBudget)
	d.Part()
	if n, counted := d.Holds(), d.host.Counters.Get(Buffered); n != 0 || counted != 0 {
		t.Errorf("after Part the connection holds %d bytes, and %d are counted; want none", n, counted)
	}
}

package enginetest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

var listenCases = []testCase{
	{"handler that does not listen for a while", testReadingResumedLater},
	{"peer that ends while nobody listens", func(b *testEnv) { testEOFWhileReadingOff(b, "tcp", "127.0.0.1:0") }},
	{"peer at a unix socket that ends while nobody listens", func(b *testEnv) { testEOFWhileReadingOff(b, "unix", tempUnixPath(b)) }},
	{"peer that is faster than its rates", testReadRates},
}

// sendUntilBlocked sends a pattern until no more is taken, and returns what was sent.
func (c *client) sendUntilBlocked(b *testEnv, most int) (sent []byte) {
	b.Helper()
	c.SetWriteDeadline(time.Now().Add(short))
	defer c.SetWriteDeadline(time.Now().Add(patience))
	all := testPattern(most)
	n, err := c.Write(all)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		b.Errorf("%d bytes were taken by one who does not listen, then %v; want it to take no more", n, err)
	}
	return all[:n]
}

// testReadingResumedLater uses half of its first input and turns reading off until it is nudged.
// Nothing may be lost or passed to the handler meanwhile.
func testReadingResumedLater(b *testEnv) {
	const most = 16 << 20
	var got bytes.Buffer
	var deaf atomic.Bool
	s := b.startServer(&Script{
		Received: func(c *engine.Conn, in []byte) int {
			if deaf.Load() {
				b.Error("Received while the handler does not listen")
			}
			if got.Len() > 0 {
				got.Write(in)
				return len(in)
			}
			deaf.Store(true)
			c.SetReading(false)
			n, _ := got.Write(in[:(len(in)+1)/2])
			return n
		},
		Nudged: func(c *engine.Conn) {
			deaf.Store(false)
			c.SetReading(true)
		},
	})
	c := s.dial()
	c.shrinkSocketBuffers()
	want := c.sendUntilBlocked(b, most)
	if in := s.Counters()[engine.BytesIn]; in > 4<<20 {
		b.Errorf("%d bytes were received of one to whom nobody listens, want no more than what was under way", in)
	}
	b.checkNoError(s.wantOpened(1)[0].Nudge())
	c.CloseWrite()
	c.ExpectEOF("")
	s.wantClosed(io.EOF)
	b.checkNoError(compareBytes(got.Bytes(), want))
}

// testEOFWhileReadingOff dials a peer that sends something and EOF.
func testEOFWhileReadingOff(b *testEnv, network, addr string) {
	l, err := net.Listen(network, addr)
	b.requireNoError(err)
	b.Cleanup(func() { l.Close() })
	var got bytes.Buffer
	var listens atomic.Bool
	s := b.startServer(&Script{
		Opened: func(c *engine.Conn) { c.SetReading(false) },
		Received: func(_ *engine.Conn, in []byte) int {
			if !listens.Load() {
				b.Error("Received while the handler does not listen")
			}
			got.Write(in)
			return len(in)
		},
		Ended: func(*engine.Conn, []byte) {
			if !listens.Load() {
				b.Error("Ended while the handler does not listen")
			}
		},
		Nudged: func(c *engine.Conn) {
			if listens.Load() {
				c.SetReading(true)
			}
		},
	}, dialsOnly)
	d := engine.DialRequest{Count: 1, Path: addr}
	if network == "tcp" {
		d = engine.DialRequest{Count: 1, Target: l.Addr().(*net.TCPAddr).AddrPort()}
	}
	b.requireNoError(s.Dial(d))
	nc, err := l.Accept()
	b.requireNoError(err)
	r := s.wantOpened(1)[0]
	want := testPattern(10_000)
	if _, err := nc.Write(want); err != nil {
		b.Fatal(err)
	}
	nc.Close()
	for range 3 { // lets the owner run turns, in which it sees EOF
		b.checkNoError(r.Nudge())
		time.Sleep(5 * time.Millisecond)
	}
	if whys := s.reasons(); len(whys) > 0 {
		b.Errorf("closed for %v while nobody listens", whys)
	}
	listens.Store(true)
	if err := r.Nudge(); err != nil && !errors.Is(err, engine.ErrClosed) { // an earlier Nudge may have run late and ended it
		b.Error(err)
	}
	s.wantClosed(io.EOF)
	b.checkNoError(compareBytes(got.Bytes(), want))
}

// testReadRates has a peer that sends more than a second's allowance of bytes and of messages at once, and then EOF.
// The peer must not be closed for silence while it waits.
func testReadRates(b *testEnv) {
	const size, message = 4000, 10 // small, so that it arrives before the allowance has grown
	for _, rates := range [][2]int{{size * 3 / 4, 0}, {0, size * 3 / 4 / message}} {
		var got bytes.Buffer
		s := b.startServer(&Script{
			Opened: func(c *engine.Conn) { c.SetReadRate(rates[0], rates[1]) },
			Received: func(c *engine.Conn, in []byte) int {
				n, _ := got.Write(in[:len(in)/message*message][:min(len(in)/message, c.AllowedMessages())*message])
				c.CountMessagesAndLimitRate(n / message)
				return n
			},
		}, limited(func(l *engine.Limits) { l.IdleTimeout, l.MessageTimeout = short, short }))
		c := s.dial()
		start := time.Now()
		want := testPattern(size + message)
		c.Send(string(want[:size]))
		s.wantBytesIn(size)
		c.Send(string(want[size:])) // must not be read before the rate allows the earlier input
		c.CloseWrite()
		c.ExpectEOF("")
		s.wantClosed(io.EOF)
		b.checkNoError(compareBytes(got.Bytes(), want))
		if took := time.Since(start); took < 300*time.Millisecond {
			b.Errorf("%d bytes were read within %v with the rates %v", size, took, rates)
		}
		if s.Counters()[engine.ReadLimited] == 0 {
			b.Errorf("no pause is counted with the rates %v", rates)
		}
	}
}

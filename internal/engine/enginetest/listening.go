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
	"github.com/myriad-go/myriad/internal/testkit"
)

var listenCases = []testCase{
	{"handler that does not listen for a while", listensLater},
	{"handler that listens and does not by turns", listensByTurns},
	{"peer that ends while nobody listens", func(b *bench) { endsUnheard(b, "tcp", "127.0.0.1:0") }},
	{"peer at a unix socket that ends while nobody listens", func(b *bench) { endsUnheard(b, "unix", unixPath(b)) }},
	{"Stop while nobody listens", stopUnheard},
}

// sendMuch sends a pattern until nothing more is taken, and says how much it was.
func (c *client) sendMuch(b *bench, most int) (sent []byte) {
	b.Helper()
	c.SetWriteDeadline(time.Now().Add(short))
	defer c.SetWriteDeadline(time.Now().Add(patience))
	all := pattern(most)
	n, err := c.Write(all)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		b.Errorf("%d bytes were taken by one who does not listen, then %v; want it to take no more", n, err)
	}
	return all[:n]
}

// listensLater has a handler that uses half of its first input and then does not
// listen, until it is nudged. Nothing is lost, and nothing offered meanwhile.
func listensLater(b *bench) {
	const most = 16 << 20
	var got bytes.Buffer
	var deaf atomic.Bool
	s := b.serve(&Script{
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
			return copyHalf(&got, in)
		},
		Nudged: func(c *engine.Conn) {
			deaf.Store(false)
			c.SetReading(true)
		},
	})
	c := s.dial()
	c.smallBuffers()
	want := c.sendMuch(b, most)
	if in := s.Counters()[engine.BytesIn]; in > 4<<20 {
		b.Errorf("%d bytes were received of one to whom nobody listens, want no more than what was under way", in)
	}
	b.ok(s.wantOpened(1)[0].Nudge())
	c.CloseWrite()
	c.ExpectEOF("")
	s.wantClosed(io.EOF)
	b.ok(compare(got.Bytes(), want))
}

func copyHalf(to *bytes.Buffer, in []byte) int {
	n, _ := to.Write(in[:(len(in)+1)/2])
	return n
}

// listensByTurns takes a few bytes of each offer and then waits to be nudged, as one
// does who takes no more than so many a second.
func listensByTurns(b *bench) {
	const size, piece = 100_000, 1000
	var got bytes.Buffer
	var ref atomic.Pointer[engine.Ref]
	s := b.serve(&Script{
		Opened: func(c *engine.Conn) { r := c.Ref(); ref.Store(&r) },
		Received: func(c *engine.Conn, in []byte) int {
			n, _ := got.Write(in[:min(len(in), piece)])
			c.SetReading(false)
			return n
		},
		Nudged: func(c *engine.Conn) { c.SetReading(true) },
	}, paced(func(_ int, now time.Duration, touch func(engine.Ref) bool) time.Duration {
		if r := ref.Load(); r != nil {
			touch(*r)
		}
		return now + 100*time.Microsecond
	}))
	want := pattern(size)
	c := s.dial()
	c.Send(string(want))
	c.CloseWrite()
	c.ExpectEOF("")
	s.wantClosed(io.EOF)
	b.ok(compare(got.Bytes(), want))
}

// endsUnheard dials a peer that says something and ends.
func endsUnheard(b *bench, network, addr string) {
	l, err := net.Listen(network, addr)
	b.must(err)
	b.Cleanup(func() { l.Close() })
	var got bytes.Buffer
	var listens atomic.Bool
	s := b.serve(&Script{
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
	b.must(s.Dial(d))
	nc, err := l.Accept()
	b.must(err)
	r := s.wantOpened(1)[0]
	want := pattern(10_000)
	if _, err := nc.Write(want); err != nil {
		b.Fatal(err)
	}
	nc.Close()
	for range 3 { // turns, in which the end is seen
		b.ok(r.Nudge())
		time.Sleep(5 * time.Millisecond)
	}
	if whys := s.reasons(); len(whys) > 0 {
		b.Errorf("closed for %v while nobody listens", whys)
	}
	listens.Store(true)
	b.ok(r.Nudge())
	s.wantClosed(io.EOF)
	b.ok(compare(got.Bytes(), want))
}

// stopUnheard stops while a handler does not listen, to a peer that has said
// nothing.
func stopUnheard(b *bench) {
	s := b.serve(&Script{Opened: func(c *engine.Conn) { c.SetReading(false) }})
	c := s.dial()
	s.wantOpened(1)
	done := s.stop(background(b))
	c.ExpectEOF("")
	c.Close()
	b.ok(testkit.Receive(b, done, "the return of Stop"))
	s.wantClosed(engine.ErrServerClosed)
}

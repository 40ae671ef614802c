package enginetest

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
)

var inputCases = []testCase{
	{"message one byte at a time", messageByteByByte},
	{"message of 1 MiB in pieces", messageInPieces},
	{"many messages in one segment", manyMessages},
	{"unused input comes again", unusedInput},
	{"connection without a byte", noByte},
	{"who the peer is", whoThePeerIs},
	{"many connections at once", manyConnections},
}

func messageByteByByte(b *bench) {
	s := b.serve(lines())
	c := s.dial()
	const line = "hello, world\n"
	for i := range len(line) {
		c.send(line[i : i+1])
		s.wantBytesIn(i + 1)
	}
	c.expect(line)
	c.Close()
	s.wantClosed(io.EOF)
}

func messageInPieces(b *bench) {
	s := b.serve(frames(), limited(func(l *engine.Limits) { l.MaxMessage, l.MaxUnsent = 2<<20, 4<<20 }))
	c := s.dial()
	const size = 1 << 20
	message := string(binary.BigEndian.AppendUint32(nil, size)) + string(pattern(size))
	for i, rest := 0, message; rest != ""; i++ {
		n := min(len(rest), 1+i*997%40_000)
		c.send(rest[:n])
		rest = rest[n:]
	}
	c.expect(message)
	c.Close()
	s.wantClosed(io.EOF)
}

func manyMessages(b *bench) {
	s := b.serve(lines())
	c := s.dial()
	c.exchange("ready\n")
	eventually(b, "the first answer is not counted", func() bool { return s.Counters()[engine.Writes] > 0 })
	before := s.Counters()
	var all strings.Builder
	for i := range 200 {
		all.WriteString(strings.Repeat("x", i%7))
		all.WriteByte('\n')
	}
	c.exchange(all.String())
	after := s.Counters()
	if reads, writes := after[engine.Reads]-before[engine.Reads], after[engine.Writes]-before[engine.Writes]; writes > reads {
		b.Errorf("%d messages that came in %d reads were answered with %d writes, want one a read", 200, reads, writes)
	}
}

func unusedInput(b *bench) {
	var mu sync.Mutex
	var offers []string
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		mu.Lock()
		defer mu.Unlock()
		offers = append(offers, string(in))
		return answerLine(c, in)
	}})
	c := s.dial()
	c.send("a\nb\nhal")
	c.expect("a\nb\n")
	s.wantBytesIn(7)
	c.send("f\nmo")
	c.expect("half\n")
	s.wantBytesIn(11)
	c.send("re")
	s.wantBytesIn(13)
	c.endSending()
	c.expectEnd("")
	s.wantClosed(io.EOF)
	// An offer ends where a read did, so that only what they begin with is
	// certain.
	mu.Lock()
	defer mu.Unlock()
	last := ""
	for _, in := range offers {
		if strings.HasPrefix(in, last) || strings.HasPrefix("a\nb\nhalf\nmore", in) {
			last = in[strings.IndexByte(in, '\n')+1:]
			continue
		}
		b.Errorf("offered %q after %q was left", in, last)
	}
	if last != "more" {
		b.Errorf("the last offer left %q, want %q; all: %q", last, "more", offers)
	}
}

func noByte(b *bench) {
	ended := make(chan string, 1)
	s := b.serve(&Script{Ended: func(_ *engine.Conn, in []byte) { ended <- string(in) }})
	s.dial().Close()
	if in := receive(b, ended, "Ended"); in != "" {
		b.Errorf("Ended with %q, want nothing", in)
	}
	s.wantClosed(io.EOF)
	if n := s.Counters(); n[engine.Reads] != 0 || n[engine.Writes] != 0 || n[engine.BytesIn] != 0 || n[engine.BytesOut] != 0 {
		b.Errorf("counted %+v for a connection without a byte", n)
	}
}

func whoThePeerIs(b *bench) {
	peers := make(chan string, 1)
	s := b.serve(&Script{
		Opened: func(c *engine.Conn) { c.SetValue("kept") },
		Received: func(c *engine.Conn, in []byte) int {
			if c.Value() != "kept" {
				b.Errorf("Value is %v, want what SetValue was given", c.Value())
			}
			if c.Outbound() {
				b.Error("Outbound is true for a connection that was accepted")
			}
			peers <- c.Peer().String()
			return len(in)
		},
	})
	c := s.dial()
	c.send("x")
	if got, want := receive(b, peers, "Received"), c.LocalAddr().String(); got != want {
		b.Errorf("Peer is %s, want %s", got, want)
	}
}

// manyConnections has more of them than fit in any batch of events, each with
// its own bytes.
func manyConnections(b *bench) {
	const n = 300
	s := b.serve(lines())
	clients := make([]*client, n)
	for i := range clients {
		clients[i] = s.dial()
	}
	name := func(c *client) string { return c.LocalAddr().(*net.TCPAddr).String() + "\n" }
	for range 3 {
		for _, c := range clients {
			c.send(name(c))
		}
		for _, c := range slices.Backward(clients) {
			c.expect(name(c))
		}
	}
	for _, c := range clients {
		c.Close()
	}
	s.wantClosed(slices.Repeat([]error{io.EOF}, n)...)
	if got := s.Counters(); got[engine.Accepted] != n || got[engine.BytesIn] != got[engine.BytesOut] {
		b.Errorf("counted %+v, want %d accepted and as many bytes out as in", got, n)
	}
}

package enginetest

import (
	"io"
	"net"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var inputCases = []testCase{
	{"storm of clients", testRandomClients},
	{"many messages in one segment", testManyMessages},
	{"many connections at once", testManyConnections},
}

func testManyMessages(b *testEnv) {
	s := b.startServer(lines())
	c := s.dial()
	c.exchange("ready\n")
	testkit.WaitFor(b, "the first answer is not counted", func() bool { return s.Counters()[engine.Writes] > 0 })
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

// testManyConnections has more connections than fit into a batch of events, each with different
// bytes.
func testManyConnections(b *testEnv) {
	const n = 300
	s := b.startServer(lines())
	clients := s.dialMany(n)
	name := func(c *client) string { return c.LocalAddr().(*net.TCPAddr).String() + "\n" }
	for range 3 {
		for _, c := range clients {
			c.Send(name(c))
		}
		for _, c := range slices.Backward(clients) {
			c.Expect(name(c))
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

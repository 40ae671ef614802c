package enginetest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

var closeCases = []testCase{
	{"reset while output is owed", testResetWithUnsentOutput},
	{"close with output owed and input unread", testCloseLingers},
	{"client that never closes", testCloseExpires},
	{"close after the client", testCloseAfterPeer},
	{"client that never closes, beside slow handlers", testLingerBesideSlowHandler},
}

func testResetWithUnsentOutput(b *testEnv) {
	const owed = 8 << 20
	s := b.startServer(answerWith(testPattern(owed)), limited(func(l *engine.Limits) { l.MaxUnsent = 3 * owed / 2 }))
	c := s.dial()
	c.shrinkSocketBuffers()
	c.Send("g")
	c.Expect(string(testPattern(1)))
	c.Reset()
	s.wantClosed(syscall.ECONNRESET)
}

// testCloseLingers closes a connection with unread input in the kernel. If the server did not
// linger, the kernel would send a reset, which destroys what the client has not read yet.
func testCloseLingers(b *testEnv) {
	const owed = 6 << 20
	answer := testPattern(owed)
	s := b.startServer(&Script{Received: func(c *engine.Conn, _ []byte) int {
		c.Write(answer)
		c.CloseWith(nil)
		return 1
	}}, limited(func(l *engine.Limits) { l.MaxUnsent = 2 * owed }))
	c := s.dial()
	c.shrinkSocketBuffers()
	more := strings.Repeat("nobody wants this", 1000)
	c.Send("xyz")
	s.wantBytesIn(3)
	c.Send(more)
	c.ExpectEOF(string(answer))
	c.Send(more)
	c.Send(more)
	c.Close()
	s.wantClosed(nil)
}

// testCloseExpires has a client that never closes: Linger ends an orderly close, and CloseTimeout ends one that leaves
// the end to the client.
func testCloseExpires(b *testEnv) {
	const limit = 200 * time.Millisecond
	for _, row := range []struct {
		end    func(c *engine.Conn)
		limit  func(l *engine.Limits)
		reason error
	}{
		{func(c *engine.Conn) { c.CloseWith(nil) }, func(l *engine.Limits) { l.Linger = limit }, nil},
		{func(c *engine.Conn) { c.CloseWaitingForPeerEOF(io.ErrNoProgress) }, func(l *engine.Limits) { l.CloseTimeout = limit }, io.ErrNoProgress},
	} {
		s := b.startServer(&Script{Opened: func(c *engine.Conn) {
			c.WriteString("goodbye")
			row.end(c)
		}}, limited(row.limit))
		begin := time.Now()
		c := s.dial()
		if row.reason == nil {
			c.ExpectEOF("goodbye")
			c.Send("but I stay")
		}
		s.wantClosed(row.reason)
		if took := time.Since(begin); took < limit {
			b.Errorf("closed for %v after %v, the limit is %v", row.reason, took, limit)
		}
		if row.reason != nil {
			c.ExpectEOF("goodbye")
		}
	}
}

// testCloseAfterPeer checks that CloseWaitingForPeerEOF leaves the end to the client, and discards input until then.
func testCloseAfterPeer(b *testEnv) {
	const more = "more that nobody wants"
	closesAfterPeer := func(c *engine.Conn, in []byte) int {
		c.WriteString("goodbye")
		c.CloseWaitingForPeerEOF(io.ErrNoProgress)
		c.CloseWaitingForPeerEOF(nil)
		return 1
	}
	s := b.startServer(&Script{Received: closesAfterPeer}, limited(func(l *engine.Limits) { l.CloseTimeout = time.Minute }))
	c := s.dial()
	c.Send("x")
	c.Expect("goodbye")
	c.Send(more)
	s.wantBytesIn(1 + len(more))
	b.requireNoError(c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		b.Errorf("client: %v before it has closed; expected nothing", err)
	}
	c.Close()
	s.wantClosed(io.ErrNoProgress)
}

func (c *client) sendUntilError() {
	p := bytes.Repeat([]byte("x"), 256<<10)
	for {
		if _, err := c.Write(p); err != nil {
			return
		}
	}
}

// testLingerBesideSlowHandler checks that the linger time ends even if handlers of other connections are slow.
func testLingerBesideSlowHandler(b *testEnv) {
	var over atomic.Bool
	s := b.startServer(&Script{Received: func(c *engine.Conn, in []byte) int {
		switch {
		case in[0] == 'c':
			c.CloseWith(nil)
		case !over.Load():
			time.Sleep(60 * time.Millisecond)
			c.Write(in)
		}
		return len(in)
	}}, limited(func(l *engine.Limits) { l.Linger = 200 * time.Millisecond }))
	for range 2 {
		c := s.dial()
		c.Send("s")
		go io.Copy(c, c)
	}
	s.wantOpened(2)
	s.dial().Send("c")
	s.wantClosed(nil)
	over.Store(true)
}

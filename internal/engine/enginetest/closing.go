package enginetest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

var closeCases = []testCase{
	{"reset while output is owed", testResetWithUnsentOutput},
	{"close in Opened", testCloseInOpened},
	{"close with output owed and input unread", testCloseLingers},
	{"close while paused with input unread", testCloseWhilePaused},
	{"client that never closes", testCloseExpires},
	{"close after the client", testCloseAfterPeer},
	{"clients that flood while the server closes", testCloseFloodingPeer},
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

func testCloseInOpened(b *testEnv) {
	for _, greeting := range []string{"", "sorry, not today\n"} {
		s := b.startServer(&Script{Opened: func(c *engine.Conn) {
			c.WriteString(greeting)
			c.CloseWith(nil)
		}})
		c := s.dial()
		c.ExpectEOF(greeting)
		c.Close()
		s.wantClosed(nil)
	}
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

// testCloseWhilePaused closes from outside while input is held back because of unsent output. The
// client must get a number of whole answers, which depends on the kernel's buffers, and then EOF.
func testCloseWhilePaused(b *testEnv) {
	const owed, requests = 2 << 20, 20
	answer := testPattern(owed)
	s := b.startServer(&Script{Received: func(c *engine.Conn, _ []byte) int {
		c.Write(answer)
		return 1
	}}, limited(func(l *engine.Limits) { l.MaxUnsent = 2 * owed }))
	c := s.dial()
	c.shrinkSocketBuffers()
	c.Send(strings.Repeat("g", requests))
	s.wantBytesIn(requests)
	b.checkNoError(s.wantOpened(1)[0].Close())
	c.Send("more that is never read")
	got, err := io.ReadAll(c)
	if err != nil {
		b.Errorf("client: got %d bytes, then %v instead of the end", len(got), err)
	}
	if n := len(got) / owed; n < 1 || n >= requests {
		b.Errorf("client: got %d bytes, want some answers of %d, less than %d", len(got), owed, requests)
	} else if err := compareBytes(got, bytes.Repeat(answer, n)); err != nil {
		b.Error(err)
	}
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
		{func(c *engine.Conn) { c.CloseAfterPeerEOF(io.ErrNoProgress) }, func(l *engine.Limits) { l.CloseTimeout = limit }, io.ErrNoProgress},
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

// testCloseAfterPeer checks that CloseAfterPeerEOF leaves the end to the client, and discards input until then.
func testCloseAfterPeer(b *testEnv) {
	const more = "more that nobody wants"
	closesAfterPeer := func(c *engine.Conn, in []byte) int {
		c.WriteString("goodbye")
		c.CloseAfterPeerEOF(io.ErrNoProgress)
		c.CloseAfterPeerEOF(nil)
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

// testCloseFloodingPeer checks that peers that keep sending do not extend the linger time.
func testCloseFloodingPeer(b *testEnv) {
	const n = 16
	s := b.startServer(&Script{Received: func(c *engine.Conn, in []byte) int {
		c.CloseWith(nil)
		return len(in)
	}}, limited(func(l *engine.Limits) { l.Linger = 100 * time.Millisecond }))
	for range n {
		go s.dial().sendUntilError()
	}
	s.wantClosed(slices.Repeat([]error{nil}, n)...)
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

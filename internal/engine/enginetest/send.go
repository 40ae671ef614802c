package enginetest

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var mailCases = []testCase{
	{"Send from ten goroutines", func(b *testEnv) {
		testConcurrentSend(b, func(r engine.Ref) func([]byte) error { return r.Send }, func(l *engine.Limits) { l.MaxMail = 64 })
	}},
	{"Send while the client half-closes", testSendAtHalfClose},
	{"mail while both directions end", testSendAtBothEnds},
	{"Nudge, Send and Close from outside", testCloseByRef},
}

const senders = 10

// retryWhileFull calls send until there is room.
func retryWhileFull(send func() error) error {
	for {
		if err := send(); !errors.Is(err, engine.ErrFull) {
			return err
		}
		runtime.Gosched()
	}
}

// sendNumbered sends n messages "sender:number" from each of ten goroutines until ErrClosed. It
// returns how many were accepted of each.
func sendNumbered(b *testEnv, n int, send func([]byte) error) (accepted []int) {
	accepted = make([]int, senders)
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for accepted[s] < n {
				message := fmt.Appendf(nil, "%d:%d\n", s, accepted[s])
				if err := retryWhileFull(func() error { return send(message) }); errors.Is(err, engine.ErrClosed) {
					return
				} else if err != nil {
					b.Errorf("Send: %v", err)
					return
				}
				accepted[s]++
			}
		})
	}
	wg.Wait()
	return accepted
}

// checkReceivedNumbers checks that a client received each sender's messages in order.
func checkReceivedNumbers(b *testEnv, got string, accepted []int) {
	b.Helper()
	next := make([]int, senders)
	for line := range strings.Lines(got) {
		var s, i int
		if _, err := fmt.Sscanf(line, "%d:%d\n", &s, &i); err != nil || s < 0 || s >= senders {
			b.Fatalf("client: got line %q: %v", line, err)
		}
		if i != next[s] {
			b.Fatalf("client: got message %d of sender %d when %d was due", i, s, next[s])
		}
		next[s]++
	}
	for s := range senders {
		if next[s] != accepted[s] {
			b.Errorf("client: got %d messages of sender %d, %d were accepted", next[s], s, accepted[s])
		}
	}
}

// testConcurrentSend sends from ten goroutines under small limits.
func testConcurrentSend(b *testEnv, sends func(r engine.Ref) func([]byte) error, limits func(l *engine.Limits)) {
	const each = 300
	s := b.startServer(&Script{}, limited(limits))
	c := s.dial()
	r := s.wantOpened(1)[0]
	got := readAllInBackground(c)
	sendNumbered(b, each, sends(r))
	c.CloseWrite()
	checkReceivedNumbers(b, testkit.Receive(b, got, "the end of the connection"), slices.Repeat([]int{each}, senders))
	s.wantClosed(io.EOF)
}

// testSendAtHalfClose posts messages during an orderly close: what was accepted must arrive.
func testSendAtHalfClose(b *testEnv) {
	s := b.startServer(&Script{})
	for i := range 20 {
		c := s.dial()
		r := s.wantOpened(i + 1)[i]
		got := readAllInBackground(c)
		go c.CloseWrite()
		accepted := sendNumbered(b, 1<<30, r.Send)
		checkReceivedNumbers(b, testkit.Receive(b, got, "the end of the connection"), accepted)
	}
}

// testSendAtBothEnds posts a message after the last output was sent and before the connection is
// closed, which must not cause a reset.
func testSendAtBothEnds(b *testEnv) {
	const conns = 40
	s := b.startServer(&Script{Ended: func(c *engine.Conn, _ []byte) { c.CloseWrite() }})
	for i := range conns {
		c := s.dial()
		r := s.wantOpened(i + 1)[i]
		var wg sync.WaitGroup
		wg.Go(func() {
			for r.Nudge() == nil {
				runtime.Gosched()
			}
		})
		c.CloseWrite()
		c.ExpectEOF("")
		wg.Wait()
	}
	s.wantClosed(slices.Repeat([]error{io.EOF}, conns)...)
}

func testCloseByRef(b *testEnv) {
	s := b.startServer(&Script{Nudged: func(c *engine.Conn) { c.WriteString("awake") }})
	c := s.dial()
	r := s.wantOpened(1)[0]
	for range 3 {
		b.checkNoError(r.Nudge())
		c.Expect("awake")
	}
	b.checkNoError(r.Send([]byte("goodbye")))
	b.checkNoError(r.Close())
	c.ExpectEOF("goodbye")
	c.Close()
	s.wantClosed(nil)
}

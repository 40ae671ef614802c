package uring

import (
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// Sends caused by mail complete in the next turn, whatever their number: otherwise each would hold a buffer
// while more mail is delivered.
func TestSendsCompleteInNextTurn(t *testing.T) {
	const n = 4 * completionsPerTurn
	var (
		refs    []engine.Ref
		left    = make(chan int, 1)
		blocked = make(chan struct{})
		release = make(chan struct{})
		opened  = make(chan struct{}, n)
		nudges  int
	)
	h := &handler{}
	h.opened = func(c *engine.Conn) {
		refs = append(refs, c.Ref())
		opened <- struct{}{}
	}
	h.received = func([]byte) {
		close(blocked)
		<-release
	}
	h.nudged = func(c *engine.Conn) {
		switch nudges++; {
		case nudges < n:
			c.Write([]byte("x"))
		case nudges == n: // one more, which comes a turn later
			c.Write([]byte("x"))
			if err := c.Ref().Nudge(); err != nil {
				t.Errorf("Nudge: %v", err)
			}
		default:
			left <- h.countConnsWith(sending)
		}
	}
	e := startTestEngine(t, h)
	first := dialEngine(t, e)
	for range n - 1 {
		dialEngine(t, e)
	}
	for range n {
		testkit.Receive(t, opened, "Opened")
	}
	first.Write([]byte("block"))
	testkit.Receive(t, blocked, "Received")
	for _, r := range refs { // the loop no longer appends to it
		if err := r.Nudge(); err != nil {
			t.Errorf("Nudge: %v", err)
		}
	}
	close(release)
	if got := testkit.Receive(t, left, "the nudge of the next turn"); got > completionsPerTurn {
		t.Errorf("%d of %d sends are under way a turn later", got, n)
	}
}

// countConnsWith counts connections with one of the operations in progress. It must run on the loop.
func (h *handler) countConnsWith(ops uint16) (n int) {
	h.driver.loop.ForEachConn(func(c *engine.Conn) {
		if c.DriverFlags()&ops != 0 {
			n++
		}
	})
	return n
}

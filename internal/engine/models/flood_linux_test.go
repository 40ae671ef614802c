package models_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/enginetest"
	"github.com/myriad-go/myriad/internal/testkit"
)

// flooder has one connection on each of two loops. For each byte of input it sends to the other
// loop's connection until that has no space, while the other loop does the same.
type flooder struct {
	echo
	t        *testing.T
	engine   engine.Engine
	most     int // bytes that may wait for a loop
	opened   chan engine.Ref
	start    chan struct{} // closed when to is filled in
	meet     chan struct{}
	to       [2]engine.Ref // by loop
	accepted [2]int        // messages, by the loop that they are for
}

// floodPiece is the size of its messages, each of one letter.
const floodPiece = 4 << 10

func floodMessage(n int) []byte { return bytes.Repeat([]byte{byte('a' + n%26)}, floodPiece) }

func (h *flooder) Opened(c *engine.Conn) { h.opened <- c.Ref() }

func (h *flooder) Received(c *engine.Conn, in []byte) int {
	<-h.start
	h.awaitOtherLoop()
	other, sent := 1-c.LoopIndex(), 0
	var err error
	for ; err == nil; sent++ {
		if err = h.to[other].Send(floodMessage(h.accepted[other])); err != nil {
			break
		}
		h.accepted[other]++
	}
	if n := sent * floodPiece; !errors.Is(err, engine.ErrFull) || n > h.most {
		h.t.Errorf("%d bytes were accepted for a loop that takes no mail, then %v; want up to %d, and %v", n, err, h.most, engine.ErrFull)
	}
	if err := h.to[other].SendWait(context.Background(), in); !errors.Is(err, engine.ErrOnLoop) {
		h.t.Errorf("SendWait on a loop: %v, want %v", err, engine.ErrOnLoop)
	}
	h.awaitOtherLoop()
	outputs := 2 * int64(c.Limits().MaxUnsent) // of what the clients have not read, and is posted
	if n := h.engine.Counters()[engine.Buffered]; n < int64(h.most) || n > outputs+8*int64(h.most) {
		h.t.Errorf("%d bytes are counted while up to %d wait for each of two loops", n, h.most)
	}
	h.awaitOtherLoop()
	c.YieldInput() // the other loop's mail is next
	return 1
}

// awaitOtherLoop waits until the other loop is here, too.
func (h *flooder) awaitOtherLoop() {
	select {
	case h.meet <- struct{}{}:
	case <-h.meet:
	}
}

// TestLoopsFloodEachOther checks that handlers of two loops that flood each other do not block,
// that each is told when there is no space, that memory is limited, and that all accepted messages
// arrive in order.
func TestLoopsFloodEachOther(t *testing.T) {
	const rounds = 50
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		h := &flooder{t: t, most: 256 << 10, opened: make(chan engine.Ref), start: make(chan struct{}), meet: make(chan struct{})}
		limits := enginetest.Limits()
		limits.MaxMailBytes = h.most
		e := startEngineWithLimits(t, m, engine.Config{Addr: "127.0.0.1:0", Handler: h, Limits: limits, Loops: 2})
		h.engine = e
		var conns [2]*testkit.Conn
		for conns[0] == nil || conns[1] == nil {
			c := dial(t, e)
			r := testkit.Receive(t, h.opened, "a connection")
			if loop, _, _ := r.Location(); conns[loop] == nil {
				conns[loop], h.to[loop] = c, r
			} else {
				c.Close() // and another one
			}
		}
		close(h.start)
		ends, got := make(chan error, len(conns)), [2]int{}
		for i, c := range conns {
			c.Send(string(make([]byte, rounds)))
			c.CloseWrite() // its input comes before its end
			go func() {
				var err error
				piece := make([]byte, floodPiece)
				for ; err == nil; got[i]++ {
					if _, err = io.ReadFull(c, piece); err != nil {
						break
					}
					if want := floodMessage(got[i]); !bytes.Equal(piece, want) {
						err = fmt.Errorf("message %d of %q, want %q", got[i], piece[:1], want[:1])
					}
				}
				ends <- fmt.Errorf("client of loop %d: %w", i, err)
			}()
		}
		for range conns {
			if err := testkit.Receive(t, ends, "the end of the flood"); !errors.Is(err, io.EOF) {
				t.Error(err)
			}
		}
		testkit.WaitFor(t, "mail is counted when all of it is sent", func() bool { return e.Counters()[engine.Buffered] == 0 })
		if got != h.accepted {
			t.Errorf("the clients have got %d messages, %d were accepted", got, h.accepted)
		}
	})
}

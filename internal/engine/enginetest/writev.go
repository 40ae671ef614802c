package enginetest

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

const (
	bodySize = 100 << 10
	bodies   = 30
	notes    = 200
)

// frameHead returns a header with a kind and a length.
func frameHead(kind byte, n int) []byte {
	return binary.BigEndian.AppendUint32([]byte{kind}, uint32(n))
}

// writeHeadAndBody answers a byte with a head and a body, in one of several ways.
func writeHeadAndBody(c *engine.Conn, i int, body []byte) (err error) {
	head := frameHead('b', len(body))
	switch i % 4 {
	case 0:
		c.WriteString(string(head))
		_, err = c.Write(body)
	case 1:
		_, err = c.Writev(head, body[:10], nil, body[10:])
	case 2:
		_, err = c.Write(append(head, body...))
	case 3:
		c.Write(head)
		c.Write(body[:len(body)/2])
		c.Write(body[len(body)/2 : len(body)/2+1])
		_, err = c.Write(body[len(body)/2+1:])
	}
	return err
}

// testHeadsAndBodies sends large answers and posted messages to two clients, one of which reads
// slowly.
func testHeadsAndBodies(b *testEnv, encrypted bool) {
	body := testPattern(bodySize)
	refs := make(chan engine.Ref, 2)
	s := b.startServer(&Script{
		Opened: func(c *engine.Conn) { refs <- c.Ref() },
		Received: func(c *engine.Conn, in []byte) int {
			for i := range in {
				if c.IsPaused() {
					return i
				}
				n, _ := c.Value().(int)
				c.SetValue(n + 1)
				if err := writeHeadAndBody(c, n, body[n:]); err != nil {
					b.Errorf("answer %d: %v", n, err)
				}
			}
			return len(in)
		},
	}, b.withLayers(false, encrypted), limited(func(l *engine.Limits) { l.MaxUnsent, l.HighWater, l.LowWater = 4<<20, 300<<10, 100<<10 }))
	done := make(chan error, 4)
	for i := range 2 {
		slow := i == 1
		stream := s.dialStream(encrypted, slow)
		ref := testkit.Receive(b, refs, "Opened")
		go func() { done <- sendSmallMessages(ref) }()
		go func() { done <- readAndCheckFrames(stream, body, slow) }()
		if _, err := stream.Write(make([]byte, bodies)); err != nil {
			b.Fatal(err)
		}
	}
	for range 4 {
		b.checkNoError(testkit.Receive(b, done, "all frames"))
	}
}

// sendSmallMessages posts numbered messages.
func sendSmallMessages(ref engine.Ref) error {
	for i := range notes {
		note := binary.BigEndian.AppendUint32(frameHead('n', 4), uint32(i))
		send := func() error { return ref.Send(note) }
		if i%2 == 0 {
			send = func() error { return ref.Sendv([][]byte{note[:5], note[5:]}) }
		}
		if err := retryWhileFull(send); err != nil {
			return fmt.Errorf("note %d: %w", i, err)
		}
	}
	return nil
}

// readAndCheckFrames reads all answers and messages, and checks their order and content.
func readAndCheckFrames(r io.Reader, body []byte, slow bool) error {
	got, head := map[byte]int{}, make([]byte, 5)
	for got['b']+got['n'] < bodies+notes {
		if _, err := io.ReadFull(r, head); err != nil {
			return fmt.Errorf("after %v: %w", got, err)
		}
		if slow {
			time.Sleep(100 * time.Microsecond)
		}
		p := make([]byte, min(binary.BigEndian.Uint32(head[1:]), bodySize))
		if _, err := io.ReadFull(r, p); err != nil {
			return fmt.Errorf("after %v: %w", got, err)
		}
		i := got[head[0]]
		want := body[min(i, len(body)):]
		if head[0] == 'n' {
			want = binary.BigEndian.AppendUint32(nil, uint32(i))
		}
		if err := compareBytes(p, want); err != nil {
			return fmt.Errorf("%c%d: %w", head[0], i, err)
		}
		got[head[0]]++
	}
	return nil
}

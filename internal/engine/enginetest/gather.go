package enginetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

var gatherCases = []testCase{
	{"head and body to slow readers, with Send from outside", headAndBody},
	{"head and body with TLS", func(b *bench) { headsAndBodies(b, true) }},
	{"Writev takes all or nothing", writevWhole},
}

func headAndBody(b *bench) { headsAndBodies(b, false) }

const (
	bodySize = 100 << 10
	bodies   = 30
	notes    = 200
)

// frame is a header of a kind and a length.
func frameHead(kind byte, n int) []byte {
	return binary.BigEndian.AppendUint32([]byte{kind}, uint32(n))
}

// answerBody answers a byte with a head and a body, in one of the ways there are.
func answerBody(c *engine.Conn, i int, body []byte) (err error) {
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

// headsAndBodies has two clients, one of which reads slowly, get large answers, and
// notes from outside between them.
func headsAndBodies(b *bench, encrypted bool) {
	body := pattern(bodySize)
	refs := make(chan engine.Ref, 2)
	s := b.serve(&Script{
		Opened: func(c *engine.Conn) { refs <- c.Ref() },
		Received: func(c *engine.Conn, in []byte) int {
			for i := range in {
				if c.Paused() {
					return i
				}
				n, _ := c.Value().(int)
				c.SetValue(n + 1)
				if err := answerBody(c, n, body[n:]); err != nil {
					b.Errorf("answer %d: %v", n, err)
				}
			}
			return len(in)
		},
	}, b.layered(false, encrypted), limited(func(l *engine.Limits) { l.MaxUnsent, l.HighWater, l.LowWater = 4<<20, 300<<10, 100<<10 }))
	done := make(chan error, 4)
	for i := range 2 {
		c := s.dial()
		var stream io.ReadWriter = c
		slow := i == 1
		if slow {
			c.smallBuffers()
		}
		if encrypted {
			t, err := c.encrypt(clientTLS())
			if err != nil {
				b.Fatal(err)
			}
			stream = t
		}
		ref := receive(b, refs, "Opened")
		go func() { done <- sendNotes(ref) }()
		go func() { done <- readFrames(stream, body, slow) }()
		if _, err := stream.Write(make([]byte, bodies)); err != nil {
			b.Fatal(err)
		}
	}
	for range 4 {
		if err := receive(b, done, "all frames"); err != nil {
			b.Error(err)
		}
	}
}

// sendNotes sends numbered notes from outside.
func sendNotes(ref engine.Ref) error {
	for i := range notes {
		note := binary.BigEndian.AppendUint32(frameHead('n', 4), uint32(i))
		for {
			send := func() error { return ref.Send(note) }
			if i%2 == 0 {
				send = func() error { return ref.Sendv([][]byte{note[:5], note[5:]}) }
			}
			err := send()
			if err == nil {
				break
			}
			if !errors.Is(err, engine.ErrFull) {
				return fmt.Errorf("note %d: %w", i, err)
			}
			runtime.Gosched()
		}
	}
	return nil
}

// readFrames reads all answers and notes, and checks their order and bytes.
func readFrames(r io.Reader, body []byte, slow bool) error {
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
		if err := compare(p, want); err != nil {
			return fmt.Errorf("%c%d: %w", head[0], i, err)
		}
		got[head[0]]++
	}
	return nil
}

// writevWhole writes until there is no room, to a client that does not read.
func writevWhole(b *bench) {
	const unsent, size = 64 << 10, 20 << 10
	var taken, refused atomic.Int64
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		if n, err := c.Writev(make([]byte, unsent), []byte{1}); n != 0 || err != engine.ErrTooLarge {
			b.Errorf("Writev of %d bytes: %d, %v; want 0, %v", unsent+1, n, err, engine.ErrTooLarge)
		}
		for range 10 { // more than MaxUnsent, whatever the kernel takes meanwhile
			p := bytes.Repeat([]byte{byte(taken.Load())}, size/2)
			switch n, err := c.Writev(slices.Repeat([][]byte{p}, 2)...); {
			case err == nil && n == size:
				taken.Add(1)
			case n == 0 && err == engine.ErrFull:
				refused.Add(1)
			default:
				b.Errorf("Writev: %d, %v", n, err)
			}
		}
		many := slices.Repeat([][]byte{[]byte("many")}, 1000)
		if n, err := c.Writev(many...); (n != 4000 || err != nil) && (n != 0 || err != engine.ErrFull) {
			b.Errorf("Writev of 1000 pieces: %d, %v", n, err)
		} else if err == nil {
			c.Writev() // and nothing
		}
		c.CloseWith(nil)
		return len(in)
	}}, limited(func(l *engine.Limits) { l.MaxUnsent = unsent }), func(cfg *engine.Config) { cfg.DropMessages = true })
	c := s.dial()
	c.send("x")
	got, err := io.ReadAll(c)
	if err != nil {
		b.Errorf("client: %v", err)
	}
	c.Close()
	s.wantClosed(nil)
	if taken.Load() != unsent/size || refused.Load() != 10-unsent/size {
		b.Errorf("%d were taken and %d refused, want %d and %d", taken.Load(), refused.Load(), unsent/size, 10-unsent/size)
	}
	var want []byte
	for i := range int(taken.Load()) {
		want = append(want, bytes.Repeat([]byte{byte(i)}, size)...)
	}
	want = append(want, bytes.Repeat([]byte("many"), 1000)...)
	if err := compare(got, want); err != nil {
		b.Error(err)
	}
}

package supervisor

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

const (
	// maxRelayed is the longest message of a broadcast, in bytes.
	maxRelayed = 1 << 20
	// maxWaiting is how many broadcasts may wait for a life-line, or in the
	// supervisor.
	maxWaiting = 64
	// writeTimeout bounds a write to a life-line. Who reads there rests for
	// lineTimeout at most.
	writeTimeout = 10 * lineTimeout
	// headSize is what stands before a message: what it is, and its length.
	headSize = 5
)

// broadcastFrame is a message as it goes over life-lines.
func broadcastFrame(p []byte) ([]byte, error) {
	if len(p) > maxRelayed {
		return nil, fmt.Errorf("%w: %d bytes for all worker processes, expected at most %d", engine.ErrTooLarge, len(p), maxRelayed)
	}
	return frameOf(carries, p), nil
}

// frameOf puts a head before what is to go over a life-line.
func frameOf(what byte, p []byte) []byte {
	frame := make([]byte, headSize, headSize+len(p))
	frame[0] = what
	binary.BigEndian.PutUint32(frame[1:], uint32(len(p)))
	return append(frame, p...)
}

// hear reads what comes next over a life-line: what it is, and for a broadcast or a
// command its frame.
func hear(r *bufio.Reader) (what byte, frame []byte, err error) {
	head, err := r.Peek(1)
	if err != nil {
		return 0, nil, err
	}
	if what = head[0]; what != carries && what != commands {
		_, err = r.Discard(1)
		return what, nil, err
	}
	if head, err = r.Peek(headSize); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > maxRelayed || what == commands && size == 0 {
		return 0, nil, fmt.Errorf("life-line: a frame of %d bytes, expected at most %d, and some", size, maxRelayed)
	}
	frame = make([]byte, headSize+size)
	_, err = io.ReadFull(r, frame)
	return what, frame, err
}

// outbox is what waits to be written to a life-line. One goroutine writes, in the
// order of put, but what is urgent first; its methods are safe for concurrent use.
type outbox struct {
	line    *net.UnixConn
	queue   chan []byte
	urgent  chan []byte
	closing chan struct{}
	close   func() // closes closing, once
}

func newOutbox(line *net.UnixConn) *outbox {
	o := &outbox{line: line, queue: make(chan []byte, maxWaiting), urgent: make(chan []byte, 1), closing: make(chan struct{})}
	o.close = sync.OnceFunc(func() { close(o.closing) })
	return o
}

// put leaves something to be written. Where there is no room it waits for it so
// long, and then answers engine.ErrFull; and engine.ErrClosed after close.
func (o *outbox) put(what []byte, most time.Duration) error {
	if closed(o.closing) {
		return engine.ErrClosed
	}
	select {
	case o.queue <- what:
		return nil
	default:
	}
	if most == 0 {
		return engine.ErrFull
	}
	late := time.NewTimer(most)
	defer late.Stop()
	select {
	case o.queue <- what:
		if closed(o.closing) {
			return engine.ErrClosed // it may have come too late
		}
		return nil
	case <-o.closing:
		return engine.ErrClosed
	case <-late.C:
		return engine.ErrFull
	}
}

// hurry leaves something to be written before all that waits. It is called once.
func (o *outbox) hurry(what []byte) { o.urgent <- what }

// write writes until close, and then what is left. When something can't be
// written it closes the outbox: nobody would understand what comes after it.
func (o *outbox) write() {
	defer o.close()
	for {
		var what []byte
		select {
		case what = <-o.urgent:
		default:
			select {
			case what = <-o.urgent:
			case what = <-o.queue:
			case <-o.closing:
				for len(o.queue) > 0 && o.send(<-o.queue) {
				}
				return
			}
		}
		if !o.send(what) {
			return
		}
	}
}

func (o *outbox) send(what []byte) bool {
	_ = o.line.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := o.line.Write(what)
	return err == nil
}

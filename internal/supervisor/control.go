package supervisor

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// What goes over a control socket are frames: a byte of these, 4 bytes of length
// (big-endian), and the content.
const (
	kindServing   = 's' // from the worker
	kindDrain     = 'd' // from the supervisor
	kindBroadcast = 'b' // either way, like an operator's commands:
	kindPause     = 'p' // accept nothing
	kindResume    = 'r'
	kindExpel     = 'x' // an address and port, as netip.AddrPort marshals them
)

const (
	// maxBroadcast is the longest message of a broadcast, in bytes.
	maxBroadcast = 1 << 20
	// maxWaiting is how many messages may wait for a control socket, or in the
	// supervisor.
	maxWaiting = 64
	// controlTimeout bounds what should be done at once.
	controlTimeout = time.Second
	// writeTimeout bounds a write to a control socket. The reader is busy for
	// controlTimeout at most.
	writeTimeout = 10 * controlTimeout
	// headSize is the length of a frame's head.
	headSize = 5
)

func newFrame(kind byte, content []byte) []byte {
	frame := make([]byte, headSize, headSize+len(content))
	frame[0] = kind
	binary.BigEndian.PutUint32(frame[1:], uint32(len(content)))
	return append(frame, content...)
}

func broadcastFrame(p []byte) ([]byte, error) {
	if len(p) > maxBroadcast {
		return nil, fmt.Errorf("%w: %d bytes for all worker processes, expected at most %d", engine.ErrTooLarge, len(p), maxBroadcast)
	}
	return newFrame(kindBroadcast, p), nil
}

func holdFrame(on bool) []byte {
	if on {
		return newFrame(kindPause, nil)
	}
	return newFrame(kindResume, nil)
}

func expelFrame(peer netip.AddrPort) []byte {
	at, _ := peer.MarshalBinary() // which can't fail
	return newFrame(kindExpel, at)
}

// receive reads a frame.
func receive(r io.Reader) (frame []byte, err error) {
	frame = make([]byte, headSize)
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(frame[1:])
	if size > maxBroadcast {
		return nil, fmt.Errorf("control socket: a frame is %d bytes; expected at most %d", size, maxBroadcast)
	}
	frame = append(frame, make([]byte, size)...)
	_, err = io.ReadFull(r, frame[headSize:])
	return frame, err
}

// outbox holds what waits to be written to a control socket. One goroutine writes, in
// the order of put, but the urgent message first. Its methods are safe for concurrent
// use.
type outbox struct {
	socket  *net.UnixConn
	queue   chan []byte
	urgent  chan []byte
	closing chan struct{}
	close   func() // closes closing, once
}

func newOutbox(socket *net.UnixConn) *outbox {
	o := &outbox{socket: socket, queue: make(chan []byte, maxWaiting), urgent: make(chan []byte, 1), closing: make(chan struct{})}
	o.close = sync.OnceFunc(func() { close(o.closing) })
	return o
}

// put queues a message. It waits for room up to a bound, and then returns
// engine.ErrFull; after close it returns engine.ErrClosed.
func (o *outbox) put(message []byte, bound time.Duration) error {
	if closed(o.closing) {
		return engine.ErrClosed
	}
	select {
	case o.queue <- message:
		return nil
	default:
	}
	if bound == 0 {
		return engine.ErrFull
	}
	late := time.NewTimer(bound)
	defer late.Stop()
	select {
	case o.queue <- message:
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

// putUrgent queues a message before all others. It is called once.
func (o *outbox) putUrgent(message []byte) { o.urgent <- message }

// write writes until close, and then what is left. When a write fails it closes the
// outbox: the reader would not understand what comes after it.
func (o *outbox) write() {
	defer o.close()
	for {
		var message []byte
		select {
		case message = <-o.urgent:
		default:
			select {
			case message = <-o.urgent:
			case message = <-o.queue:
			case <-o.closing:
				for len(o.queue) > 0 && o.send(<-o.queue) {
				}
				return
			}
		}
		if !o.send(message) {
			return
		}
	}
}

func (o *outbox) send(message []byte) bool {
	_ = o.socket.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := o.socket.Write(message)
	return err == nil
}

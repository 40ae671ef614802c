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

// Kinds of control frames. A frame consists of its kind (1 byte), the length of its payload (4 bytes) and the payload.
const (
	kindServing   = 's' // from the worker
	kindDrain     = 'd' // from the supervisor
	kindBroadcast = 'b' // in both directions, as are the operator's commands below
	kindPause     = 'p' // stop accepting
	kindResume    = 'r'
	kindExpel     = 'x' // payload: a netip.AddrPort in binary form
)

const (
	maxBroadcast = 1 << 20
	// maxQueuedMessages is the queue length of an outbox and of the supervisor's relay.
	maxQueuedMessages = 64
	// controlTimeout limits operations that normally complete immediately.
	controlTimeout = time.Second
	// writeTimeout limits a write to a control socket, whose reader may be busy for controlTimeout.
	writeTimeout    = 10 * controlTimeout
	frameHeaderSize = 5
)

func encodeFrame(kind byte, payload []byte) []byte {
	frame := make([]byte, frameHeaderSize, frameHeaderSize+len(payload))
	frame[0] = kind
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload)))
	return append(frame, payload...)
}

func encodeBroadcast(message []byte) ([]byte, error) {
	if len(message) > maxBroadcast {
		return nil, engine.TooLargeErrorf("myriad: Broadcast of %d bytes to all worker processes; expected at most %d", len(message), maxBroadcast)
	}
	return encodeFrame(kindBroadcast, message), nil
}

func encodePauseOrResumeAccept(paused bool) []byte {
	if paused {
		return encodeFrame(kindPause, nil)
	}
	return encodeFrame(kindResume, nil)
}

func encodeClosePeerConns(peer netip.AddrPort) []byte {
	payload, _ := peer.MarshalBinary() // cannot fail
	return encodeFrame(kindExpel, payload)
}

func readFrameWithHeader(r io.Reader) (frame []byte, err error) {
	frame = make([]byte, frameHeaderSize)
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(frame[1:])
	if size > maxBroadcast {
		return nil, fmt.Errorf("control socket: a frame is %d bytes; expected at most %d", size, maxBroadcast)
	}
	frame = append(frame, make([]byte, size)...)
	_, err = io.ReadFull(r, frame[frameHeaderSize:])
	return frame, err
}

// outbox is the send queue of a control socket. It is safe for concurrent use.
type outbox struct {
	socket  *net.UnixConn
	queue   chan []byte
	urgent  chan []byte
	closing chan struct{}
	close   func()
}

func newUnstartedOutbox(socket *net.UnixConn) *outbox {
	o := &outbox{socket: socket, queue: make(chan []byte, maxQueuedMessages), urgent: make(chan []byte, 1), closing: make(chan struct{})}
	o.close = sync.OnceFunc(func() { close(o.closing) })
	return o
}

// enqueue adds a message to the queue. If the queue is full, enqueue waits for space. If there is still no space after
// timeout, it returns engine.ErrFull.
func (o *outbox) enqueue(message []byte, timeout time.Duration) error {
	if isClosed(o.closing) {
		return engine.ErrClosed
	}
	select {
	case o.queue <- message:
		return nil
	default:
	}
	if timeout == 0 {
		return engine.ErrFull
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case o.queue <- message:
		if isClosed(o.closing) {
			return engine.ErrClosed // the message may have missed the final flush
		}
		return nil
	case <-o.closing:
		return engine.ErrClosed
	case <-timer.C:
		return engine.ErrFull
	}
}

// enqueueUrgent adds a message that is sent before all messages in the queue. It may be called only once.
func (o *outbox) enqueueUrgent(message []byte) { o.urgent <- message }

func (o *outbox) writeUntilClosedAndDrained() {
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
				for len(o.queue) > 0 && o.writeMessage(<-o.queue) {
				}
				return
			}
		}
		if !o.writeMessage(message) {
			return
		}
	}
}

func (o *outbox) writeMessage(message []byte) (written bool) {
	_ = o.socket.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := o.socket.Write(message)
	return err == nil
}

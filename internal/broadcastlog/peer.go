package broadcastlog

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A link is a stream of frames both ways: a byte that says what it is, and for messages the kind, as
// a varint, and group and bytes, each behind its length. Counters have bytes alone.
const (
	frameMessage byte = iota + 1
	frameAll
	frameResumed // what was held has come
	frameCounters
)

// MaxGroupName is the most bytes of a group's name.
const MaxGroupName = 1 << 20

const (
	maxFrame = 1 << 30
	// closeTimeout bounds how long what is unsent may take at the end.
	closeTimeout = time.Second
)

// Peer takes messages from one process to another. One goroutine of its own writes; who made it
// calls Receive on another one.
type Peer struct {
	conn net.Conn
	// closeWhenFull says that a link that does not take what is published is given up. Otherwise
	// publishers are refused.
	closeWhenFull bool
	maxPending    int // the most bytes that wait, but for one message

	writer  sync.WaitGroup
	mu      sync.Mutex
	changed sync.Cond
	pending []byte
	closed  bool // nothing more is sent
}

// NewPeer makes a link of a socket, of which it takes a copy. At most max bytes wait, but for one
// message. If it may miss messages, it ends when there are more; otherwise who publishes is refused.
func NewPeer(socket *os.File, maxPending int, closeWhenFull bool) (*Peer, error) {
	conn, err := net.FileConn(socket)
	if err != nil {
		return nil, fmt.Errorf("a link for broadcasts: %w", err)
	}
	l := &Peer{conn: conn, maxPending: maxPending, closeWhenFull: closeWhenFull}
	l.changed.L = &l.mu
	l.writer.Go(l.writePending)
	return l, nil
}

// writePending sends what there is until the end.
func (l *Peer) writePending() {
	l.mu.Lock()
	defer l.mu.Unlock()
	var spare []byte
	for {
		for len(l.pending) == 0 && !l.closed {
			l.changed.Wait()
		}
		if len(l.pending) == 0 {
			return
		}
		out := l.pending
		l.pending = spare[:0]
		l.changed.Broadcast()
		l.mu.Unlock()
		_, err := l.conn.Write(out)
		l.mu.Lock()
		if err != nil {
			l.stopSending()
		}
		if spare = nil; cap(out) <= 1<<16 {
			spare = out
		}
	}
}

// stopSending has nothing more sent; the lock is held.
func (l *Peer) stopSending() {
	l.closed, l.pending = true, nil
	l.changed.Broadcast()
}

// hasSpace says whether a message could be sent now, or never will be.
func (l *Peer) hasSpace(m Broadcast) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed || l.fits(m)
}

func (l *Peer) fits(m Broadcast) bool {
	return len(l.pending) == 0 || len(l.pending)+m.queueSize() <= l.maxPending
}

// enqueueBroadcast sends a message. A link that may miss some ends where there is no room. Of others who
// publishes has asked for room before, and several may have found the same; who delivers what was
// accepted before waits.
func (l *Peer) enqueueBroadcast(m Broadcast, wait bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && !l.fits(m) {
		if l.closeWhenFull {
			l.abortLocked()
		} else if wait {
			l.changed.Wait()
		} else {
			break
		}
	}
	if l.closed {
		return
	}
	l.pending = m.appendFrame(l.pending)
	l.changed.Broadcast()
}

// Abort ends the link at once.
func (l *Peer) Abort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.abortLocked()
}

// abortLocked does so with the lock held. Receive ends, here and on the other side.
func (l *Peer) abortLocked() {
	l.stopSending()
	_ = l.conn.Close()
}

// SendCounters sends counts, the last thing that the other side hears.
func (l *Peer) SendCounters(p []byte) { l.enqueueFrame(frameCounters, p) }

func (l *Peer) enqueueFrame(kind byte, payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.pending = append(l.pending, kind)
	if kind == frameCounters {
		l.pending = append(binary.AppendUvarint(l.pending, uint64(len(payload))), payload...)
	}
	l.changed.Broadcast()
}

// Close ends the link when what is unsent has been sent, which has a second. Receive ends.
func (l *Peer) Close() {
	l.mu.Lock()
	l.closed = true
	l.changed.Broadcast()
	l.mu.Unlock()
	_ = l.conn.SetWriteDeadline(time.Now().Add(closeTimeout)) // a closed one does not write
	l.writer.Wait()
	_ = l.conn.Close()
}

func (m Broadcast) appendFrame(to []byte) []byte {
	if m.All {
		to = append(to, frameAll)
	} else {
		to = binary.AppendUvarint(append(to, frameMessage), uint64(m.Kind))
		to = append(binary.AppendUvarint(to, uint64(len(m.Group))), m.Group...)
	}
	return append(binary.AppendUvarint(to, uint64(len(m.Message))), m.Message...)
}

// FrameHandler is what becomes of what a link brings.
type FrameHandler struct {
	OnBroadcast func(Broadcast)
	OnResumed   func() // the other side holds nothing any more
	OnCounters  func(p []byte)
}

// ReceiveFrames receives until the link ends, in order or not.
func (l *Peer) ReceiveFrames(handler FrameHandler) error {
	in := bufio.NewReaderSize(l.conn, 1<<16)
	for {
		word, err := in.ReadByte()
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
				err = nil
			}
			return err
		}
		switch word {
		case frameMessage, frameAll:
			var m Broadcast
			if m, err = readBroadcast(in, word == frameAll); err == nil {
				handler.OnBroadcast(m)
			}
		case frameResumed:
			handler.OnResumed()
		case frameCounters:
			var p []byte
			if p, err = readBytes(in, maxFrame); err == nil {
				handler.OnCounters(p)
			}
		default:
			err = fmt.Errorf("a frame of kind %d; expected 1 to %d", word, frameCounters)
		}
		if err != nil {
			return fmt.Errorf("the link to the other process: %w", err)
		}
	}
}

func readBroadcast(in *bufio.Reader, all bool) (m Broadcast, err error) {
	if m.All = all; !all {
		kind, err := binary.ReadUvarint(in)
		if err != nil {
			return m, err
		}
		group, err := readBytes(in, MaxGroupName)
		if err != nil {
			return m, err
		}
		m.Kind, m.Group = uint32(kind), string(group)
	}
	m.Message, err = readBytes(in, maxFrame)
	return m, err
}

func readBytes(in *bufio.Reader, limit uint64) ([]byte, error) {
	n, err := binary.ReadUvarint(in)
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, fmt.Errorf("%d bytes; expected at most %d", n, limit)
	}
	p := make([]byte, n)
	_, err = io.ReadFull(in, p)
	return p, err
}

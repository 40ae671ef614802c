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

// Kinds of the frames that two Peers exchange. A frame consists of its kind and these fields:
//
//	frameMessage   Kind (a varint), Group, Message
//	frameAll       Message
//	frameResumed   no fields
//	frameCounters  the encoded counters
//
// Group, Message and the counters are each preceded by their length.
const (
	frameMessage byte = iota + 1
	frameAll
	frameResumed // the sender's queue has been sent
	frameCounters
)

const MaxGroupName = 1 << 20

const (
	maxFrame = 1 << 30
	// closeTimeout limits how long FlushAndClose waits for pending output.
	closeTimeout = time.Second
)

// Peer is a connection to the Log of another process. The creator of a Peer must call ReceiveFrames on a separate
// goroutine.
type Peer struct {
	conn net.Conn
	// closeWhenFull closes the connection if the peer is too slow. Otherwise, Log.BroadcastOrQueue fails with ErrFull.
	closeWhenFull bool
	maxPending    int // limit for pending, except for a single larger broadcast

	writer  sync.WaitGroup
	mu      sync.Mutex
	changed sync.Cond
	pending []byte
	closed  bool // no more frames are queued
}

// NewPeer creates a peer that uses a duplicate of socket. The caller must still close socket. maxPendingBytes limits
// the number of bytes that wait to be sent. If closeWhenFull is true, the peer closes the connection when the limit is
// exceeded. Otherwise, Log.BroadcastOrQueue fails with ErrFull while a broadcast would exceed the limit.
func NewPeer(socket *os.File, maxPendingBytes int, closeWhenFull bool) (*Peer, error) {
	conn, err := net.FileConn(socket)
	if err != nil {
		return nil, fmt.Errorf("open the broadcast socket: %w", err)
	}
	l := &Peer{conn: conn, maxPending: maxPendingBytes, closeWhenFull: closeWhenFull}
	l.changed.L = &l.mu
	l.writer.Go(l.writePendingUntilClosed)
	return l, nil
}

func (l *Peer) writePendingUntilClosed() {
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
			l.markClosedAndDiscardPending()
		}
		if spare = nil; cap(out) <= 1<<16 {
			spare = out
		}
	}
}

// markClosedAndDiscardPending discards pending output and prevents further output. The caller must hold l.mu.
func (l *Peer) markClosedAndDiscardPending() {
	l.closed, l.pending = true, nil
	l.changed.Broadcast()
}

func (l *Peer) isClosedOrHasSpaceFor(m Broadcast) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed || l.fitsInPending(m)
}

func (l *Peer) fitsInPending(m Broadcast) bool {
	return len(l.pending) == 0 || len(l.pending)+m.queueSize() <= l.maxPending
}

// enqueueBroadcastOrApplyFullPolicy queues m for the peer. If m does not fit into the peer's queue, closeWhenFull and
// waitForSpace determine what happens. If closeWhenFull is true, the method closes the peer. If only waitForSpace is
// true, the method waits for space. If both are false, the method queues m in excess of the limit.
func (l *Peer) enqueueBroadcastOrApplyFullPolicy(m Broadcast, waitForSpace bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && !l.fitsInPending(m) {
		if l.closeWhenFull {
			l.abortLocked()
		} else if waitForSpace {
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

func (l *Peer) Abort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.abortLocked()
}

// abortLocked closes the connection and discards pending output. The caller must hold l.mu.
func (l *Peer) abortLocked() {
	l.markClosedAndDiscardPending()
	_ = l.conn.Close()
}

// EnqueueCounters queues a frame with the encoded counters p. Call FlushAndClose next, because this must be the last
// frame.
func (l *Peer) EnqueueCounters(p []byte) { l.enqueueResumedOrCountersFrame(frameCounters, p) }

func (l *Peer) enqueueResumedOrCountersFrame(kind byte, countersPayload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.pending = append(l.pending, kind)
	if kind == frameCounters {
		l.pending = append(binary.AppendUvarint(l.pending, uint64(len(countersPayload))), countersPayload...)
	}
	l.changed.Broadcast()
}

// FlushAndClose sends the pending output and closes the connection. If this takes longer than closeTimeout, the
// remaining output is lost.
func (l *Peer) FlushAndClose() {
	l.mu.Lock()
	l.closed = true
	l.changed.Broadcast()
	l.mu.Unlock()
	_ = l.conn.SetWriteDeadline(time.Now().Add(closeTimeout)) // no effect if it is closed
	l.writer.Wait()
	_ = l.conn.Close()
}

func (m Broadcast) appendFrame(dst []byte) []byte {
	if m.All {
		dst = append(dst, frameAll)
	} else {
		dst = binary.AppendUvarint(append(dst, frameMessage), uint64(m.Kind))
		dst = append(binary.AppendUvarint(dst, uint64(len(m.Group))), m.Group...)
	}
	return append(binary.AppendUvarint(dst, uint64(len(m.Message))), m.Message...)
}

type FrameHandler struct {
	OnBroadcast func(Broadcast)
	OnResumed   func() // the peer has sent its queue and ended its pause
	OnCounters  func(p []byte)
}

// ReceiveFrames passes received frames to handler until the connection ends. If this process or the other process has
// closed the connection, it returns nil.
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
			if p, err = readLengthPrefixed(in, maxFrame); err == nil {
				handler.OnCounters(p)
			}
		default:
			err = fmt.Errorf("frame kind is %d; expected 1 to %d", word, frameCounters)
		}
		if err != nil {
			return fmt.Errorf("broadcasts from the other process: %w", err)
		}
	}
}

func readBroadcast(in *bufio.Reader, toAll bool) (m Broadcast, err error) {
	if m.All = toAll; !toAll {
		kind, err := binary.ReadUvarint(in)
		if err != nil {
			return m, err
		}
		group, err := readLengthPrefixed(in, MaxGroupName)
		if err != nil {
			return m, err
		}
		m.Kind, m.Group = uint32(kind), string(group)
	}
	m.Message, err = readLengthPrefixed(in, maxFrame)
	return m, err
}

func readLengthPrefixed(in *bufio.Reader, maxLength uint64) ([]byte, error) {
	n, err := binary.ReadUvarint(in)
	if err != nil {
		return nil, err
	}
	if n > maxLength {
		return nil, fmt.Errorf("frame field has %d bytes; expected at most %d", n, maxLength)
	}
	p := make([]byte, n)
	_, err = io.ReadFull(in, p)
	return p, err
}

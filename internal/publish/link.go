package publish

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
	frameReleased // what was held has come
	frameCounters
)

// MaxGroup is the most bytes of a group's name.
const MaxGroup = 1 << 20

const (
	maxFrame = 1 << 30
	// closeTimeout bounds how long what is unsent may take at the end.
	closeTimeout = time.Second
)

// Link takes messages from one process to another. One goroutine of its own writes; who made it
// calls Receive on another one.
type Link struct {
	conn net.Conn
	// mayMiss says that a link that does not take what is published is given up. Otherwise
	// publishers are refused.
	mayMiss bool
	max     int // the most bytes that wait, but for one message

	writing sync.WaitGroup
	mu      sync.Mutex
	changed sync.Cond
	out     []byte
	closed  bool // nothing more is sent
}

// NewLink makes a link of a socket, of which it takes a copy. At most max bytes wait, but for one
// message. If it may miss messages, it ends when there are more; otherwise who publishes is refused.
func NewLink(socket *os.File, max int, mayMiss bool) (*Link, error) {
	conn, err := net.FileConn(socket)
	if err != nil {
		return nil, fmt.Errorf("a link for broadcasts: %w", err)
	}
	l := &Link{conn: conn, max: max, mayMiss: mayMiss}
	l.changed.L = &l.mu
	l.writing.Go(l.write)
	return l, nil
}

// write sends what there is until the end.
func (l *Link) write() {
	l.mu.Lock()
	defer l.mu.Unlock()
	var spare []byte
	for {
		for len(l.out) == 0 && !l.closed {
			l.changed.Wait()
		}
		if len(l.out) == 0 {
			return
		}
		out := l.out
		l.out = spare[:0]
		l.changed.Broadcast()
		l.mu.Unlock()
		_, err := l.conn.Write(out)
		l.mu.Lock()
		if err != nil {
			l.end()
		}
		if spare = nil; cap(out) <= 1<<16 {
			spare = out
		}
	}
}

// end has nothing more sent; the lock is held.
func (l *Link) end() {
	l.closed, l.out = true, nil
	l.changed.Broadcast()
}

// room says whether a message could be sent now, or never will be.
func (l *Link) room(m Broadcast) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed || l.fits(m)
}

func (l *Link) fits(m Broadcast) bool { return len(l.out) == 0 || len(l.out)+m.size() <= l.max }

// send sends a message. A link that may miss some ends where there is no room. Of others who
// publishes has asked for room before, and several may have found the same; who delivers what was
// accepted before waits.
func (l *Link) send(m Broadcast, wait bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && !l.fits(m) {
		if l.mayMiss {
			l.abort()
		} else if wait {
			l.changed.Wait()
		} else {
			break
		}
	}
	if l.closed {
		return
	}
	l.out = m.append(l.out)
	l.changed.Broadcast()
}

// Abort ends the link at once.
func (l *Link) Abort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.abort()
}

// abort does so with the lock held. Receive ends, here and on the other side.
func (l *Link) abort() {
	l.end()
	_ = l.conn.Close()
}

// SendCounters sends counts, the last thing that the other side hears.
func (l *Link) SendCounters(p []byte) { l.sendWord(frameCounters, p) }

func (l *Link) sendWord(word byte, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.out = append(l.out, word)
	if word == frameCounters {
		l.out = append(binary.AppendUvarint(l.out, uint64(len(p))), p...)
	}
	l.changed.Broadcast()
}

// Close ends the link when what is unsent has been sent, which has a second. Receive ends.
func (l *Link) Close() {
	l.mu.Lock()
	l.closed = true
	l.changed.Broadcast()
	l.mu.Unlock()
	_ = l.conn.SetWriteDeadline(time.Now().Add(closeTimeout)) // a closed one does not write
	l.writing.Wait()
	_ = l.conn.Close()
}

func (m Broadcast) append(to []byte) []byte {
	if m.All {
		to = append(to, frameAll)
	} else {
		to = binary.AppendUvarint(append(to, frameMessage), uint64(m.Kind))
		to = append(binary.AppendUvarint(to, uint64(len(m.Group))), m.Group...)
	}
	return append(binary.AppendUvarint(to, uint64(len(m.Message))), m.Message...)
}

// Receiver is what becomes of what a link brings.
type Receiver struct {
	Message  func(Broadcast)
	Released func() // the other side holds nothing any more
	Counters func(p []byte)
}

// Receive receives until the link ends, in order or not.
func (l *Link) Receive(to Receiver) error {
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
			if m, err = readMessage(in, word == frameAll); err == nil {
				to.Message(m)
			}
		case frameReleased:
			to.Released()
		case frameCounters:
			var p []byte
			if p, err = readBytes(in, maxFrame); err == nil {
				to.Counters(p)
			}
		default:
			err = fmt.Errorf("a frame of kind %d; expected 1 to %d", word, frameCounters)
		}
		if err != nil {
			return fmt.Errorf("the link to the other process: %w", err)
		}
	}
}

func readMessage(in *bufio.Reader, all bool) (m Broadcast, err error) {
	if m.All = all; !all {
		kind, err := binary.ReadUvarint(in)
		if err != nil {
			return m, err
		}
		group, err := readBytes(in, MaxGroup)
		if err != nil {
			return m, err
		}
		m.Kind, m.Group = uint32(kind), string(group)
	}
	m.Message, err = readBytes(in, maxFrame)
	return m, err
}

func readBytes(in *bufio.Reader, most uint64) ([]byte, error) {
	n, err := binary.ReadUvarint(in)
	if err != nil {
		return nil, err
	}
	if n > most {
		return nil, fmt.Errorf("%d bytes; expected at most %d", n, most)
	}
	p := make([]byte, n)
	_, err = io.ReadFull(in, p)
	return p, err
}

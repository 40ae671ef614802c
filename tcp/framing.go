package tcp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MessageHandler is the user's code for connections that carry messages. See
// [Handler] for when its methods are called.
type MessageHandler interface {
	// Opened is the first call for a connection.
	Opened(c *Conn)
	// Message is called for each message, in order. msg is valid during
	// the call only, and must not be changed.
	Message(c *Conn, msg []byte)
	// Closed is the last call for a connection.
	Closed(c *Conn, why error)
}

// MessageFunc is a MessageHandler that cares for messages only.
type MessageFunc func(c *Conn, msg []byte)

func (f MessageFunc) Opened(*Conn) {}

func (f MessageFunc) Message(c *Conn, msg []byte) { f(c, msg) }

func (f MessageFunc) Closed(*Conn, error) {}

// Lines is a Handler that gives h each line, without its end ("\n" or "\r\n").
// When the peer ends without one, what is left is the last line. A line longer
// than Limits.MaxMessage, its end included, closes the connection with
// ErrMessageTooLong.
func Lines(h MessageHandler) Handler {
	f := newFramer(h)
	f.lines = true
	return f
}

// Split is a Handler that gives h each token that split finds: whatever splits
// for a [bufio.Scanner] splits here, with the same rules for its results. An
// error closes the connection with that reason, bufio.ErrFinalToken in order.
// A token that takes more than Limits.MaxMessage bytes of input closes the
// connection with ErrMessageTooLong.
//
// split must be safe for concurrent use, since connections share it, and must
// keep no state between calls.
func Split(split bufio.SplitFunc, h MessageHandler) Handler {
	f := newFramer(h)
	f.split = split
	return f
}

// LengthPrefixed splits messages that come behind their length, a number of 1,
// 2, 4 or 8 bytes in the given order that counts the bytes after it. The token
// is the message without its length. A length of more than Limits.MaxMessage closes the
// connection at once, with ErrMessageTooLong. It panics when size is another number, or
// order is nil.
//
// It is for Split: that it needs more it says by an error, which tells how much and
// which a bufio.Scanner does not know.
func LengthPrefixed(size int, order binary.ByteOrder) bufio.SplitFunc {
	switch size {
	case 1, 2, 4, 8:
	default:
		panic(fmt.Sprintf("myriad: LengthPrefixed: length of %d bytes; expected 1, 2, 4 or 8", size))
	}
	if order == nil {
		panic("myriad: LengthPrefixed: the byte order is nil; expected binary.BigEndian or binary.LittleEndian")
	}
	return func(data []byte, atEOF bool) (int, []byte, error) {
		whole := uint64(size)
		if len(data) >= size {
			n := length(data[:size], order)
			if whole += n; n <= uint64(len(data)-size) {
				return int(whole), data[size:whole:whole], nil
			}
			whole = max(whole, n) // it may have passed 2^64
		}
		switch {
		case !atEOF:
			return 0, nil, needs(whole)
		case len(data) > 0:
			return 0, nil, io.ErrUnexpectedEOF
		}
		return 0, nil, nil
	}
}

// needs is how many bytes the message at hand has, framing included, when they have not
// all come: what LengthPrefixed tells the framer.
type needs uint64

func (n needs) Error() string {
	return fmt.Sprintf("myriad: a message of %d bytes is not complete", uint64(n))
}

func length(b []byte, order binary.ByteOrder) uint64 {
	switch len(b) {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(order.Uint16(b))
	case 4:
		return uint64(order.Uint32(b))
	}
	return order.Uint64(b)
}

// maxEmpty is how many tokens in a row may take no input, as in bufio.Scanner.
const maxEmpty = 100

// framer cuts input into messages.
type framer struct {
	MessageHandler
	shed  MessageShedHandler // the same, nil if it is none
	split bufio.SplitFunc
	lines bool // as bufio.ScanLines, without searching twice
}

func newFramer(h MessageHandler) *framer {
	f := &framer{MessageHandler: h}
	f.shed, _ = h.(MessageShedHandler)
	return f
}

// give gives the handler a message, to be shed if there is a reason.
func (f *framer) give(c *Conn, msg []byte, shed error) {
	if shed != nil {
		f.shed.Shed(c, msg, shed)
		return
	}
	f.Message(c, msg)
}

// Received gives the handler all messages that are complete, as long as the
// connection takes more.
func (f *framer) Received(c *Conn, in []byte) (used int) { return f.receive(c, in, nil) }

func (f *framer) receive(c *Conn, in []byte, shed error) (used int) {
	if f.lines {
		return f.receiveLines(c, in, shed)
	}
	return f.tokens(c, in, false, shed)
}

// receiveLines searches each byte once: what was refused before has been
// searched in vain.
func (f *framer) receiveLines(c *Conn, in []byte, shed error) (used int) {
	seen, messages := c.core().RefusedBytes(), 0
	for !c.Paused() {
		rest := in[used:]
		i := bytes.IndexByte(rest[seen:], '\n')
		if i < 0 {
			break
		}
		i += seen
		seen = 0
		if i+1 > c.core().MaxMessage() {
			c.core().CloseTooLong(uint64(i + 1))
			break
		}
		f.give(c, trimCR(rest[:i:i]), shed)
		used += i + 1
		messages++
	}
	c.core().CountMessages(messages)
	return used
}

func trimCR(line []byte) []byte {
	if n := len(line) - 1; n >= 0 && line[n] == '\r' {
		return line[:n:n]
	}
	return line
}

// tokens gives the handler the tokens in data, and says how much it used.
func (f *framer) tokens(c *Conn, data []byte, atEOF bool, shed error) (used int) {
	empty, messages := 0, 0
	defer func() { c.core().CountMessages(messages) }()
	for !c.Paused() && (used < len(data) || atEOF) {
		advance, token, err := f.split(data[used:], atEOF)
		if n, ok := err.(needs); ok {
			if n > needs(c.core().MaxMessage()) {
				c.core().CloseTooLong(uint64(n))
			}
			return used
		}
		if err = check(c, advance, len(data)-used, err); err != nil {
			if errors.Is(err, bufio.ErrFinalToken) {
				err = nil
				if token != nil {
					f.give(c, token, shed)
					messages++
				}
			}
			c.CloseWith(err)
			return used
		}
		used += advance
		if token != nil {
			f.give(c, token, shed)
			messages++
		} else if advance == 0 {
			return used
		}
		if advance > 0 {
			empty = 0
		} else if empty++; empty > maxEmpty {
			c.CloseWith(io.ErrNoProgress)
			return used
		}
	}
	return used
}

// check holds what a SplitFunc returned against its rules and our bound.
func check(c *Conn, advance, most int, err error) error {
	switch {
	case err != nil:
		return err
	case advance < 0:
		return bufio.ErrNegativeAdvance
	case advance > most:
		return bufio.ErrAdvanceTooFar
	case advance > c.core().MaxMessage():
		c.core().CloseTooLong(uint64(advance))
		return ErrMessageTooLong
	}
	return nil
}

// Ended gives the handler what is left when the peer has ended.
func (f *framer) Ended(c *Conn, rest []byte) (used int) {
	if !f.lines {
		return f.tokens(c, rest, true, nil)
	}
	if len(rest) > 0 {
		f.Message(c, trimCR(rest))
		c.core().CountMessages(1)
	}
	return len(rest)
}

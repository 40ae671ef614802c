package tcp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MessageHandler handles connections whose input consists of messages; see Lines and Split. [Handler] describes when
// the methods are called.
type MessageHandler interface {
	// Opened is the first call for a connection.
	Opened(c *Conn)
	// Message is called for each message, in order. msg is valid only during the call and must not be changed.
	Message(c *Conn, msg []byte)
	// Closed is the last call for a connection.
	Closed(c *Conn, reason error)
}

// MessageFunc is an adapter that allows a function to be used as a MessageHandler. Its Message method calls the
// function. Its Opened and Closed methods do nothing.
type MessageFunc func(c *Conn, msg []byte)

func (f MessageFunc) Opened(*Conn) {}

func (f MessageFunc) Message(c *Conn, msg []byte) { f(c, msg) }

func (f MessageFunc) Closed(*Conn, error) {}

// Lines returns a Handler that passes each line to h, without the line end ("\n" or "\r\n"). If the input ends without
// a line end, Lines also passes the last, incomplete line. If a line is longer than Limits.MaxMessage, including the
// line end, the connection closes with ErrMessageTooLong.
func Lines(h MessageHandler) Handler {
	f := newFramer(h)
	f.lines = true
	return f
}

// Split returns a Handler that divides the input into tokens and passes each token to h. The function split finds the
// tokens, under the rules of [bufio.Scanner]. If split returns an error, the connection closes, and the error is the
// close reason. For bufio.ErrFinalToken, the close reason is nil. If a token takes more than Limits.MaxMessage bytes of
// input, the connection closes with ErrMessageTooLong.
//
// All connections share split. It must therefore be safe for concurrent use and keep no state between calls.
func Split(split bufio.SplitFunc, h MessageHandler) Handler {
	f := newFramer(h)
	f.split = split
	return f
}

// LengthPrefixed returns a split function for messages with a length prefix. The prefix is an integer of prefixBytes
// bytes in the given byte order. Its value is the number of bytes after the prefix. Each token is a message without its
// prefix. Use the function only with Split and not with a bufio.Scanner: to request more input, it returns an error
// that only Split understands.
//
// If a prefix contains a length above Limits.MaxMessage, the connection closes immediately with ErrMessageTooLong.
// LengthPrefixed panics if prefixBytes is not 1, 2, 4 or 8, or if the byte order is nil.
func LengthPrefixed(prefixBytes int, order binary.ByteOrder) bufio.SplitFunc {
	switch prefixBytes {
	case 1, 2, 4, 8:
	default:
		panic(fmt.Sprintf("myriad: LengthPrefixed: length of %d bytes; expected 1, 2, 4 or 8", prefixBytes))
	}
	if order == nil {
		panic("myriad: LengthPrefixed: the byte order is nil; expected binary.BigEndian or binary.LittleEndian")
	}
	return func(data []byte, atEOF bool) (int, []byte, error) {
		whole := uint64(prefixBytes)
		if len(data) >= prefixBytes {
			n := decodeLength(data[:prefixBytes], order)
			if whole += n; n <= uint64(len(data)-prefixBytes) {
				return int(whole), data[prefixBytes:whole:whole], nil
			}
			whole = max(whole, n) // whole may have overflowed
		}
		switch {
		case !atEOF:
			return 0, nil, incompleteError(whole)
		case len(data) > 0:
			return 0, nil, io.ErrUnexpectedEOF
		}
		return 0, nil, nil
	}
}

// incompleteError is the error that a function of LengthPrefixed returns to request more input. Its value is the size
// of the incomplete message in bytes, including the prefix.
type incompleteError uint64

func (n incompleteError) Error() string {
	return fmt.Sprintf("myriad: a message of %d bytes is incomplete", uint64(n))
}

func decodeLength(b []byte, order binary.ByteOrder) uint64 {
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

// maxEmptyTokens is the maximum number of consecutive tokens that use no input, as in bufio.Scanner.
const maxEmptyTokens = 100

type framer struct {
	MessageHandler
	shed  MessageShedHandler // the MessageHandler, or nil if it is no MessageShedHandler
	split bufio.SplitFunc
	lines bool // use deliverAllowedLines, which searches no byte twice, instead of split
}

func newFramer(h MessageHandler) *framer {
	f := &framer{MessageHandler: h}
	f.shed, _ = h.(MessageShedHandler)
	return f
}

func (f *framer) deliverOrShed(c *Conn, msg []byte, shedReason error) {
	if shedReason != nil {
		f.shed.Shed(c, msg, shedReason)
		return
	}
	f.Message(c, msg)
}

func (f *framer) Received(c *Conn, in []byte) (used int) { return f.deliverMessages(c, in, nil) }

func (f *framer) deliverMessages(c *Conn, in []byte, shedReason error) (used int) {
	if f.lines {
		return f.deliverAllowedLines(c, in, shedReason)
	}
	return f.deliverTokens(c, in, false, shedReason)
}

// deliverAllowedLines passes complete lines to the handler, or to its Shed method if shedReason is not nil. It stops
// when the connection is paused or has reached its message rate. It returns the total size of the lines passed, in
// bytes.
func (f *framer) deliverAllowedLines(c *Conn, in []byte, shedReason error) (used int) {
	seen, messages, allowed := c.core().RefusedBytes(), 0, c.core().AllowedMessages()
	for messages < allowed && !c.Paused() {
		rest := in[used:]
		i := bytes.IndexByte(rest[seen:], '\n')
		if i < 0 {
			break
		}
		i += seen
		seen = 0
		if i+1 > c.core().MaxMessage() {
			c.core().CloseMessageTooLong(uint64(i + 1))
			break
		}
		f.deliverOrShed(c, trimCR(rest[:i:i]), shedReason)
		used += i + 1
		messages++
	}
	c.core().CountMessagesAndLimitRate(messages)
	return used
}

func trimCR(line []byte) []byte {
	if n := len(line) - 1; n >= 0 && line[n] == '\r' {
		return line[:n:n]
	}
	return line
}

func (f *framer) deliverTokens(c *Conn, data []byte, atEOF bool, shedReason error) (used int) {
	empty, messages, allowed := 0, 0, c.core().AllowedMessages()
	defer func() { c.core().CountMessagesAndLimitRate(messages) }()
	for messages < allowed && !c.Paused() && (used < len(data) || atEOF) {
		advance, token, err := f.split(data[used:], atEOF)
		if n, ok := err.(incompleteError); ok {
			if n > incompleteError(c.core().MaxMessage()) {
				c.core().CloseMessageTooLong(uint64(n))
			}
			return used
		}
		if err = checkSplitOrCloseIfTooLong(c, advance, len(data)-used, err); err != nil {
			if errors.Is(err, bufio.ErrFinalToken) {
				err = nil
				if token != nil {
					f.deliverOrShed(c, token, shedReason)
					messages++
				}
			}
			c.CloseWith(err)
			return used
		}
		used += advance
		if token != nil {
			f.deliverOrShed(c, token, shedReason)
			messages++
		} else if advance == 0 {
			return used
		}
		if advance > 0 {
			empty = 0
		} else if empty++; empty > maxEmptyTokens {
			c.CloseWith(io.ErrNoProgress)
			return used
		}
	}
	return used
}

func checkSplitOrCloseIfTooLong(c *Conn, advance, available int, splitErr error) error {
	switch {
	case splitErr != nil:
		return splitErr
	case advance < 0:
		return bufio.ErrNegativeAdvance
	case advance > available:
		return bufio.ErrAdvanceTooFar
	case advance > c.core().MaxMessage():
		c.core().CloseMessageTooLong(uint64(advance))
		return ErrMessageTooLong
	}
	return nil
}

func (f *framer) Ended(c *Conn, rest []byte) (used int) {
	if !f.lines {
		return f.deliverTokens(c, rest, true, nil)
	}
	if len(rest) > 0 {
		f.Message(c, trimCR(rest))
		c.core().CountMessagesAndLimitRate(1)
	}
	return len(rest)
}

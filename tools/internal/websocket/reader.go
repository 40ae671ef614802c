package websocket

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/myriad-go/myriad/internal/wsframe"
)

// Kind says what a Part is.
type Kind byte

const (
	// Data is a piece of a text or binary message.
	Data Kind = iota + 1
	// Ping is to be answered with a Pong of the same payload.
	Ping
	// Pong answers a Ping, or nothing.
	Pong
	// Close is the last thing that a server sends, and is to be answered
	// with a Close unless one was sent before. CloseCode reads its payload.
	Close
)

// Part is what a Reader has taken out of the stream. The zero Part is nothing.
type Part struct {
	Kind Kind
	// Payload is a piece of the bytes that were given to Next, not a copy. It
	// may be empty: a message can be, and so can the piece between a header
	// and what has not arrived.
	Payload []byte
	// Last says, of Data, that the message is complete with this.
	Last bool
}

// Reader takes the frames of a server out of a stream of bytes. It has 16 bytes,
// and its zero value stands at the stream's beginning. It keeps no payload, so
// messages may have any size, and it does not allocate but for errors.
type Reader struct {
	// left is how much of the payload of the message's frame at hand has not
	// been taken.
	left uint64
	// inside says that a message has begun and isn't complete, last that the
	// frame at hand is its last one.
	inside, last bool
	// closed says that a Close has been taken.
	closed bool
}

// Next takes the next part of in: a piece of a message, as much of a frame as is
// there, or a whole Ping, Pong or Close; n is how many bytes of in it has taken,
// headers included. If in is empty, or ends within a header or within a Ping,
// Pong or Close, n is 0 and there is no error: the same bytes are to be offered
// again with more behind them, which are never more than 127.
//
// An error says how the server has broken the protocol. The Reader stays where it
// is then: it has no more to give, and the connection is to be closed. Bytes
// behind a Close are an error too, which the caller avoids by not offering them.
func (r *Reader) Next(in []byte) (part Part, n int, err error) {
	if len(in) == 0 {
		return Part{}, 0, nil
	}
	if r.left > 0 {
		return r.piece(in, 0)
	}
	if r.closed {
		return Part{}, 0, errors.New("websocket: the server sends more after its close frame; expected nothing")
	}
	h, err := r.head(in)
	switch {
	case h.Len == 0 || err != nil:
		return Part{}, 0, err
	case h.IsControl():
		return r.control(in, &h)
	}
	r.left, r.last, r.inside = h.Size, h.First&wsframe.Fin != 0, true
	return r.piece(in, h.Len)
}

// Fragmented says that the frame at hand is not the last one of its message.
func (r *Reader) Fragmented() bool { return r.inside && !r.last }

// piece takes payload of the frame at hand, which begins in in at from.
func (r *Reader) piece(in []byte, from int) (Part, int, error) {
	payload := in[from:]
	if uint64(len(payload)) > r.left {
		payload = payload[:r.left]
	}
	r.left -= uint64(len(payload))
	last := r.last && r.left == 0
	if last {
		r.inside = false
	}
	return Part{Kind: Data, Payload: payload, Last: last}, from + len(payload), nil
}

// control takes a frame that belongs to the connection once it's whole.
func (r *Reader) control(in []byte, h *wsframe.Head) (Part, int, error) {
	n := h.Len + int(h.Size)
	if len(in) < n {
		return Part{}, 0, nil
	}
	part := Part{Payload: in[h.Len:n]}
	switch Opcode(h.Opcode()) {
	case OpPing:
		part.Kind = Ping
	case OpPong:
		part.Kind = Pong
	case OpClose:
		if err := checkClose(part.Payload); err != nil {
			return Part{}, 0, err
		}
		part.Kind = Close
		r.closed = true
	}
	return part, n, nil
}

// head parses a frame's head. A wrong byte is an error as soon as it is there.
func (r *Reader) head(in []byte) (h wsframe.Head, err error) {
	h, err = wsframe.ParseHead(in)
	switch {
	case err != nil:
		err = fmt.Errorf("websocket: %w", err)
	case h.ReservedBits() != 0:
		err = fmt.Errorf("websocket: a frame with reserved bits (first byte %#02x); expected none without an extension", h.First)
	case h.Opcode() == wsframe.OpContinuation && !r.inside:
		err = errors.New("websocket: a continuation frame with no message begun; expected a text or binary frame")
	case h.Opcode() != wsframe.OpContinuation && !h.IsControl() && r.inside:
		err = errors.New("websocket: a new message within another; expected a continuation frame")
	case h.Masked:
		err = errors.New("websocket: a masked frame; expected none of a server to be")
	}
	return h, err
}

// NoCode is the CloseCode of a Close that has none. It's never sent.
const NoCode = 1005

// CloseCode is the status code in the payload of a Close: why the server closes,
// 1000 if all is well (RFC 6455, 7.4).
func CloseCode(payload []byte) int {
	if len(payload) < 2 {
		return NoCode
	}
	return int(binary.BigEndian.Uint16(payload))
}

// checkClose returns an error if the payload of a Close is wrong.
func checkClose(payload []byte) error {
	if len(payload) == 1 {
		return errors.New("websocket: a close frame of 1 byte; expected none, or a code of 2 bytes and a reason")
	}
	if code := CloseCode(payload); len(payload) > 0 && !wsframe.ValidCloseCode(code) {
		return fmt.Errorf("websocket: a close frame with code %d; expected 1000 to 1003, 1007 to 1014 or 3000 to 4999", code)
	}
	return nil
}

package websocket

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/myriad-go/myriad/internal/wsframe"
)

// Kind is the type of a Part.
type Kind byte

const (
	// Data is a piece of a text or binary message.
	Data Kind = iota + 1
	// Ping must be answered with a Pong that has the same payload.
	Ping
	// Pong answers a Ping, or is unsolicited.
	Pong
	// Close is the last frame of a server. The client must answer it with a Close, unless the client has already sent
	// one. CloseCode parses the payload.
	Close
)

// Part is a part of the server's stream. The zero Part is empty.
type Part struct {
	Kind Kind
	// Payload is a slice of Next's input, not a copy. It can be empty, for example if only the header has arrived.
	Payload []byte
	// Last reports whether the part completes its message. It applies to parts of kind Data.
	Last bool
}

// FrameReader parses a server's frames from a stream of bytes. The zero value is at the beginning of a stream.
type FrameReader struct {
	// remaining is the number of unread payload bytes of the current data frame.
	remaining uint64
	// inMessage reports that the message is incomplete, lastFrame that the current frame is its last one.
	inMessage, lastFrame bool
	closed               bool
}

// Next returns the next part of the input: message data, or a whole Ping, Pong or Close. A message can arrive in
// several parts. n is the number of bytes consumed, including headers.
//
// If in is empty or ends within a header, a Ping, a Pong or a Close, n is 0 and err is nil. The caller must then pass
// the same bytes (at most 127) again, followed by more input.
//
// An error reports a violation of the protocol, such as input after a Close. The caller must then close the connection.
func (r *FrameReader) Next(in []byte) (part Part, n int, err error) {
	if len(in) == 0 {
		return Part{}, 0, nil
	}
	if r.remaining > 0 {
		return r.takeFramePayload(in, 0)
	}
	if r.closed {
		return Part{}, 0, errors.New("websocket: the server sent data after its close frame; expected nothing")
	}
	h, err := r.parseHeadRejectingEarly(in)
	switch {
	case h.Len == 0 || err != nil:
		return Part{}, 0, err
	case h.IsControl():
		return r.takeCompleteControlFrame(in, &h)
	}
	r.remaining, r.lastFrame, r.inMessage = h.Size, h.First&wsframe.Fin != 0, true
	return r.takeFramePayload(in, h.Len)
}

func (r *FrameReader) IsFragmentOfMessage() bool { return r.inMessage && !r.lastFrame }

// takeFramePayload returns the part of the current frame's payload that has arrived.
func (r *FrameReader) takeFramePayload(in []byte, payloadStart int) (Part, int, error) {
	payload := in[payloadStart:]
	if uint64(len(payload)) > r.remaining {
		payload = payload[:r.remaining]
	}
	r.remaining -= uint64(len(payload))
	last := r.lastFrame && r.remaining == 0
	if last {
		r.inMessage = false
	}
	return Part{Kind: Data, Payload: payload, Last: last}, payloadStart + len(payload), nil
}

func (r *FrameReader) takeCompleteControlFrame(in []byte, h *wsframe.Head) (Part, int, error) {
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
		if err := checkCloseLengthAndCode(part.Payload); err != nil {
			return Part{}, 0, err
		}
		part.Kind = Close
		r.closed = true
	}
	return part, n, nil
}

// parseHeadRejectingEarly parses the head of a frame. It rejects a wrong byte even if the head is incomplete.
// Therefore, an error does not depend on how the stream is divided into calls.
func (r *FrameReader) parseHeadRejectingEarly(in []byte) (h wsframe.Head, err error) {
	if h, err = r.parseAndCheckHead(in); err == nil {
		return h, nil
	}
	// The error must not depend on how the stream is divided.
	for n := 1; n < min(len(in), 3); n++ {
		if _, first := r.parseAndCheckHead(in[:n]); first != nil {
			return h, first
		}
	}
	return h, err
}

// parseAndCheckHead parses a frame's head and checks that the frame may follow the previous frames.
func (r *FrameReader) parseAndCheckHead(in []byte) (h wsframe.Head, err error) {
	h, err = wsframe.ParseHeadIfComplete(in)
	switch {
	case err != nil:
		err = fmt.Errorf("websocket: %w", err)
	case h.ReservedBits() != 0:
		err = fmt.Errorf("websocket: frame with reserved bits (first byte %#02x); expected none without an extension", h.First)
	case h.Opcode() == wsframe.OpContinuation && !r.inMessage:
		err = errors.New("websocket: continuation frame outside a message; expected a text or binary frame")
	case h.Opcode() != wsframe.OpContinuation && !h.IsControl() && r.inMessage:
		err = errors.New("websocket: new message inside another; expected a continuation frame")
	case h.Masked:
		err = errors.New("websocket: masked frame; expected unmasked frames from a server")
	}
	return h, err
}

// NoCode is the result of CloseCode for a Close without a code. A Close never contains this number as its code.
const NoCode = 1005

// CloseCode returns the status code in the payload of a Close, such as 1000 for a normal closure (RFC 6455, 7.4).
func CloseCode(payload []byte) int {
	if len(payload) < 2 {
		return NoCode
	}
	return int(binary.BigEndian.Uint16(payload))
}

func checkCloseLengthAndCode(payload []byte) error {
	if len(payload) == 1 {
		return errors.New("websocket: close frame of 1 byte; expected no bytes, or a code of 2 bytes and a reason")
	}
	if code := CloseCode(payload); len(payload) > 0 && !wsframe.ValidCloseCode(code) {
		return fmt.Errorf("websocket: close frame with code %d; expected 1000 to 1003, 1007 to 1014 or 3000 to 4999", code)
	}
	return nil
}

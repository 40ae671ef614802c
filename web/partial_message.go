package web

import "github.com/myriad-go/myriad/tcp"

// partialMessage is the tcp.Handler of a socket while the socket receives a fragmented or large message.
type partialMessage struct {
	*negotiatedSocket
	kind      Kind
	deflate   bool
	message   []byte
	checker   utf8Checker
	frame     frameHead
	remaining int // bytes of the frame's payload that have not arrived
	complete  bool
}

func (m *partialMessage) Received(c *tcp.Conn, in []byte) (used int) {
	if used = m.readFramesAndDeliver(c, in); !m.complete {
		setHandlerMemory(c, partialMemory+cap(m.message), true)
	}
	return used
}

const partialMemory = 256

func (m *partialMessage) readFramesAndDeliver(c *tcp.Conn, in []byte) (used int) {
	work := 0
	for used < len(in) && !c.Paused() {
		if m.remaining > 0 {
			n := min(m.remaining, len(in)-used)
			m.message = appendUnmasked(m.message, in[used:used+n], m.frame.mask, m.frame.size-m.remaining)
			used += n
			if m.remaining -= n; m.kind == Text && !m.deflate && !m.checker.validateIncrementally(m.message, false) {
				m.sendCloseFrameAndClose(c, errInvalidUTF8)
				return len(in)
			}
		}
		if m.remaining == 0 && m.frame.fin {
			if !m.deliverCompletedMessage(c) {
				return len(in)
			}
			return used
		}
		if m.remaining > 0 {
			return used
		}
		if work += frameWork; work > maxWorkPerCall {
			yieldToOtherConns(c)
			return used
		}
		h, err := parseFrameHeadIfComplete(in[used:], m.socketOptions)
		if err == nil && h.n > 0 {
			err = m.checkMessageSize(h, len(m.message))
		}
		switch {
		case err == nil && h.n > 0 && (h.op == byte(Text) || h.op == byte(Binary)):
			err = &CloseError{CloseProtocolError, "a new message within a fragmented message; expected a continuation frame"}
			fallthrough
		case err != nil:
			m.sendCloseFrameAndClose(c, err)
			return len(in)
		case h.n == 0:
			return used
		case h.isControl():
			if len(in)-used < h.n+h.size {
				return used
			}
			var room [maxControl]byte
			if !m.handleControlFrame(c, h.op, appendUnmasked(room[:0], in[used+h.n:used+h.n+h.size], h.mask, 0)) {
				return len(in)
			}
			used += h.n + h.size
		default:
			m.frame, m.remaining = h, h.size
			used += h.n
		}
	}
	if m.remaining == 0 && m.frame.fin && !c.Paused() {
		m.deliverCompletedMessage(c)
	}
	return used
}

func (m *partialMessage) deliverCompletedMessage(c *tcp.Conn) (stillOpen bool) {
	m.complete = true
	_ = c.SetHandler(m.negotiatedSocket)
	setHandlerMemory(c, 0, false)
	n, ok := m.validateAndDeliverMessage(c, m.kind, m.deflate, m.message, &m.checker)
	if n > maxWorkPerCall {
		yieldToOtherConns(c)
	}
	return ok
}

func (m *partialMessage) Ended(c *tcp.Conn, rest []byte) int {
	used := m.Received(c, rest)
	m.closeUnlessPaused(c)
	return used
}

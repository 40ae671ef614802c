package tcp

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Heartbeat keeps silent connections alive, and finds out which of them are. The
// zero value sends none.
type Heartbeat struct {
	// Interval is after how long a silence of the peer one is sent, and after
	// how much longer the next. It is at least 100 ms; 0, the default, is
	// never. A connection whose peer sends something anyway gets none.
	Interval time.Duration
	// Message is what is sent, but to connections whose handler is a HeartbeatHandler. It
	// is not changed while the server runs.
	Message []byte
	// Send, if set, is called instead, to write what is to be sent. It is
	// called like a handler, between its calls for the same connection, and
	// on an event loop even where handlers run on workers: so it does not
	// block.
	Send func(c *Conn)
	// MaxMissed is how many may go without any byte from the peer: then,
	// another interval later, the connection is closed with
	// ErrHeartbeatTimeout. The default is 2, the most 255.
	MaxMissed int
}

// HeartbeatHandler is a Handler, or a MessageHandler, that writes the heartbeats of its
// connections itself, such as a protocol's ping. Heartbeat of the Server says when.
type HeartbeatHandler interface {
	// Heartbeat is called by the rules of Heartbeat.Send. Unless it says that the peer is
	// to answer, the peer's silence counts from now on again, also for
	// Limits.IdleTimeout: so it is never closed for that.
	Heartbeat(c *Conn) (answers bool)
}

const (
	minHeartbeat  = 100 * time.Millisecond
	defaultMissed = 2
	maxMissed     = 255
)

// check says what is wrong with it. handled says that there is a HeartbeatHandler.
func (h *Heartbeat) check(handled bool) error {
	switch {
	case h.Interval == 0 && (h.Message != nil || h.Send != nil || h.MaxMissed != 0):
		return badConfig("Heartbeat.Interval is 0; expected at least %v, for what else is set there", minHeartbeat)
	case h.Interval == 0:
		return nil
	case h.Interval < minHeartbeat:
		return badConfig("Heartbeat.Interval is %v; expected 0 (the default: none) or at least %v", h.Interval, minHeartbeat)
	case len(h.Message) > 0 && h.Send != nil, len(h.Message) == 0 && h.Send == nil && !handled:
		return badConfig("Heartbeat has %d bytes of Message, and Send is %s; expected one of them to be set, or the Handler to be a HeartbeatHandler",
			len(h.Message), map[bool]string{true: "nil", false: "set"}[h.Send == nil])
	case h.MaxMissed < 0 || h.MaxMissed > maxMissed:
		return badConfig("Heartbeat.MaxMissed is %d; expected 0 (the default, %d) to %d", h.MaxMissed, defaultMissed, maxMissed)
	}
	return nil
}

func (s *Server) checkHeartbeat() error {
	_, handled := extension[HeartbeatHandler](s.Handler)
	return s.Heartbeat.check(handled)
}

// engine gives the engines their part. Connections have the handler all, but for those with one
// of their own.
func (h Heartbeat) engine(all Handler) engine.Heartbeat {
	if h.Interval == 0 || h.Interval >= forever {
		return engine.Heartbeat{}
	}
	send := func(c *engine.Conn) {
		handler := all
		if o, ok := c.ConnHandler().(interface{ handler() Handler }); ok {
			handler = o.handler()
		}
		switch own, ok := extension[HeartbeatHandler](handler); {
		case ok:
			if !own.Heartbeat((*Conn)(c)) {
				c.ResetHeartbeat()
			}
		case h.Send != nil:
			h.Send((*Conn)(c))
		default:
			_, _ = c.Write(h.Message) // an error says that it closes
		}
	}
	missed := h.MaxMissed
	if missed == 0 {
		missed = defaultMissed
	}
	return engine.Heartbeat{Every: h.Interval, Send: send, MaxMissed: missed}
}

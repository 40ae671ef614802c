package tcp

import (
	"cmp"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Heartbeat configures the messages that the server sends to silent peers. These messages keep connections alive and
// detect lost peers.
type Heartbeat struct {
	// Interval is the time without input after which the server sends a heartbeat. It is also the time between
	// heartbeats to a peer that stays silent. The server delays some heartbeats by up to one Interval, so that many
	// heartbeats that are due at the same time are spread out. The minimum is 100 ms. The default, 0, disables
	// heartbeats.
	Interval time.Duration
	// Message is the heartbeat to send. It is not used for connections whose handler is a HeartbeatHandler. Do not
	// change Message while the server runs.
	Message []byte
	// Send, if set, is called to write each heartbeat. Set either Send or Message, but not both. Send is never called
	// concurrently with another call for the same connection. It runs on the event loop, even with Server.Workers, and
	// must not block.
	Send func(c *Conn)
	// MaxMissed is the maximum number of heartbeats in a row that a peer may leave unanswered. Any byte from the peer
	// counts as an answer. If the peer is still silent one Interval after the last of these heartbeats, the connection
	// closes with ErrHeartbeatTimeout. The default is 2, the maximum 255.
	MaxMissed int
}

// HeartbeatHandler is a Handler or MessageHandler that writes its own heartbeats, such as pings of a protocol.
// Server.Heartbeat still sets when heartbeats are sent.
type HeartbeatHandler interface {
	// Heartbeat writes a heartbeat, under the rules of Heartbeat.Send. It reports whether the peer is expected to
	// answer. If not, the peer's silence counts from zero again, so that MaxMissed and Limits.IdleTimeout have no
	// effect.
	Heartbeat(c *Conn) (answers bool)
}

const (
	minHeartbeat  = 100 * time.Millisecond
	defaultMissed = 2
	maxMissed     = 255
)

// validate checks the settings. handlerField is the name of a field that contains a handler, but not a
// HeartbeatHandler. Because this handler writes no heartbeats itself, Message or Send must be set. If there is no such
// handler, handlerField is empty.
func (h *Heartbeat) validate(handlerField string) error {
	switch {
	case h.Interval == 0 && (h.Message != nil || h.Send != nil || h.MaxMissed != 0):
		return badConfig("Heartbeat.Interval is 0 although other fields are set; expected at least %v", minHeartbeat)
	case h.Interval == 0:
		return nil
	case h.Interval < minHeartbeat:
		return badConfig("Heartbeat.Interval is %v; expected 0 (the default: none) or at least %v", h.Interval, minHeartbeat)
	case len(h.Message) > 0 && h.Send != nil, len(h.Message) == 0 && h.Send == nil && handlerField != "":
		return badConfig("Heartbeat has %d bytes of Message, and Send is %s; expected one of them, or %s to be a HeartbeatHandler",
			len(h.Message), map[bool]string{true: "nil", false: "set"}[h.Send == nil], cmp.Or(handlerField, "Server.Handler"))
	case h.MaxMissed < 0 || h.MaxMissed > maxMissed:
		return badConfig("Heartbeat.MaxMissed is %d; expected 0 (the default, %d) to %d", h.MaxMissed, defaultMissed, maxMissed)
	}
	return nil
}

func (s *Server) checkHeartbeat() error {
	handlerField := ""
	for field, h := range s.handlers() {
		if _, ok := handlerAs[HeartbeatHandler](h); !ok {
			handlerField = field
		}
	}
	return s.Heartbeat.validate(handlerField)
}

func (h Heartbeat) toEngine(defaultHandler Handler) engine.Heartbeat {
	if h.Interval == 0 || h.Interval >= forever {
		return engine.Heartbeat{}
	}
	send := func(c *engine.Conn) {
		handler := defaultHandler
		if o, ok := c.ConnHandler().(interface{ handler() Handler }); ok {
			handler = o.handler()
		}
		switch own, ok := handlerAs[HeartbeatHandler](handler); {
		case ok:
			if !own.Heartbeat((*Conn)(c)) {
				c.ResetHeartbeat()
			}
		case h.Send != nil:
			h.Send((*Conn)(c))
		default:
			_, _ = c.Write(h.Message) // on error the connection closes
		}
	}
	missed := h.MaxMissed
	if missed == 0 {
		missed = defaultMissed
	}
	message := h.Message
	if _, own := handlerAs[HeartbeatHandler](defaultHandler); own || h.Send != nil {
		message = nil
	}
	return engine.Heartbeat{Every: h.Interval, Send: send, Message: message, MaxMissed: missed}
}

package engine

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
)

// This file is what the log says of connections that a limit has closed or turned
// away. A limit may close a million at once: the log that a Server gives writes one
// such line a second for each limit and loop, with how many it has suppressed.

// TooLong closes a connection whose message has, or is announced to have, so many
// bytes: more than Limits.MaxMessage.
func (c *Conn) TooLong(size uint64) {
	if !c.is(closing) {
		c.logLimit(ErrMessageTooLong, size)
		c.beginClose(ErrMessageTooLong)
	}
}

// logLimit logs that a limit closes the connection, if that is why. size is that of a
// message; 0 where it is not known.
func (c *Conn) logLimit(why error, size uint64) {
	name, value, help := c.host.limit(why)
	if name == "" || c.is(greeting) { // see Host.turnedAway
		return
	}
	level := slog.LevelInfo
	if help != "" {
		level = slog.LevelWarn
	}
	ctx := context.Background()
	if !c.host.Log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("limit", name), slog.Any("value", value), c.limitAttr(why, size),
		slog.Int("unsent", c.Pending()), slog.String("peer", c.name()), c.Ref().attr(), slog.Int("loop", c.host.Index),
	}
	if help != "" {
		attrs = append(attrs, slog.String("help", help))
	}
	c.host.Log.LogAttrs(ctx, level, "connection closed by a limit", attrs...)
}

// limit is what closes connections for a reason, its value, and what to do where not
// the peer but the limit may be wrong. The name is empty for another reason.
func (h *Host) limit(why error) (name string, value any, help string) {
	l := &h.Limits
	switch why {
	case ErrMessageTooLong:
		return "Limits.MaxMessage", l.MaxMessage, "if messages of this size are meant, raise Server.Limits.MaxMessage; otherwise the peer may speak another protocol"
	case ErrSlowConsumer:
		return "Limits.MaxUnsent", l.MaxUnsent, "if so much is to wait for a peer, raise Server.Limits.MaxUnsent; otherwise look at Conn.Paused before writing more"
	case ErrOverBudget:
		return "Limits.MaxBuffered", l.MaxBuffered, "lower MaxMessage, MaxUnsent or HighWater of Server.Limits, or give the process more memory and raise MaxBuffered"
	case ErrFirstByteTimeout:
		return "Limits.FirstByteTimeout", l.FirstByteTimeout, ""
	case ErrMessageTimeout:
		return "Limits.MessageTimeout", l.MessageTimeout, ""
	case ErrIdleTimeout:
		return "Limits.IdleTimeout", l.IdleTimeout, ""
	case ErrWriteTimeout:
		return "Limits.WriteTimeout", l.WriteTimeout, ""
	case ErrCloseTimeout:
		return "Limits.CloseTimeout", l.CloseTimeout, ""
	case ErrHeartbeatTimeout:
		return "Heartbeat.MaxMissed", h.Heartbeat.MaxMissed, ""
	}
	return "", nil, ""
}

// limitAttr is what was seen of what a limit bounds.
func (c *Conn) limitAttr(why error, size uint64) slog.Attr {
	const key = "seen"
	now := c.host.Clock()
	switch why {
	case ErrMessageTooLong:
		if size > 0 { // otherwise the handler has said so
			return slog.Uint64(key, size)
		}
	case ErrOverBudget:
		return slog.Int(key, c.Holds())
	case ErrMessageTimeout:
		if began := c.begun(); began != 0 {
			return slog.Duration(key, now-began)
		}
	case ErrWriteTimeout:
		if c.out != nil {
			return slog.Duration(key, now-c.out.since)
		}
	case ErrHeartbeatTimeout:
		return slog.Int(key, c.unanswered())
	case ErrFirstByteTimeout, ErrIdleTimeout:
		return slog.Duration(key, c.heard.since(now))
	case ErrSlowConsumer, ErrCloseTimeout:
		return slog.Int(key, c.Pending())
	}
	return slog.Attr{}
}

// logRefused logs that a connection is not admitted.
func (h *Host) logRefused(at *Entrance, peer netip.AddrPort, why error) {
	name, value := "Limits.MaxConns", any(h.Limits.MaxConns)
	level := slog.LevelWarn
	switch why {
	case errListenerFull:
		name, value = "Listener.MaxConns", at.max
	case ErrRefusedSource:
		name, value = "Limits.MaxConnsPerSource", h.Admission.MaxPerSource()
	case ErrDenied:
		name, value, level = "Server.Allow and Server.Deny", nil, slog.LevelInfo
	}
	listener := ""
	if at != nil {
		listener = at.name
	}
	h.Log.LogAttrs(context.Background(), level, "connection turned away",
		slog.String("limit", name), slog.Any("value", value), slog.String("peer", peerName(peer)), slog.String("listener", listener), slog.Int("loop", h.Index))
}

// attr is the connection in logs.
func (r Ref) attr() slog.Attr { return slog.Uint64("conn", r.ID()) }

// name is the peer in logs.
func (c *Conn) name() string { return peerName(c.Peer()) }

func peerName(peer netip.AddrPort) string {
	if peer.IsValid() {
		return netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port()).String()
	}
	return "unix socket"
}

// badCount closes a connection whose handler has returned an impossible number of used bytes.
func (c *Conn) badCount(used, offered int, shed error) {
	method := "Received"
	if shed != nil {
		method = "Shed"
	}
	handler := fmt.Sprintf("%T", c.handler())
	if h, ok := c.handler().(interface{ HandlerType() string }); ok {
		handler = h.HandlerType()
	}
	c.host.Log.LogAttrs(context.Background(), slog.LevelError, "handler returned an impossible count; its connection is closed",
		slog.String("handler", handler), slog.String("method", method), slog.Int("returned", used), slog.Int("offered", offered),
		slog.String("help", "return how many bytes of in the handler has used, 0 to len(in)"), slog.String("peer", c.name()), c.Ref().attr())
	c.fail(ErrBadUse)
}

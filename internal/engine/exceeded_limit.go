package engine

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
)

// This file logs connections that a limit has closed or refused. Because a limit may close a million connections at
// once, a Server's log contains at most one such line a second per limit and loop, with the number of suppressed lines.

// CloseMessageTooLong closes the connection because a message exceeds Limits.MaxMessage. messageSize is the actual or
// announced size of the message in bytes.
func (c *Conn) CloseMessageTooLong(messageSize uint64) {
	if !c.is(closing) {
		c.logCloseIfByLimit(ErrMessageTooLong, messageSize)
		c.invalidateRefsAndStartClosing(ErrMessageTooLong)
	}
}

// logCloseIfByLimit logs the close of a connection if the close reason is an exceeded limit. messageSize is the size of
// a message that is too long, or 0 if the size is unknown.
func (c *Conn) logCloseIfByLimit(reason error, messageSize uint64) {
	name, value, help := c.runtime.describeLimit(reason)
	if name == "" || c.is(handshaking) { // logged by logAndCountEndBeforeOpened
		return
	}
	level := slog.LevelInfo
	if help != "" {
		level = slog.LevelWarn
	}
	ctx := context.Background()
	if !c.runtime.Log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("limit", name), slog.Any("value", value), c.observedValueAttr(reason, messageSize),
		slog.Int("unsent", c.UnsentAndDroppedBytes()), slog.String("peer", c.peerName()), c.Ref().logAttr(), slog.Int("loop", c.runtime.Index),
	}
	if help != "" {
		attrs = append(attrs, slog.String("help", help))
	}
	c.runtime.Log.LogAttrs(ctx, level, "connection closed by a limit", attrs...)
}

// describeLimit returns the name, the value and a help text of the limit that belongs to a close reason. If the reason
// is not an exceeded limit, name is empty.
func (rt *Runtime) describeLimit(reason error) (name string, value any, help string) {
	l := &rt.Limits
	switch reason {
	case ErrMessageTooLong:
		return "Limits.MaxMessage", l.MaxMessage, "raise Server.Limits.MaxMessage if messages of this size are expected; otherwise the peer may speak another protocol"
	case ErrSlowConsumer:
		return "Limits.MaxUnsent", l.MaxUnsent, "check Conn.Paused before writing more, or raise Server.Limits.MaxUnsent"
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
		return "Heartbeat.MaxMissed", rt.Heartbeat.MaxMissed, ""
	}
	return "", nil, ""
}

func (c *Conn) observedValueAttr(reason error, messageSize uint64) slog.Attr {
	const key = "seen"
	now := c.runtime.Clock()
	switch reason {
	case ErrMessageTooLong:
		if messageSize > 0 { // unknown if the handler closes it
			return slog.Uint64(key, messageSize)
		}
	case ErrOverBudget:
		return slog.Int(key, c.BufferMemory())
	case ErrMessageTimeout:
		if began := c.messageStartedAt(); began != 0 {
			return slog.Duration(key, now-began)
		}
	case ErrWriteTimeout:
		if c.out != nil {
			return slog.Duration(key, now-c.out.waitingSince)
		}
	case ErrHeartbeatTimeout:
		return slog.Int(key, c.unansweredHeartbeats())
	case ErrFirstByteTimeout, ErrIdleTimeout:
		return slog.Duration(key, c.lastHeard.elapsed(now))
	case ErrSlowConsumer, ErrCloseTimeout:
		return slog.Int(key, c.UnsentAndDroppedBytes())
	}
	return slog.Attr{}
}

func (rt *Runtime) logLimitRefusal(counters *ListenerCounters, peer netip.AddrPort, reason error) {
	name, value := "Limits.MaxConns", any(rt.Limits.MaxConns)
	level := slog.LevelWarn
	switch reason {
	case errListenerFull:
		name, value = "Listener.MaxConns", counters.maxConns
	case ErrRefusedSource:
		name, value = "Limits.MaxConnsPerSource", rt.Admission.MaxPerSource()
	case ErrDenied:
		name, value, level = "Server.Allow and Server.Deny", nil, slog.LevelInfo
	}
	listener := ""
	if counters != nil {
		listener = counters.name
	}
	rt.Log.LogAttrs(context.Background(), level, "connection refused by a limit",
		slog.String("limit", name), slog.Any("value", value), slog.String("peer", formatPeer(peer)), slog.String("listener", listener), slog.Int("loop", rt.Index))
}

func (r Ref) logAttr() slog.Attr { return slog.Uint64("conn", r.ID()) }

func (c *Conn) peerName() string { return formatPeer(c.Peer()) }

func formatPeer(peer netip.AddrPort) string {
	if peer.IsValid() {
		return netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port()).String()
	}
	return "unix socket"
}

func (c *Conn) abortForInvalidUsedCount(used, offered int, shedReason error) {
	method := "Received"
	if shedReason != nil {
		method = "Shed"
	}
	handler := fmt.Sprintf("%T", c.ownOrEngineHandler())
	if h, ok := c.ownOrEngineHandler().(interface{ HandlerType() string }); ok {
		handler = h.HandlerType()
	}
	c.runtime.Log.LogAttrs(context.Background(), slog.LevelError, "handler returned an invalid count; connection closed",
		slog.String("handler", handler), slog.String("method", method), slog.Int("returned", used), slog.Int("offered", offered),
		slog.String("help", "return the number of bytes used, from 0 to len(in)"), slog.String("peer", c.peerName()), c.Ref().logAttr())
	c.abortWith(ErrBadUse)
}

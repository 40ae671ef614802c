package tcp

import "github.com/myriad-go/myriad/internal/engine"

// Group is a set of connections that receive the same messages, such as a chat room. The zero value is an empty group.
// The methods are safe for concurrent use.
//
// A connection that has closed stays in the group until a later call of Add or a broadcast removes it. Until then, Len
// counts it. If Len must be exact, call Remove in Handler.Closed.
//
// A group of one connection takes 40 bytes, a group of 2 to 8 connections about 100 bytes plus 16 per connection. A
// larger group takes about 30 bytes per connection. SendLatest needs additional memory from its first call on.
type Group struct{ g engine.Group }

// Add adds a connection to the group. It has no effect if the connection has closed or is already in the group. A
// broadcast that is in progress may or may not reach the connection.
func (g *Group) Add(r Ref) { g.g.Add(r.r) }

// Remove removes a connection from the group. Broadcasts that start after Remove has returned do not reach the
// connection. A broadcast that is in progress may still reach it, but only before messages that are sent with Ref.Send
// after Remove has returned. Output of Conn.Write can arrive before such a broadcast, because it is not queued in the
// mailbox.
func (g *Group) Remove(r Ref) { g.g.Remove(r.r) }

// Len returns the number of connections in the group, possibly including closed ones.
func (g *Group) Len() int { return g.g.Len() }

// Broadcast sends p to all connections of the group, like Ref.Send. The connections share one copy of p and get all
// broadcasts in the same order. sent is the number of connections that accepted p. full is the number of connections
// for which sending failed with ErrFull or ErrTooLarge. If more than Limits.MaxUnsent bytes would wait for a slow peer,
// Server.SlowConsumer applies.
func (g *Group) Broadcast(p []byte) (sent, full int) { return g.g.Broadcast(p) }

// SendLatest sends p to all connections of the group as their latest value, such as a price or a position. If a
// connection has not begun to send the previous value of the group, p replaces the previous value. A slow peer
// therefore receives fewer values, always whole and in order, and finally the latest one. Waiting values never close a
// connection with ErrSlowConsumer. Stats.Replaced and Conn.Dropped count replaced values.
//
// A value can't be replaced once the kernel has accepted its bytes. Server.Socket limits the bytes in the kernel. A
// connection sends a value only when it has no other output, so the value may arrive after broadcasts and messages of
// Ref.Send that were sent later. At most one value of a group waits per connection. If a connection has several
// independent values, use a separate group for each.
//
// sent is the number of connections that accepted p. full is the number of connections that did not accept p, because
// the mailbox was full or p exceeds Limits.MaxUnsent. These connections remain in the group.
func (g *Group) SendLatest(p []byte) (sent, full int) { return g.g.SendLatest(p) }

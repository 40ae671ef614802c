package tcp

import "github.com/myriad-go/myriad/internal/engine"

// Group is a set of connections that receive the same messages, such as a chat room. The zero value is empty. Its
// methods are safe for concurrent use. Add and broadcasts remove closed connections. In a group, closed connections
// therefore rarely outnumber open ones, unless there are at most 8. For an exact Len, call Remove in Closed.
//
// A group of one connection takes 40 bytes. A group of 2 to 8 connections takes about 100 bytes plus 16 per connection;
// a larger group takes about 30 bytes per connection. SendLatest needs additional memory from its first call on.
type Group struct{ g engine.Group }

// Add adds a connection, unless it has closed. If the connection is already in the group, Add has no effect. A running
// broadcast may or may not reach the connection.
func (g *Group) Add(r Ref) { g.g.Add(r.r) }

// Remove removes a connection. Broadcasts that start after Remove has returned do not reach the connection. A running
// broadcast reaches the connection before any later message from its Ref, or not at all. Therefore no message of the
// group follows an answer that Ref.Send sends after Remove. A group's message may follow output of Conn.Write, because
// Conn.Write bypasses the mailbox.
func (g *Group) Remove(r Ref) { g.g.Remove(r.r) }

// Len returns the number of connections in the group, which may include some that have closed.
func (g *Group) Len() int { return g.g.Len() }

// Broadcast sends one shared copy of p to all connections of the group, like Ref.Send. sent is the number of
// connections that accepted p. full is the number that did not (ErrFull or ErrTooLarge). If more than Limits.MaxUnsent
// bytes would wait for a slow peer, Server.SlowConsumer applies. Broadcasts to one group reach its connections in the
// same order.
func (g *Group) Broadcast(p []byte) (sent, full int) { return g.g.Broadcast(p) }

// SendLatest sends p to all connections of the group as their latest value, such as a price or a position. If a
// connection has not begun to send the group's previous value, p replaces that value. A slow peer therefore receives
// fewer values, always whole and in order, and finally the latest one. Values do not accumulate for a slow peer and do
// not close it with ErrSlowConsumer. Bytes that the kernel has accepted can't be replaced; Server.Socket limits their
// number. Stats.Replaced and Conn.Dropped count replaced values.
//
// A connection sends values only when it has no other output. Values are therefore not ordered with broadcasts and
// Ref.Send. A group has at most one value waiting per connection, so use one group per independent value.
//
// sent is the number of connections that accepted p. full is the number that did not, because the mailbox was full or p
// exceeds Limits.MaxUnsent. A connection that did not accept p may receive an older value, and receives later ones.
func (g *Group) SendLatest(p []byte) (sent, full int) { return g.g.SendLatest(p) }

package tcp

import "github.com/myriad-go/myriad/internal/engine"

// Group is a set of connections that get the same messages, such as a chat room. The zero value
// is empty. Its methods are safe for concurrent use. Add and Remove wait for a running broadcast
// at most as long as it takes to post the message to 8 connections.
//
// Closed connections are removed by the next broadcast, and by Add, which checks two connections
// a call; so under churn a group rarely holds more closed connections than open ones, or than 8.
// A handler that needs an exact Len calls Remove in Closed.
//
// A group of one connection takes 40 bytes, for which Add allocates nothing; 2 to 8 connections
// take about 100 bytes plus 16 each, larger groups about 30 bytes each (go test -run '^$' -bench
// GroupMemory -benchtime 1x). SendLatest needs additional memory from its first call on.
// Broadcasts share the list of a large group in parts of about 128; changing a part between two
// broadcasts copies that part.
type Group struct{ g engine.Group }

// Add adds a connection, unless it has closed. Adding it again has no effect. A running broadcast
// may or may not reach it.
func (g *Group) Add(r Ref) { g.g.Add(r.r) }

// Remove removes a connection. Broadcasts that start after Remove has returned do not reach it. A
// running broadcast reaches it before anything sent by its Ref after Remove, or not at all. So no
// message of the group follows an answer sent by Ref.Send after Remove; Conn.Write in a handler
// bypasses the mailbox and has no such order.
func (g *Group) Remove(r Ref) { g.g.Remove(r.r) }

// Len returns the number of connections in the group, which may include some that have closed.
func (g *Group) Len() int { return g.g.Len() }

// Broadcast sends p to all connections of the group like Ref.Send, but with one shared copy. It
// returns how many connections accepted p and how many did not (ErrFull or ErrTooLarge). If a
// peer reads too slowly, so that more than Limits.MaxUnsent bytes would wait for it,
// Server.SlowConsumer applies. Broadcasts to one group are serialized and reach its connections
// in the same order.
func (g *Group) Broadcast(p []byte) (sent, full int) { return g.g.Broadcast(p) }

// SendLatest sends p to all connections of the group as their latest value, such as a price or a
// position. It replaces the group's previous value for each connection that has not yet begun to
// send that. So a slow peer gets fewer values, but each of them whole and newer than the one
// before, and finally the latest one. Values do not accumulate for a slow peer, and it is not
// closed with ErrSlowConsumer because of them. All connections share one copy of p. Bytes that
// the kernel has accepted can't be replaced; Server.Socket limits them.
//
// A connection sends values only when it has no other output, so broadcasts and Ref.Send may
// overtake them, and they may overtake those. Each group has one value waiting per connection;
// use a group for each independent value. Stats.Replaced and Conn.Dropped count replaced values,
// per connection.
//
// SendLatest returns how many connections accepted p, and how many did not because the mailbox
// was full (ErrFull) or p exceeds Limits.MaxUnsent; those may have an older value and will get
// newer ones. It waits like Broadcast.
func (g *Group) SendLatest(p []byte) (sent, full int) { return g.g.SendLatest(p) }

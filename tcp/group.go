package tcp

import "github.com/myriad-go/myriad/internal/engine"

// Group is a set of connections that get the same messages, such as those in a room. The
// zero value is empty. Its methods are safe for concurrent use. Add and Remove wait for a
// broadcast no longer than it takes to post it to 8 connections. A connection that has closed
// leaves the group at the next broadcast, or while others are added, each of which pays for a
// look at two: so where connections come and go there are hardly more closed ones than open
// ones, or than 8. A handler that wants Len to be exact removes it in Closed.
//
// A group of one takes 40 bytes, for which Add allocates nothing; 2 to 8 take about 100 bytes more and 16
// each, many about 30 each (go test -run '^$' -bench GroupMemory -benchtime 1x). What
// Publish needs comes on top once it is called. Broadcasts share the list of a large group, in
// parts of some 128: who joins or leaves between two of them has one part copied.
type Group struct{ g engine.Group }

// Add takes a connection in, unless it has closed. It is in the group once, however often
// it is added. A broadcast that is under way may reach it or not.
func (g *Group) Add(r Ref) { g.g.Add(r.r) }

// Remove lets a connection go. A broadcast that begins after Remove has returned does not
// reach it, and one that is under way reaches it ahead of all that is sent to it after that by
// its Ref, or not at all. So nothing of the group comes behind an answer to a request to
// leave, if Ref.Send sends it; Conn.Write in a handler overtakes what waits in the mailbox.
func (g *Group) Remove(r Ref) { g.g.Remove(r.r) }

// Len is how many connections are in the group, with some that have closed.
func (g *Group) Len() int { return g.g.Len() }

// Broadcast sends p to all in the group, as Ref.Send does but with one copy of it
// for all. It says for how many p is on its way, and for how many there was no
// room (ErrFull, or ErrTooLarge). Where it is the peer that reads too slowly, so that with p
// more than Limits.MaxUnsent would wait for it, Server.SlowConsumer says what happens to the
// connection. Broadcasts to one group wait for each other, and reach its connections in one
// order.
func (g *Group) Broadcast(p []byte) (sent, full int) { return g.g.Broadcast(p) }

// Publish sends p to all in the group as their newest value, such as a price or a
// position: it takes the place of the value that was published before, for each
// connection to which that has not begun to be sent. So a peer that reads slowly gets
// fewer values, each of them whole and newer than the last, and the newest in the end.
// No values pile up for it, and it is not closed with ErrSlowConsumer for them. There
// is one copy of p for all. What has gone to the kernel can't be replaced any more:
// Server.Socket bounds how much that is.
//
// A connection gets values when nothing else is owed to it, so broadcasts and messages of
// Ref.Send may overtake them, and the newest value may overtake those in turn. Values that
// are to be kept apart need a group each: of each group one value may wait for a
// connection. Stats.Replaced counts values that were replaced, for each connection, and so
// does Conn.Dropped.
//
// Publish says for how many p is on its way, and for how many it is not, because there
// was no room for mail (ErrFull) or p is larger than Limits.MaxUnsent; these may have
// got an older value and get a newer one. It waits as Broadcast does.
func (g *Group) Publish(p []byte) (sent, full int) { return g.g.SendLatest(p) }

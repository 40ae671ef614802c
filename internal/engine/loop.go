package engine

import "net/netip"

// Loop is a loop, as its connections see it. In the goroutine model each connection is its own owner,
// and Host.Loop is nil: connections then reach each other by mail. Methods are for the owner's goroutine
// where nothing else is said.
type Loop interface {
	// Conn returns the connection in a slot, which must be in use.
	Conn(slot uint32) *Conn
	// HasConn reports whether the owner has a connection itself, and no worker.
	HasConn(c *Conn) bool
	// SettleLater has a connection settled before the turn ends: an event of another one has changed it.
	SettleLater(c *Conn)
	// QueueRead has a connection that has yielded take its turn with those that send much.
	QueueRead(c *Conn)
	// TakeBack takes a connection back from a worker. A worker that has run it gives no reason; whoever
	// finds that none will run it says why. It is safe for concurrent use.
	TakeBack(c *Conn, why error)
	// OnLoop reports whether the caller is on a loop, of this engine or another. It is safe for
	// concurrent use.
	OnLoop() bool
	// AskLocalAddr returns our side's address of a connection where only the owner can tell
	// (Host.NoDetach). It waits for the owner, but not on another loop: there it reports false. It is safe for
	// concurrent use.
	AskLocalAddr(r Ref) (addr netip.AddrPort, ok bool)
}

//go:build !linux

package goroutine

// handover is nothing: connections are handed over on Linux.
type handover struct{}

func (c *conn) leave() {}

func (c *conn) giveAway() { c.Stay(true) }

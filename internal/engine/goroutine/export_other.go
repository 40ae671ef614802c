//go:build !linux

package goroutine

// handoffState is empty, because only Linux supports handing over connections.
type handoffState struct{}

func (c *conn) startRequestedExport() {}

func (c *conn) exportOrStayOpen() { c.AbortExport(true) }

//go:build !linux

package goroutine

// handoffState is empty: connections are handed over on Linux only.
type handoffState struct{}

func (c *conn) startRequestedExport() {}

func (c *conn) exportOrStayOpen() { c.AbortExport(true) }

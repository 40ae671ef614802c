//go:build !linux

package goroutine

// handoffState is empty, because only Linux supports handing over connections.
type handoffState struct{}

func (c *conn) startExportOrDecline() {}

func (c *conn) exportOrStayOpen() { c.AbortExport(true) }

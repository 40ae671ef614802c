//go:build !linux

package goroutine

// transport reads and writes a connection.
type transport struct{ wait waiter }

func (c *conn) initIO() error { return c.io.wait.init(c.nc) }

// read waits for input and reads once. No buffer is held during the wait. It
// returns nothing when mail came just before the wait.
func (c *conn) read() ([]byte, error) {
	c.parked.Store(true)
	defer c.parked.Store(false)
	if c.attention() {
		return nil, nil
	}
	if err := c.io.wait.readable(); err != nil {
		return nil, err
	}
	n, err := c.nc.Read(c.input.take(c.bulk))
	return c.got(n), err
}

// tryRead reads nothing here: package net offers no read that does not wait.
func (c *conn) tryRead() ([]byte, error) { return nil, nil }

// write writes all output, and waits for room as often as it must, unless mail
// comes. It says how much was taken.
func (c *conn) write() (int, error) {
	c.parked.Store(true)
	defer c.parked.Store(false)
	if c.attention() {
		return 0, nil
	}
	return c.nc.Write(c.Output())
}

//go:build !linux

package goroutine

// transport reads and writes a connection.
type transport struct {
	buffer
	c    *conn
	wait waiter
}

func (t *transport) init(c *conn) error {
	t.c = c
	return t.wait.init(c.nc)
}

// read waits for input and reads once. No buffer is held during the wait.
func (t *transport) read() ([]byte, error) {
	t.c.parked.Store(true)
	defer t.c.parked.Store(false)
	if t.c.attention() {
		return nil, nil
	}
	if err := t.wait.readable(); err != nil {
		return nil, err
	}
	n, err := t.c.nc.Read(t.take())
	return t.got(n), err
}

// tryRead reads nothing here: package net offers no read that does not wait.
func (t *transport) tryRead() []byte { return nil }

// write writes all of p and says how much was taken.
func (t *transport) write(p []byte) (int, error) {
	t.c.parked.Store(true)
	defer t.c.parked.Store(false)
	if t.c.attention() {
		return 0, nil
	}
	return t.c.nc.Write(p)
}

package goroutine

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// conn is a connection with its goroutine.
type conn struct {
	engine.Conn
	group *group
	nc    net.Conn
	io    transport
	input buffer
	limit time.Duration // the deadline that is set, 0 for none
	told  int32         // what it has done of group.told
	bulk  bool          // the last read filled its buffer

	// For everyone:
	box    atomic.Pointer[engine.Mailbox]
	parked atomic.Bool
}

func newConn(g *group, nc net.Conn) (*conn, error) {
	c := &conn{group: g, nc: nc}
	return c, c.initIO()
}

// addrPort reads an address of package net; the zero value if it has no port.
func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort()
	}
	return netip.AddrPort{}
}

// run is the connection's life.
func (c *conn) run(dialled bool) {
	c.Open(addrPort(c.nc.RemoteAddr()), dialled)
	for {
		switch c.Next() {
		case engine.Send:
			c.send()
		case engine.Deliver:
			c.Deliver()
		case engine.Shut:
			c.shut()
		case engine.Close:
			c.close()
			return
		case engine.Wait:
			if c.WantsRoom() {
				c.Room() // the next Send waits for it
			} else {
				c.receive()
			}
		}
	}
}

// send sends what is owed, and waits until the kernel has taken it.
func (c *conn) send() {
	c.setDeadline()
	n, err := c.write()
	c.Sent(n)
	if err != nil {
		c.interrupted(err)
	} else if c.attention() {
		c.attend()
	}
}

// receive waits for input or mail, and reads once.
func (c *conn) receive() {
	if c.attention() {
		c.attend()
		return
	}
	c.setDeadline()
	c.take(c.read())
}

// take gives the core what a read has brought.
func (c *conn) take(p []byte, err error) {
	if len(p) > 0 {
		c.Arrived(p)
	}
	c.input.release()
	switch {
	case errors.Is(err, io.EOF):
		c.PeerClosed()
	case err != nil:
		c.interrupted(err)
	}
}

// interrupted takes the end of a wait: mail, the deadline, or an error.
func (c *conn) interrupted(err error) {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		c.Failed(err)
		return
	}
	c.limit = -1
	c.setDeadline()
	c.attend()
	c.Expire(engine.Since())
}

// setDeadline makes every wait end when the connection is due.
func (c *conn) setDeadline() {
	due, _ := c.Due()
	if due == c.limit {
		return
	}
	c.limit = due
	var at time.Time
	if due > 0 {
		at = time.Now().Add(due - engine.Since())
	}
	_ = c.nc.SetDeadline(at)
}

// attention says whether someone outside wants something.
func (c *conn) attention() bool {
	if c.group.told.Load() > c.told {
		return true
	}
	box := c.box.Load()
	return box != nil && box.Waiting()
}

// attend takes the mail, and does what the group has been told.
func (c *conn) attend() {
	c.takeMail()
	told := c.group.told.Load()
	if told == c.told {
		return
	}
	if c.told < stopping {
		c.Drain()
		c.takeAll()
	}
	if told == killing {
		c.Kill(engine.ErrServerClosed)
	}
	c.told = told
}

// takeAll takes what has arrived by now, up to a bound.
func (c *conn) takeAll() {
	for range drainReads {
		if !c.WantsInput() {
			return
		}
		p, err := c.tryRead()
		more := len(p) > 0
		c.take(p, err)
		if !more {
			return
		}
	}
}

func (c *conn) takeMail() {
	box := c.box.Load()
	if box == nil || !box.Waiting() {
		return
	}
	mail, data := box.Take()
	rest := data
	for _, m := range mail {
		c.Mailed(m, rest[:m.Size])
		rest = rest[m.Size:]
	}
	box.Done(mail, data)
}

// rouse ends the owner's wait. Anyone may call it.
func (c *conn) rouse() {
	if c.parked.Load() && c.parked.CompareAndSwap(true, false) {
		_ = c.nc.SetDeadline(time.Unix(1, 0))
	}
}

// mailbox gives the mailbox, made when first asked for.
func (c *conn) mailbox() *engine.Mailbox {
	if box := c.box.Load(); box != nil {
		return box
	}
	c.box.CompareAndSwap(nil, &engine.Mailbox{Max: c.group.cfg.Limits.MaxMail, MaxBytes: c.group.cfg.Limits.MaxMailBytes})
	return c.box.Load()
}

// shut shuts the sending direction. A connection that is to be reset is closed
// at once: its end, if it came first, would leave it in TIME_WAIT.
func (c *conn) shut() {
	if w, ok := c.nc.(interface{ CloseWrite() error }); ok && !c.resets() {
		// An error means that the peer has gone; reading will tell.
		_ = w.CloseWrite()
	} else {
		c.PeerClosed() // there is no half of it to wait for
	}
	c.ShutDone()
}

// resets says whether the connection is to be closed with a reset.
func (c *conn) resets() bool { return c.Outbound() && c.group.cfg.Reset }

// close closes the connection, finishes it, and releases mail that came too
// late.
func (c *conn) close() {
	if tcp, ok := c.nc.(*net.TCPConn); ok && c.resets() {
		_ = tcp.SetLinger(0)
	}
	_ = c.nc.Close()
	c.Finish()
	if box := c.box.Load(); box != nil {
		box.Close()
		c.takeMail()
	}
	c.group.exit(c)
}

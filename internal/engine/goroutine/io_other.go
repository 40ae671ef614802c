//go:build !linux

package goroutine

import (
	"errors"
	"net"
	"os"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// answerTime bounds the answer to a connection that is turned away.
const answerTime = 10 * time.Millisecond

// sendRefusal answers a connection that is turned away. Input that has come is thrown
// away: otherwise the kernel would send a reset, which can destroy the answer.
func sendRefusal(nc net.Conn, answer []byte) {
	_ = nc.SetDeadline(time.Now().Add(answerTime))
	_, _ = nc.Write(answer) // what it does not take is lost
	if w, ok := nc.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil {
		_ = nc.SetDeadline(time.Now().Add(tryWait))
		var unread [4096]byte
		_, _ = nc.Read(unread[:])
	}
}

// transport reads and writes a connection.
type transport struct{ wait waiter }

func (c *conn) initIO() error { return c.io.wait.init(c.nc) }

// read waits for input and reads once. No buffer is held during the wait. It
// returns nothing when mail came just before the wait.
func (c *conn) read() ([]byte, error) {
	defer c.parked.Store(false)
	if c.prepareWait() {
		return nil, nil
	}
	if err := c.io.wait.readable(); err != nil {
		return nil, err
	}
	if !c.mayRead() {
		return nil, nil
	}
	n, err := c.nc.Read(c.takeBuffer())
	c.hasRead() // before got, which may change whether it takes turns
	return c.got(n), err
}

// tryWait is how long a read takes that is not to wait: package net offers none, and
// one whose deadline is over does not look.
const tryWait = time.Millisecond

// tryRead reads what is there and hardly waits. Who wakes the owner meanwhile is
// not missed: it looks at its mail and requests before its next wait.
func (c *conn) tryRead() ([]byte, error) {
	_ = c.nc.SetReadDeadline(time.Now().Add(tryWait))
	defer c.nc.SetReadDeadline(time.Time{})
	n, err := c.nc.Read(c.takeBuffer())
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return c.got(n), err
}

// waitMail waits for mail and does not read.
func (c *conn) waitMail() error {
	err := c.io.wait.idle(c.prepareWait)
	if roused := !c.parked.Swap(false); roused && err == nil {
		err = os.ErrDeadlineExceeded
	}
	return err
}

// awaitRoom does not: a Write of package net waits by itself.
func (c *conn) awaitRoom() bool { return false }

// direct is no Host.Direct: package net writes all, however long that takes.
var direct func(c *engine.Conn, p []byte, behind [][]byte) int

// sendFile has a file read and written.
func (c *conn) sendFile() { c.LoadFilePiece() }

// write writes all output, and waits for room as often as it must, unless mail
// comes. It says how much was taken.
func (c *conn) write() (int, error) {
	defer c.parked.Store(false)
	if c.prepareWait() {
		return 0, nil
	}
	c.wasBlocked = true // it may well
	c.OnSendBlocked(c.group.now())
	return c.nc.Write(c.Output())
}

// pipes are of Linux: elsewhere what relays receive goes by mail.
type pipes struct{}

func (p *pipes) open(*group) {}

func (p *pipes) close() {}

// pollBarrier does nothing here: a pause between turns is all that the others get.
type pollBarrier struct{}

func (*pollBarrier) open() error { return nil }

func (*pollBarrier) pass() {}

func (*pollBarrier) close() {}

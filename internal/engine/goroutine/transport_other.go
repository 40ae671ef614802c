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

// sendRejection answers a connection that is turned away. Input that has come is thrown
// away: otherwise the kernel would send a reset, which can destroy the answer.
func sendRejection(netConn net.Conn, answer []byte) {
	_ = netConn.SetDeadline(time.Now().Add(answerTime))
	_, _ = netConn.Write(answer) // what it does not take is lost
	if w, ok := netConn.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil {
		_ = netConn.SetDeadline(time.Now().Add(tryWait))
		var unread [4096]byte
		_, _ = netConn.Read(unread[:])
	}
}

// transport reads and writes a connection.
type transport struct{ wait readWaiter }

func (c *conn) initTransport() error { return c.io.wait.init(c.netConn) }

// waitAndRead waits for input and reads once. No buffer is held during the wait. It
// returns nothing when mail came just before the wait.
func (c *conn) waitAndRead() ([]byte, error) {
	defer c.parked.Store(false)
	if c.parkOrFindRequests() {
		return nil, nil
	}
	if err := c.io.wait.waitUntilReadable(); err != nil {
		return nil, err
	}
	if !c.waitForReadPermit() {
		return nil, nil
	}
	n, err := c.netConn.Read(c.acquireReadBuffer())
	c.releaseReadPermit() // before got, which may change whether it takes turns
	return c.recordRead(n), err
}

// tryWait is how long a read takes that is not to wait: package net offers none, and
// one whose deadline is over does not look.
const tryWait = time.Millisecond

// tryRead reads what is there and hardly waits. Who wakes the owner meanwhile is
// not missed: it looks at its mail and requests before its next wait.
func (c *conn) tryRead() ([]byte, error) {
	_ = c.netConn.SetReadDeadline(time.Now().Add(tryWait))
	defer c.netConn.SetReadDeadline(time.Time{})
	n, err := c.netConn.Read(c.acquireReadBuffer())
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return c.recordRead(n), err
}

// waitForMail waits for mail and does not read.
func (c *conn) waitForMail() error {
	err := c.io.wait.waitUntil(c.parkOrFindRequests)
	if roused := !c.parked.Swap(false); roused && err == nil {
		err = os.ErrDeadlineExceeded
	}
	return err
}

// startWritableWait does not: a Write of package net waits by itself.
func (c *conn) startWritableWait() bool { return false }

// sendDirect is no Host.Direct: package net writes all, however long that takes.
var sendDirect func(c *engine.Conn, p []byte, behind [][]byte) int

// sendFile has a file read and written.
func (c *conn) sendFile() { c.LoadFilePiece() }

// writeOutput writes all output, and waits for room as often as it must, unless mail
// comes. It says how much was taken.
func (c *conn) writeOutput() (int, error) {
	defer c.parked.Store(false)
	if c.parkOrFindRequests() {
		return 0, nil
	}
	c.writeBlocked = true // it may well
	c.OnSendBlocked(c.engine.readClock())
	return c.netConn.Write(c.Output())
}

// pipePool are of Linux: elsewhere what relays receive goes by mail.
type pipePool struct{}

func (p *pipePool) enable(*goroutineEngine) {}

func (p *pipePool) closeIdlePipes() {}

// pollBarrier does nothing here: a pause between turns is all that the others get.
type pollBarrier struct{}

func (*pollBarrier) open() error { return nil }

func (*pollBarrier) waitForPoll() {}

func (*pollBarrier) close() {}

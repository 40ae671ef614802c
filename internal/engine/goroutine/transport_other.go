//go:build !linux

package goroutine

import (
	"errors"
	"net"
	"os"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// rejectionTimeout limits the time for the answer to a rejected connection.
const rejectionTimeout = 10 * time.Millisecond

func sendAnswerAndShutWrite(netConn net.Conn, answer []byte) {
	_ = netConn.SetDeadline(time.Now().Add(rejectionTimeout))
	_, _ = netConn.Write(answer) // bytes that do not fit are lost
	if w, ok := netConn.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil {
		_ = netConn.SetDeadline(time.Now().Add(tryReadTimeout))
		var unread [4096]byte
		_, _ = netConn.Read(unread[:]) // unread input causes a reset, which can destroy the answer
	}
}

type transport struct{ wait readWaiter }

func (c *conn) initTransport() error { return c.io.wait.init(c.netConn) }

// waitAndRead waits for input and reads once. If a request arrives during the wait, the error is
// os.ErrDeadlineExceeded. If waitAndRead reads nothing for another reason, for example because a request is already
// pending, it returns nil and no error.
func (c *conn) waitAndRead() (receivedOrNil []byte, _ error) {
	defer c.markNotParked()
	if c.parkOrFindRequests() {
		return nil, nil
	}
	if err := c.io.wait.waitUntilReadable(); err != nil {
		return nil, err
	}
	if !c.awaitMemoryAndReadPermitUnlessWoken() {
		return nil, nil
	}
	n, err := c.netConn.Read(c.acquireReadBuffer())
	c.releaseReadPermit() // before c.bulk changes
	return c.sliceReadAndRecordSize(n), err
}

// tryReadTimeout is how long tryRead waits for input. It cannot be 0, because package net does not read after the
// deadline, even if input is available.
const tryReadTimeout = time.Millisecond

// tryRead reads once and waits for input for at most tryReadTimeout.
func (c *conn) tryRead() (received []byte, _ error) {
	_ = c.netConn.SetReadDeadline(time.Now().Add(tryReadTimeout))
	defer c.netConn.SetReadDeadline(time.Time{})
	n, err := c.netConn.Read(c.acquireReadBuffer())
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return c.sliceReadAndRecordSize(n), err
}

func (c *conn) waitForMail() (wakeOrIOErr error) {
	err := c.io.wait.waitUnlessDone(c.parkOrFindRequests)
	if roused := c.parked.Swap(notParked) == notParked; roused && err == nil {
		err = os.ErrDeadlineExceeded
	}
	return err
}

// startWritableWait does nothing and returns false. A wait is not necessary, because a Write of package net itself
// waits until the socket is writable.
func (c *conn) startWritableWait() (supported bool) { return false }

// sendDirect is nil, because package net has no non-blocking write.
var sendDirect func(c *engine.Conn, p []byte, behind [][]byte) int

func (c *conn) sendFilePartOrLoadPiece() { c.LoadFilePieceIntoOutput() }

// writeOutputUntilWoken writes output, and blocks until all is written or a request arrives.
func (c *conn) writeOutputUntilWoken() (sentBytes int, _ error) {
	defer c.markNotParked()
	if c.parkOrFindRequests() {
		return 0, nil
	}
	c.writeBlocked = true // the write may block
	c.StartWriteTimerIfStopped(c.engine.readClock())
	return c.netConn.Write(c.Output())
}

type pipePool struct{}

func (p *pipePool) initAndSetSendToPartner(*goroutineEngine) {}

func (p *pipePool) closeWithIdlePipes() {}

type pollerBarrier struct{}

func (*pollerBarrier) open() error { return nil }

func (*pollerBarrier) waitForPollerPass() {}

func (*pollerBarrier) close() {}

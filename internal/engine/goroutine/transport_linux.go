package goroutine

import (
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// sendAnswerAndShutWrite sends the answer to a rejected connection without blocking.
func sendAnswerAndShutWrite(netConn net.Conn, answer []byte) {
	sc, ok := netConn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_, _ = sock.Send(int32(fd), answer) // bytes that the kernel does not accept are lost
		_ = sock.ShutdownWrite(int32(fd))
		var unread [4096]byte
		_, _ = sock.Recv(int32(fd), unread[:]) // unread input causes a reset, which can destroy the answer
	})
}

// transport reads and writes a connection through its RawConn.
type transport struct {
	runOpFunc func(fd uintptr) bool
	raw       syscall.RawConn
	n         int32 // bytes of the last read, or bytes written so far
	errno     int16
	op        operation
}

type operation uint8

const (
	opRead operation = iota
	opTryRead
	opWaitForMail
	opWrite
	opSendFile
)

func (c *conn) initTransport() error {
	sc, ok := c.netConn.(syscall.Conn)
	if !ok {
		return syscall.ENOTSOCK
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	c.io.raw, c.io.runOpFunc = raw, c.runCurrentOp
	return raw.Control(func(fd uintptr) { c.SetFD(int32(fd)) })
}

// sendDirect implements engine.Runtime.SendDirect. Only the goroutine of c may call sendDirect.
func sendDirect(c *engine.Conn, first []byte, rest [][]byte) int {
	return sock.SendBuffers(c.FD(), first, rest)
}

// runCurrentOp performs the operation c.io.op on the socket fd. While runCurrentOp returns false, RawConn waits until
// the socket is ready and calls runCurrentOp again.
func (c *conn) runCurrentOp(fd uintptr) (noFurtherWait bool) {
	c.markNotParked()
	switch c.io.op {
	case opWrite:
		return c.tryWriteOutput(int32(fd))
	case opSendFile:
		return c.trySendFilePart(int32(fd))
	case opTryRead:
		c.receiveOnceOrReleaseBuffer(int32(fd))
		return true
	case opWaitForMail:
		return c.parkOrFindRequests()
	}
	if !c.awaitMemoryAndReadPermitUnlessWoken() {
		c.io.errno = int16(syscall.EAGAIN)
		return true // without parking, because the poller has reported the input already
	}
	tried, done := c.spliceToPartnerAndReleasePermit(int32(fd))
	if !tried {
		done = c.receiveOnceOrReleaseBuffer(int32(fd))
		c.releaseReadPermit()
	}
	return done || c.parkOrFindRequests()
}

func (c *conn) receiveOnceOrReleaseBuffer(fd int32) (gotResult bool) {
	n, errno := sock.Recv(fd, c.acquireReadBuffer())
	c.io.n, c.io.errno = int32(n), int16(errno)
	if errno == syscall.EAGAIN {
		c.releaseReadBuffer()
		return false
	}
	return true
}

// markSendBlockedOrFindRequests records that the kernel accepts no more output of c at present, and starts the write
// timeout. It then calls parkOrFindRequests and returns the result.
func (c *conn) markSendBlockedOrFindRequests() (hasWork bool) {
	c.writeBlocked = true
	c.StartWriteTimerIfStopped(c.engine.readClock())
	return c.parkOrFindRequests()
}

// waitAndRead waits for input and reads once. If a request arrives during the wait, the error is
// os.ErrDeadlineExceeded. If waitAndRead reads nothing for another reason, for example because a request is already
// pending, it returns nil and no error.
func (c *conn) waitAndRead() (receivedOrNil []byte, _ error) { return c.runReadOp(opRead) }

func (c *conn) tryRead() (received []byte, _ error) { return c.runReadOp(opTryRead) }

func (c *conn) runReadOp(op operation) (receivedOrNil []byte, _ error) {
	c.io.op = op
	err := c.io.raw.Read(c.io.runOpFunc)
	c.markNotParked()
	switch errno := syscall.Errno(c.io.errno); {
	case err != nil:
		return nil, err
	case errno == syscall.EAGAIN:
		return nil, nil
	case errno != 0:
		return nil, errno
	case c.io.n == 0:
		return nil, io.EOF
	}
	return c.sliceReadAndRecordSize(int(c.io.n)), nil
}

func (c *conn) waitForMail() (wakeOrIOErr error) {
	c.io.op = opWaitForMail
	err := c.io.raw.Read(c.io.runOpFunc)
	c.markNotParked()
	return err
}

// writeOutputUntilWoken writes output, and blocks until the kernel accepts some bytes or a request arrives.
func (c *conn) writeOutputUntilWoken() (sentBytes int, _ error) { return c.runWriteOp(opWrite) }

func (c *conn) runWriteOp(op operation) (sentBytes int, _ error) {
	c.io.op, c.io.n, c.io.errno = op, 0, 0
	err := c.io.raw.Write(c.io.runOpFunc)
	c.markNotParked()
	if errno := syscall.Errno(c.io.errno); err == nil && errno != 0 && errno != syscall.EAGAIN {
		err = errno
	}
	return int(c.io.n), err
}

// startWritableWait starts a goroutine that waits until the socket is writable and then sends requestWritable to c.
// supported is always true on Linux.
func (c *conn) startWritableWait() (supported bool) {
	if c.awaitingWritable {
		return true
	}
	c.awaitingWritable = true
	c.StartWriteTimerIfStopped(c.engine.readClock())
	c.engine.running.Go(func() {
		_ = c.io.raw.Write(func(fd uintptr) bool { return sock.IsWritableOrFailed(int32(fd)) }) // the next Send reports an error
		c.requestAndWake(requestWritable)
	})
	return true
}

// sendFilePartOrLoadPiece sends the next part of a file with sendfile(2). It blocks until the kernel accepts some bytes
// or a request arrives. If sendfile cannot be used, sendFilePartOrLoadPiece reads a part of the file into the output
// buffer instead, and does not block.
func (c *conn) sendFilePartOrLoadPiece() {
	if f, _, _ := c.NextFilePartUnlessLayered(); f == nil {
		c.LoadFilePieceIntoOutput()
		return
	}
	c.publishSweepState()
	n, err := c.runWriteOp(opSendFile)
	if c.writeBlocked {
		c.writeBlocked = false
		c.updateClock()
	}
	if _, failed := errors.AsType[syscall.Errno](err); failed || n == 0 && err == nil && c.io.errno == 0 {
		c.LoadFilePieceIntoOutput()
		return
	}
	c.OnSent(n)
	c.handleSendErrorOrRequests(err)
}

func (c *conn) trySendFilePart(fd int32) (noFurtherWait bool) {
	f, offset, n := c.NextFilePartUnlessLayered()
	n, errno := sock.SendFile(fd, f, offset, n)
	c.io.n, c.io.errno = int32(n), int16(errno)
	return errno != syscall.EAGAIN || c.markSendBlockedOrFindRequests()
}

func (c *conn) tryWriteOutput(fd int32) (noFurtherWait bool) {
	if c.bulk && c.writeBlocked {
		c.engine.readLimiter.acquireTokenThenYield()
		defer c.engine.readLimiter.releaseToken()
	}
	for out := c.Output()[c.io.n:]; len(out) > 0; {
		n, errno := sock.Send(fd, out)
		c.io.errno = int16(errno)
		if errno == syscall.EAGAIN {
			return c.io.n > 0 || c.ReadsDespiteUnsentOutput() || c.markSendBlockedOrFindRequests()
		}
		if errno != 0 {
			break
		}
		c.io.n += int32(n)
		out = out[n:]
	}
	return true
}

package web

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// SetReadDeadline sets the deadline for reading the request body. http.ResponseController calls it.
func (w *response) SetReadDeadline(t time.Time) error {
	if w.conn != nil {
		return errors.ErrUnsupported
	}
	if w.state == responseComplete {
		return errReturned
	}
	w.x.body.readDeadline.set(&w.x.mu, t, w.x.readable.Broadcast)
	return nil
}

// SetWriteDeadline sets the deadline for sending the response. http.ResponseController calls it.
func (w *response) SetWriteDeadline(t time.Time) error {
	if w.conn != nil {
		return errors.ErrUnsupported
	}
	if w.state == responseComplete {
		return errReturned
	}
	w.x.loop.workerMaySend = false // sendWait observes the deadline
	w.writeDeadline.set(&w.x.mu, t, func() {})
	return nil
}

// EnableFullDuplex does nothing, because a handler can always read the body while it writes the response.
func (w *response) EnableFullDuplex() error { return nil }

// CloseNotify implements http.CloseNotifier, which gin's Context.Stream requires. The channel receives a value when the
// connection closes or the handler returns. In a Quick handler, the channel never receives a value.
func (w *response) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	if w.conn == nil {
		context.AfterFunc(w.x.req.Context(), func() { gone <- true })
	}
	return gone
}

// Hijack implements http.Hijacker. It returns a *net.TCPConn or a *net.UnixConn if the connection can be detached from
// its server. Otherwise, for example with TLS, it returns a *tcp.NetConn.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	switch {
	case w.conn != nil:
		return nil, nil, errors.New("web: a Quick handler can't hijack its connection; register the handler without Quick")
	case w.state >= responseSwitching:
		return nil, nil, http.ErrHijacked
	case w.state == responseComplete:
		return nil, nil, errReturned
	}
	if w.state != responsePending {
		_ = w.FlushError()
	}
	w.x.letOtherGoroutineContinueLoop()
	got := make(chan detachedConn, 1)
	w.x.mu.Lock()
	w.x.postToConnOwner(func(c *tcp.Conn) {
		x := w.x
		x.mu.Lock()
		read := append([]byte(nil), x.body.buf[x.body.readOffset:]...)
		x.body.paused = false // the body must not resume reading
		x.mu.Unlock()
		for y := x.next; y != nil; y = y.next {
			read = append(read, y.headMemory.text...) // the hijacker gets these requests
		}
		setHandlerMemory(c, 0, false)
		c.SetDeadline(0)
		take := func(nc net.Conn, unread []byte) { got <- detachedConn{nc, append(read, unread...)} }
		if c.Detach(take) == nil {
			c.Release()
			return
		}
		l := tcp.NewNetListener()
		_ = c.SetHandler(l)
		c.SetValue(nil)
		l.Opened(c)
		nc, err := l.Accept()
		if err != nil {
			c.CloseWith(err)
			return
		}
		c.Release()
		c.Resume()
		got <- detachedConn{nc, read}
	})
	w.x.mu.Unlock()
	select {
	case d := <-got:
		return w.finishHijack(d)
	case <-w.x.connDone():
	}
	select {
	case d := <-got: // the connection closed after the hijack
		return w.finishHijack(d)
	default:
		return nil, nil, tcp.ErrClosed
	}
}

func (w *response) finishHijack(d detachedConn) (net.Conn, *bufio.ReadWriter, error) {
	w.setState(responseHijacked)
	r := io.Reader(d.nc)
	if len(d.unread) > 0 {
		r = io.MultiReader(bytes.NewReader(d.unread), d.nc)
	}
	rw := bufio.NewReadWriter(bufio.NewReader(r), bufio.NewWriter(d.nc))
	if len(d.unread) > 0 {
		_, _ = rw.Peek(len(d.unread)) // fills the buffer, so that Buffered counts it
	}
	return d.nc, rw, nil
}

type detachedConn struct {
	nc     net.Conn
	unread []byte
}

package tcp

import (
	"errors"
	"runtime/debug"
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
)

// Blocking is a Handler for code that blocks, such as a library that takes a net.Conn. The server calls Serve on a
// goroutine when input arrives. An idle connection has no goroutine.
//
// For one connection, Begin, Serve and End are called in this order and never concurrently. If one of them panics or
// calls runtime.Goexit, the server closes the connection with a *PanicError. ListenAndServe returns after all calls
// have returned.
//
// During a drain, and after the peer has closed its writing side, a running call can still write an answer. Once the
// connection has closed, Read and Write fail.
type Blocking struct {
	// Serve is called when there is input. It should handle one or all available requests, and may wait in Read for the
	// end of a request. The result decides what happens next:
	//   - If Serve returns nil, the connection is idle until more input arrives. The next call can read the input that
	//     this call has left unread. If this call has read only a part of the input, the next call follows immediately.
	//   - If Serve returns an error, such as io.EOF from Read, the connection sends its output and closes. The error is
	//     the close reason.
	//
	// If Serve reads from n through a buffer of its own, such as a bufio.Reader, the server does not know about input
	// that remains in this buffer, and does not call Serve again because of it. Serve should therefore return only when
	// the buffer is empty, or store the bufio.Reader with NetConn.SetValue for the next call.
	//
	// When Serve returns, the server clears the deadlines of n. After Serve has returned, only n.Ref may be used. If
	// Serve returns nil without having read anything although 64 KiB of input wait, the connection closes with
	// ErrMessageTooLong.
	Serve func(n *NetConn) error
	// Begin, if set, is called once for each connection, before the first call of Serve. It is for protocols in which
	// the server sends first. The rules for Serve also apply to Begin.
	Begin func(n *NetConn) error
	// End, if set, is called once, after the connection has closed and the last call of Begin or Serve has returned.
	// reason is the close reason, as in Handler.Closed. End can still read the value of n with n.Value.
	End func(n *NetConn, reason error)
	// MaxCalls is the maximum number of calls of Begin, Serve and End that run at the same time, for all connections of
	// this handler together. Further calls wait and then start in order. The default is 4,096.
	MaxCalls int

	mu      sync.Mutex
	running int        // calls that run now
	waiting []*NetConn // connections whose scheduled callback waits for another to end; some may have closed
}

const defaultMaxCalls = 4096

func (b *Blocking) validate(fieldName string) error {
	switch {
	case b == nil:
		return badConfig("%s is a nil *Blocking; expected one with Serve", fieldName)
	case b.Serve == nil:
		return badConfig("%s: Blocking.Serve is nil; expected a function that handles input", fieldName)
	case b.MaxCalls < 0:
		return badConfig("%s: Blocking.MaxCalls is %d; expected 0 (the default, %d) or more", fieldName, b.MaxCalls, defaultMaxCalls)
	}
	return nil
}

type callback uint8

const (
	serveCallback callback = iota
	beginCallback
	endCallback
)

func getOrCreateNetConn(c *Conn) *NetConn {
	n, ok := c.Value().(*NetConn)
	if !ok {
		n = newNetConn(c)
		c.SetValue(n)
	}
	return n
}

func (b *Blocking) Opened(c *Conn) {
	if b.Begin != nil {
		b.retainAndScheduleUnlessBusy(c, getOrCreateNetConn(c), beginCallback)
	}
}

func (b *Blocking) Received(c *Conn, in []byte) int {
	n := getOrCreateNetConn(c)
	n.bufferInput(c, in)
	b.retainAndScheduleUnlessBusy(c, n, serveCallback)
	return len(in)
}

func (b *Blocking) Ended(c *Conn, rest []byte) int {
	if _, ok := c.Value().(*NetConn); !ok && len(rest) == 0 {
		return 0
	}
	n := getOrCreateNetConn(c)
	n.bufferInput(c, rest)
	n.markPeerEnded()
	if n.unreadBytes() > 0 {
		b.retainAndScheduleUnlessBusy(c, n, serveCallback)
	}
	return len(rest)
}

func (b *Blocking) Closed(c *Conn, reason error) {
	if _, ok := c.Value().(*NetConn); !ok && b.End == nil {
		return
	}
	n := getOrCreateNetConn(c)
	n.markConnClosed(reason)
	b.scheduleEndIfConnClosed(n)
}

func (b *Blocking) scheduleEndIfConnClosed(n *NetConn) {
	n.mu.Lock()
	ends := n.connClosed && !n.busy && b.End != nil && n.callback != endCallback
	if ends {
		n.busy, n.callback = true, endCallback
	}
	n.mu.Unlock()
	if ends {
		n.server.blockingCalls.Add(1)
		b.startOrQueueCallback(n)
	}
}

func (b *Blocking) retainAndScheduleUnlessBusy(c *Conn, n *NetConn, cb callback) {
	n.mu.Lock()
	begins := !n.busy
	if begins {
		n.busy, n.callback = true, cb
	}
	n.mu.Unlock()
	if begins {
		n.retainWithIndependentDirections(c)
		n.server.blockingCalls.Add(1)
		b.startOrQueueCallback(n)
	}
}

// startOrQueueCallback runs the callback of n on a new goroutine, or queues n if MaxCalls callbacks already run.
func (b *Blocking) startOrQueueCallback(n *NetConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	limit := b.MaxCalls
	if limit <= 0 {
		limit = defaultMaxCalls
	}
	if b.running >= limit {
		b.waiting = append(b.waiting, n)
		return
	}
	b.running++
	go b.runCallbackThenQueuedOnes(n)
}

func (b *Blocking) runCallbackThenQueuedOnes(first *NetConn) {
	engine.RerunAfterGoexitThenExit(func() {
		for {
			if next := first; next != nil {
				first = nil // before the callback, which may call runtime.Goexit
				b.invokeCallbackAndPostResult(next)
			}
			if first = b.dequeueWaitingOrFreeSlot(); first == nil {
				return
			}
		}
	})
}

func (b *Blocking) dequeueWaitingOrFreeSlot() (n *NetConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		b.running--
		b.waiting = nil
		return nil
	}
	n = b.waiting[0]
	b.waiting[0] = nil
	b.waiting = b.waiting[1:]
	return n
}

func (b *Blocking) invokeCallbackAndPostResult(n *NetConn) {
	n.mu.Lock()
	cb, reason := n.callback, n.closeReason
	skip := n.connClosed && cb != endCallback
	n.progressed = cb == beginCallback
	n.mu.Unlock()
	var err error
	returned := skip
	defer func() {
		if !returned {
			v := recover()
			if v == nil {
				v = engine.ErrGoexit
			}
			err = n.ref.r.ReportPanic(n.RemoteAddr().String(), v, debug.Stack())
		}
		n.mu.Lock()
		posted := cb != endCallback && n.postReleasingLockWhileFull(func(c *Conn) { b.serveAgainReleaseOrClose(c, n, err) }, func() { b.finishCallAndScheduleEndIfClosed(n) })
		n.mu.Unlock()
		if !posted {
			b.finishCallAndScheduleEndIfClosed(n)
		}
	}()
	switch {
	case skip:
	case cb == serveCallback:
		err = b.Serve(n)
	case cb == beginCallback:
		err = b.Begin(n)
	case cb == endCallback:
		b.End(n, reason)
	}
	returned = true
}

func (b *Blocking) serveAgainReleaseOrClose(c *Conn, n *NetConn, callbackErr error) {
	n.mu.Lock()
	unread := len(n.in) - n.readOffset
	again := callbackErr == nil && unread > 0 && n.progressed
	if again {
		n.callback = serveCallback
	} else {
		n.stopDeadlinesAndResumeLocked(c)
	}
	keep := unread > 0 || n.value != nil
	n.mu.Unlock()
	var panicked *PanicError
	switch {
	case again:
		b.startOrQueueCallback(n)
		return
	case errors.As(callbackErr, &panicked):
		c.core().Abort(callbackErr)
	case callbackErr != nil:
		c.CloseWith(callbackErr)
	case unread >= maxUnreadInput:
		c.CloseWith(ErrMessageTooLong)
	default:
		c.Release()
		c.core().SetReadingDespiteUnsentOutput(false)
		if !keep {
			c.SetValue(nil)
		}
	}
	b.finishCallAndScheduleEndIfClosed(n)
}

func (n *NetConn) stopDeadlinesAndResumeLocked(c *Conn) {
	n.readDeadline.stopAndClear()
	n.writeDeadline.stopAndClear()
	if n.paused {
		n.paused = false
		c.Resume()
	}
	if n.readOffset == len(n.in) {
		n.in, n.readOffset = nil, 0
	}
}

func (b *Blocking) finishCallAndScheduleEndIfClosed(n *NetConn) {
	n.mu.Lock()
	n.busy = false
	n.mu.Unlock()
	b.scheduleEndIfConnClosed(n)
	n.server.blockingCalls.Done()
}

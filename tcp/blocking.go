package tcp

import (
	"errors"
	"runtime/debug"
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
)

// Blocking is a Handler for code that blocks, such as that of a library which takes a
// net.Conn: a connection is idle without a goroutine until there is something to read, and
// then Serve is called on one.
//
// Its functions are called one at a time for each connection, in the order Begin, Serve,
// End, each on a goroutine, for MaxCalls connections at a time; further ones wait, in
// order. A panic or runtime.Goexit in them closes the connection with a *PanicError.
// ListenAndServe returns when all of them have.
//
// A call under way keeps a drain and the peer's end from closing the connection: a
// request that has begun is answered. When the connection closes for another reason, Read
// and Write fail.
type Blocking struct {
	// Serve is called when input has come, and best handles one request, or as many as
	// there are. When it returns nil, the connection is idle again, and Serve is called
	// anew when there is more to read: at once if it has read some of what is there and
	// left some. What it has not read is kept. What it has read into a buffer of its own,
	// such as a bufio.Reader, nobody sees: it does not return before that is empty, or
	// keeps a connection's reader with NetConn.SetValue and returns with none buffered.
	// It may wait in Read for the rest of a request.
	//
	// When it returns an error, the connection is closed in order with that reason;
	// io.EOF, as Read gives it, is the peer's end.
	//
	// Deadlines that it sets are taken back when it returns, and n is not to be used
	// after that, but for what n.Ref gave. A connection whose Serve reads nothing of
	// 64 KiB is closed with ErrMessageTooLong.
	Serve func(n *NetConn) error
	// Begin, if set, is called first, by the same rules, for protocols whose server
	// speaks first.
	Begin func(n *NetConn) error
	// End, if set, is called last, with the reason as in Handler.Closed. n's Value is
	// still there.
	End func(n *NetConn, why error)
	// MaxCalls is the most calls under way at a time, of all connections that have this
	// handler, and so the most goroutines. The default is 4,096.
	MaxCalls int

	mu      sync.Mutex
	calls   int        // under way
	waiting []*NetConn // for one to end; closed connections, too
}

// maxCalls is the default of Blocking.MaxCalls.
const maxCalls = 4096

func (b *Blocking) check(what string) error {
	switch {
	case b == nil:
		return badConfig("%s is a nil *Blocking; expected one with Serve", what)
	case b.Serve == nil:
		return badConfig("%s: Blocking.Serve is nil; expected what to do with a connection that has something to read", what)
	case b.MaxCalls < 0:
		return badConfig("%s: Blocking.MaxCalls is %d; expected 0 (the default, %d) or more", what, b.MaxCalls, maxCalls)
	}
	return nil
}

// call is a function of a Blocking.
type call uint8

const (
	callServe call = iota
	callBegin
	callEnd
)

// netConn is what the connection has, or gets now.
func netConn(c *Conn) *NetConn {
	n, ok := c.Value().(*NetConn)
	if !ok {
		n = newNetConn(c)
		c.SetValue(n)
	}
	return n
}

// Opened implements Handler.
func (b *Blocking) Opened(c *Conn) {
	if b.Begin != nil {
		b.begin(c, netConn(c), callBegin)
	}
}

// Received implements Handler.
func (b *Blocking) Received(c *Conn, in []byte) int {
	n := netConn(c)
	n.arrived(c, in)
	b.begin(c, n, callServe)
	return len(in)
}

// Ended implements Handler.
func (b *Blocking) Ended(c *Conn, rest []byte) int {
	if _, ok := c.Value().(*NetConn); !ok && len(rest) == 0 {
		return 0
	}
	n := netConn(c)
	n.arrived(c, rest)
	n.end()
	if n.unread() > 0 {
		b.begin(c, n, callServe)
	}
	return len(rest)
}

// Closed implements Handler.
func (b *Blocking) Closed(c *Conn, why error) {
	if _, ok := c.Value().(*NetConn); !ok && b.End == nil {
		return
	}
	n := netConn(c)
	n.finish(why)
	b.end(n)
}

// end has End called of a connection that has closed, when no other function is.
func (b *Blocking) end(n *NetConn) {
	n.mu.Lock()
	ends := n.gone && !n.busy && b.End != nil && n.next != callEnd
	if ends {
		n.busy, n.next = true, callEnd
	}
	n.mu.Unlock()
	if ends {
		n.server.calls.Add(1)
		b.run(n)
	}
}

// begin has a function called, unless one is. The connection stays open for it.
func (b *Blocking) begin(c *Conn, n *NetConn, what call) {
	n.mu.Lock()
	begins := !n.busy
	if begins {
		n.busy, n.next = true, what
	}
	n.mu.Unlock()
	if begins {
		n.attach(c)
		n.server.calls.Add(1)
		b.run(n)
	}
}

// run has n's next function called when there is a goroutine for it.
func (b *Blocking) run(n *NetConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.MaxCalls
	if most <= 0 {
		most = maxCalls
	}
	if b.calls >= most {
		b.waiting = append(b.waiting, n)
		return
	}
	b.calls++
	go b.work(n)
}

// work calls functions as long as some wait. Server.calls counts the connections whose
// functions are called, or wait.
func (b *Blocking) work(n *NetConn) {
	engine.SurviveGoexit(func() {
		for {
			if next := n; next != nil {
				n = nil // first: the function may call runtime.Goexit
				b.call(next)
			}
			if n = b.pop(); n == nil {
				return
			}
		}
	})
}

// pop takes the next one that waits, or ends a goroutine.
func (b *Blocking) pop() (n *NetConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		b.calls--
		b.waiting = nil
		return nil
	}
	n = b.waiting[0]
	b.waiting[0] = nil
	b.waiting = b.waiting[1:]
	return n
}

// call calls n's next function, and gives the connection back. A panic or runtime.Goexit there is
// the connection's end.
func (b *Blocking) call(n *NetConn) {
	n.mu.Lock()
	what, why := n.next, n.why
	skip := n.gone && what != callEnd
	n.taken = what == callBegin
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
		posted := what != callEnd && n.ask(func(c *Conn) { b.back(c, n, err) }, func() { b.release(n) })
		n.mu.Unlock()
		if !posted {
			b.release(n)
		}
	}()
	switch {
	case skip:
	case what == callServe:
		err = b.Serve(n)
	case what == callBegin:
		err = b.Begin(n)
	case what == callEnd:
		b.End(n, why)
	}
	returned = true
}

// back is what the connection's owner does after a call: Serve is called again, or the
// connection is idle, or is closed.
func (b *Blocking) back(c *Conn, n *NetConn, err error) {
	n.mu.Lock()
	unread := len(n.in) - n.off
	again := err == nil && unread > 0 && n.taken
	if again {
		n.next = callServe
	} else {
		n.calm(c)
	}
	keep := unread > 0 || n.value != nil
	n.mu.Unlock()
	var panicked *PanicError
	switch {
	case again:
		b.run(n)
		return
	case errors.As(err, &panicked):
		c.core().Abort(err)
	case err != nil:
		c.CloseWith(err)
	case unread >= maxUnread:
		c.CloseWith(ErrMessageTooLong)
	default:
		c.Release()
		c.core().SetIndependentDirections(false)
		if !keep {
			c.SetValue(nil)
		}
	}
	b.release(n)
}

// calm has nothing wait for an idle connection.
func (n *NetConn) calm(c *Conn) {
	n.readBy.stop()
	n.writeBy.stop()
	if n.paused {
		n.paused = false
		c.Resume()
	}
	if n.off == len(n.in) {
		n.in, n.off = nil, 0
	}
}

// release says that no function of a connection is called any more but End.
func (b *Blocking) release(n *NetConn) {
	n.mu.Lock()
	n.busy = false
	n.mu.Unlock()
	b.end(n)
	n.server.calls.Done()
}

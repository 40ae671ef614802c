package web

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
)

// HTTP is a [tcp.Handler] that serves an [http.Handler] over HTTP/1.1. A connection
// between two requests takes what an idle connection takes, and nothing else.
//
// A handler runs on Pool, and may block. It sees what it sees of net/http's server, but for
// HTTP/2. One that is [Quick] runs on the event loop.
//
// Its fields are not changed once it serves. One HTTP can serve several servers.
type HTTP struct {
	// Handler answers requests. The default is http.DefaultServeMux.
	Handler http.Handler
	// Pool runs the handlers. A request for which it has no room, or that it sheds, is
	// answered with 503. The default is a pool of this package's with 10,000 workers at
	// most, whose queue has room for 1,048,576 requests and never sheds. A handler that
	// waits for its client, for more of the body or for room to send, does not count.
	Pool *pool.Pool
	// MaxHeaderBytes is the most bytes of a request's head. A larger one is answered
	// with 431. The default is 32 KiB; it is less than the server's Limits.MaxMessage.
	MaxHeaderBytes int
	// ReadHeaderTimeout is the most time from a head's first byte to its last, and
	// IdleTimeout that from a response to the next request: the connection is closed
	// then, up to 400 ms later. The defaults are none; Limits.MessageTimeout and
	// IdleTimeout of the server hold in any case. IdleTimeout costs an idle connection
	// some 200 bytes, which Limits.IdleTimeout does not.
	ReadHeaderTimeout, IdleTimeout time.Duration
	// ReadTimeout is the most time from the end of a request's head to the end of its
	// body, and WriteTimeout that to the end of its response. The defaults are none. A
	// handler can set its own: see http.ResponseController.
	ReadTimeout, WriteTimeout time.Duration
	// ErrorLog gets what is logged of panics and of mistakes in handlers. The default is
	// package log's.
	ErrorLog *log.Logger
	// Endpoints are the WebSockets and Events of Handler whose connections move to the new
	// process in tcp.Server.Upgrade, each by a name under which that has it, too. A
	// connection there of which the user's code knows something moves if that is saved: see
	// SocketMigrator, and Events.Save. Those of others stay, and are drained. The default is
	// none.
	Endpoints map[string]Endpoint

	once   sync.Once
	server *http.Server // for http.ServerContextKey

	sendsFiles atomic.Pointer[tcp.Limits] // those of the last server that has sent a file
}

// Handler is an [HTTP] with default settings.
func Handler(h http.Handler) tcp.Handler { return &HTTP{Handler: h} }

// ErrTimeout is the reason of connections whose client let IdleTimeout or ReadHeaderTimeout
// pass.
var ErrTimeout = errors.New("web: no request within IdleTimeout or ReadHeaderTimeout")

// defaultMaxHeaderBytes is the default of HTTP.MaxHeaderBytes.
const defaultMaxHeaderBytes = 32 << 10

// defaultPool is the default of HTTP.Pool.
var defaultPool = sync.OnceValue(func() *pool.Pool {
	p, err := pool.New(pool.Config{Max: 10_000, Queue: 1 << 20, KeepQueued: true, FIFO: true, MemoryLimit: -1})
	if err != nil {
		panic(err)
	}
	return p
})

func (h *HTTP) handler() http.Handler {
	if h.Handler == nil {
		return http.DefaultServeMux
	}
	return h.Handler
}

// httpServer is what handlers find that ask for the http.Server.
func (h *HTTP) httpServer() *http.Server {
	h.once.Do(func() {
		h.server = &http.Server{Handler: h.handler(), MaxHeaderBytes: h.MaxHeaderBytes, ErrorLog: h.ErrorLog,
			ReadHeaderTimeout: h.ReadHeaderTimeout, IdleTimeout: h.IdleTimeout, ReadTimeout: h.ReadTimeout, WriteTimeout: h.WriteTimeout}
	})
	return h.server
}

func (h *HTTP) logf(format string, args ...any) {
	if h.ErrorLog != nil {
		h.ErrorLog.Printf(format, args...)
	} else {
		log.Printf(format, args...)
	}
}

// maxHeadBytes is the most bytes of a head.
func (h *HTTP) maxHeadBytes(c *tcp.Conn) int {
	limit := h.MaxHeaderBytes
	if limit <= 0 {
		limit = defaultMaxHeaderBytes
	}
	return min(limit, maxMessage(c)-1)
}

func (h *HTTP) pool() *pool.Pool {
	if h.Pool == nil {
		return defaultPool()
	}
	return h.Pool
}

// startIdleTimer has the connection closed if no request comes.
func (h *HTTP) startIdleTimer(c *tcp.Conn) {
	if h.IdleTimeout > 0 {
		c.SetTimer(h.IdleTimeout)
	}
}

// Opened implements tcp.Handler.
func (h *HTTP) Opened(c *tcp.Conn) { h.startIdleTimer(c) }

// maxPipelined is how many pipelined requests are answered, by one worker or in one call,
// before other connections have their turn.
const maxPipelined = 32

// Received implements tcp.Handler.
func (h *HTTP) Received(c *tcp.Conn, in []byte) (used int) {
	for n := 0; used < len(in) && !c.Paused(); n++ {
		if n == maxPipelined {
			yield(c)
			break
		}
		if x, ok := c.Value().(*exchange); ok {
			n := x.readBody(c, in[used:])
			used += n
			if x.inputPaused || n == 0 {
				break
			}
			continue
		}
		seen := 0
		if used == 0 {
			seen = unusedInput(c)
		}
		n, more := h.serveNext(c, in[used:], seen)
		if used += n; !more {
			break
		}
	}
	return used
}

// serveNext takes the request that in begins with, if its head is whole, of which it has seen some
// bytes before. It says how many it has used, and whether what is behind them is HTTP's.
func (h *HTTP) serveNext(c *tcp.Conn, in []byte, seen int) (used int, more bool) {
	n, err := headLength(in, seen, h.maxHeadBytes(c))
	if err != nil {
		h.rejectRequest(c, err)
		return len(in), false
	}
	if n == 0 {
		if h.ReadHeaderTimeout > 0 && seen == 0 {
			c.SetTimer(h.ReadHeaderTimeout)
		}
		return 0, false
	}
	x, err := h.parseRequest(c, in[:n])
	if err != nil {
		h.rejectRequest(c, err)
		return len(in), false
	}
	if h.IdleTimeout > 0 || h.ReadHeaderTimeout > 0 {
		c.SetTimer(0)
	}
	if x.length == 0 && x.routeRequest() {
		return n, x.serveOnOwner(c)
	}
	n += x.parsePipelined(c, in[n:])
	x.dispatch(c)
	return n, true
}

// parseRequest makes an exchange of a whole head.
func (h *HTTP) parseRequest(c *tcp.Conn, head []byte) (*exchange, error) {
	x := h.newExchange(c)
	var err error
	if x.head, err = parseHead(head, x.req, &x.headMemory); err != nil {
		recycleExchange(x)
		return nil, err
	}
	x.req.RemoteAddr = x.remoteAddr(c)
	x.req.TLS = c.TLS()
	return x, nil
}

// parsePipelined has the requests that in begins with follow x, as far as they are whole, well
// formed and without bodies, and says how many bytes they have. Behind what may be no HTTP
// nothing is read.
func (x *exchange) parsePipelined(c *tcp.Conn, in []byte) (used int) {
	limit := x.h.maxHeadBytes(c)
	for range maxPipelined - 1 {
		if x.length != 0 || x.head.closeAfter || x.req.Method == http.MethodConnect || x.req.Header["Upgrade"] != nil {
			break
		}
		n, err := headLength(in[used:], 0, limit)
		if n == 0 || err != nil {
			break
		}
		y, err := x.h.parseRequest(c, in[used:used+n])
		if err != nil {
			break
		}
		if y.length != 0 {
			recycleExchange(y)
			break
		}
		x.next, x = y, y
		used += n
	}
	return used
}

// remoteAddr is the peer's address. That of the last request is kept as text: with pipelined
// ones it is mostly the same.
func (x *exchange) remoteAddr(c *tcp.Conn) string {
	a, ok := x.ref.RemoteAddr()
	if !ok || !a.IsValid() {
		return cmp.Or(c.RemoteAddr().String(), "@") // of a unix socket, as in net/http
	}
	if a != x.headMemory.addr {
		x.headMemory.addr, x.headMemory.addrText = a, a.String()
	}
	return x.headMemory.addrText
}

// serveOnOwner calls a Quick handler, and reports whether the connection is still HTTP's.
func (x *exchange) serveOnOwner(c *tcp.Conn) (more bool) {
	x.req.Body = http.NoBody
	x.body.framing.done = true
	x.res.init(x, c)
	x.callHandler()
	if len(x.res.out) > 0 {
		_, _ = c.Write(x.res.out)
	}
	more = x.switchHandler == nil && !x.res.closeAfter
	switch {
	case x.switchHandler != nil:
		x.switchHandler(c)
	case x.res.closeAfter:
		_ = c.Close()
	default:
		x.h.startIdleTimer(c)
	}
	recycleExchange(x)
	return more
}

// rejectRequest answers what is no request, and closes the connection.
func (h *HTTP) rejectRequest(c *tcp.Conn, err error) {
	status, why := errorStatus(err)
	text := fmt.Sprintf("%d %s", status, http.StatusText(status))
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n%s: %s", text, text, why)
	_ = c.Close()
}

// Ended implements tcp.Handler.
func (h *HTTP) Ended(c *tcp.Conn, rest []byte) (used int) {
	used = h.Received(c, rest)
	if x, ok := c.Value().(*exchange); ok && (used == len(rest) || !c.Paused()) {
		for x.next != nil {
			x = x.next
		}
		x.handlePeerEnd()
	}
	return used
}

// Closed implements tcp.Handler.
func (h *HTTP) Closed(c *tcp.Conn, why error) {
	x, _ := c.Value().(*exchange)
	for y := x; y != nil; y = y.next {
		y.handleConnClosed(why)
	}
	if x != nil && x.job != nil {
		x.job.takeExchange().abandonAll() // if no worker has it
	}
}

// Draining implements tcp.DrainingHandler.
func (h *HTTP) Draining(c *tcp.Conn) {
	x, _ := c.Value().(*exchange)
	for ; x != nil; x = x.next {
		x.mu.Lock()
		x.draining = true
		x.mu.Unlock()
	}
}

// NextProtos implements tcp.ALPNHandler: by TLS, too, HTTP/1.1 is spoken, and not HTTP/2. A
// client that offers only others fails in its handshake.
func (h *HTTP) NextProtos(configured []string) []string {
	all := slices.DeleteFunc(slices.Clone(configured), func(p string) bool { return p == "h2" || p == "http/1.1" })
	return append(all, "http/1.1")
}

// Heartbeat implements tcp.HeartbeatHandler: HTTP has none. A connection without a request
// is closed when it has been silent for as long as one that leaves them unanswered.
func (h *HTTP) Heartbeat(c *tcp.Conn) (answers bool) {
	_, busy := c.Value().(*exchange)
	return !busy
}

// Timer implements tcp.TimerHandler.
func (h *HTTP) Timer(c *tcp.Conn) {
	if _, ok := c.Value().(*exchange); !ok {
		c.CloseWith(ErrTimeout)
	}
}

// Quick marks a handler that neither blocks nor computes for long, nor reads a request's
// body: it runs on the event loop, without a goroutine, and as long as it runs the other
// connections of its loop wait. The http.Request, its Header and URL, and the
// ResponseWriter are used again for other requests: it must not keep them when it has
// returned. What it writes waits in memory, up to the server's Limits.MaxUnsent.
//
// It is marked as the Handler of an HTTP, or as one of an http.ServeMux that is. A request
// with a body runs it on the pool like any other.
//
// It panics if h is nil.
func Quick(h http.Handler) http.Handler {
	if h == nil {
		panic("web: Quick: the http.Handler is nil; expected what answers requests")
	}
	return quickHandler{h}
}

type quickHandler struct{ http.Handler }

// routeRequest finds the handler behind a ServeMux, and says whether it is to be called on the event
// loop.
func (x *exchange) routeRequest() (isQuick bool) {
	mux, ok := x.handler.(*http.ServeMux)
	if !ok || x.req.RequestURI == "*" {
		_, isQuick = x.handler.(quickHandler)
		return isQuick
	}
	h, pattern := mux.Handler(x.req)
	if !strings.Contains(pattern, "{") { // or ServeMux.ServeHTTP alone can tell the request its PathValues
		x.handler, x.req.Pattern = h, pattern
	}
	_, isQuick = h.(quickHandler)
	return isQuick
}

// Ref is the connection of a request that an HTTP serves: for what outlives the request,
// such as a server's log. ok is false for a request of another server, or of a Quick
// handler.
func Ref(r *http.Request) (ref tcp.Ref, ok bool) {
	ref, ok = r.Context().Value(refKey{}).(tcp.Ref)
	return ref, ok
}

var (
	_ tcp.DrainingHandler  = (*HTTP)(nil)
	_ tcp.TimerHandler     = (*HTTP)(nil)
	_ tcp.HeartbeatHandler = (*HTTP)(nil)
	_ tcp.ALPNHandler      = (*HTTP)(nil)
	_ io.ReaderFrom        = (*response)(nil)
)

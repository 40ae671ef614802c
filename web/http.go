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

// HTTP is a [tcp.Handler] that serves an [http.Handler] over HTTP/1.1. Between two requests, a connection takes no
// memory beyond that of an idle connection. Several servers can share one HTTP. Do not change the fields while HTTP
// serves.
//
// Handlers run on Pool and may block, as in net/http. Handlers that are marked as [Quick] run on the event loop.
type HTTP struct {
	// Handler answers requests. The default is http.DefaultServeMux.
	Handler http.Handler
	// Pool runs the handlers. If the pool rejects or sheds a request, the answer is 503. A handler does not count as a
	// worker while it waits for input from its client or for space to send. The default is a common pool of this
	// package with at most 10,000 workers and 1,048,576 queued requests. The default pool sheds nothing.
	Pool *pool.Pool
	// MaxHeaderBytes is the maximum size of a request's header block, including the request line. A larger block is
	// answered with 431. The default is 32 KiB. MaxHeaderBytes must be less than Limits.MaxMessage of the server.
	MaxHeaderBytes int
	// ReadHeaderTimeout limits the time from the first byte of a request to the end of its header. IdleTimeout limits
	// the time from a response to the next request. A connection that exceeds either is closed, up to 400 ms late. By
	// default there is no limit, but Limits.MessageTimeout and Limits.IdleTimeout of the server always apply.
	// IdleTimeout makes an idle connection about 200 bytes larger; Limits.IdleTimeout does not.
	ReadHeaderTimeout, IdleTimeout time.Duration
	// ReadTimeout limits the time from the end of a request's header to the end of its body. WriteTimeout limits the
	// time from the same moment to the end of the response. By default there is no limit. A handler can set its own
	// limits with http.ResponseController.
	ReadTimeout, WriteTimeout time.Duration
	// ErrorLog logs panics and mistakes in handlers. The default is the standard logger of package log.
	ErrorLog *log.Logger
	// Endpoints are WebSockets and Events within Handler. In tcp.Server.Upgrade, their connections move to the new
	// process, where Endpoints must contain the same names. A connection with a Value moves only if the Value is saved;
	// see SocketMigrator and Events.Save. The connections of all other WebSockets and Events stay in the old process
	// and are drained. The default is no endpoints.
	Endpoints map[string]Endpoint

	once   sync.Once
	server *http.Server // for http.ServerContextKey

	sendsFiles atomic.Pointer[tcp.Limits] // identifies the last server that has sent a file
}

// Handler returns an [HTTP] that serves h with default settings.
func Handler(h http.Handler) tcp.Handler { return &HTTP{Handler: h} }

// If a connection exceeds IdleTimeout or ReadHeaderTimeout, it closes with ErrTimeout.
var ErrTimeout = errors.New("web: no request within IdleTimeout or ReadHeaderTimeout")

const defaultMaxHeaderBytes = 32 << 10

var defaultPool = sync.OnceValue(func() *pool.Pool {
	p, err := pool.New(pool.Config{Max: 10_000, Queue: 1 << 20, KeepQueued: true, FIFO: true, MemoryLimit: -1})
	if err != nil {
		panic(err)
	}
	return p
})

func (h *HTTP) handlerOrDefaultMux() http.Handler {
	if h.Handler == nil {
		return http.DefaultServeMux
	}
	return h.Handler
}

func (h *HTTP) httpServerForContext() *http.Server {
	h.once.Do(func() {
		h.server = &http.Server{Handler: h.handlerOrDefaultMux(), MaxHeaderBytes: h.MaxHeaderBytes, ErrorLog: h.ErrorLog,
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

func (h *HTTP) maxHeadBytes(c *tcp.Conn) int {
	limit := h.MaxHeaderBytes
	if limit <= 0 {
		limit = defaultMaxHeaderBytes
	}
	return min(limit, maxMessage(c)-1)
}

func (h *HTTP) poolOrDefault() *pool.Pool {
	if h.Pool == nil {
		return defaultPool()
	}
	return h.Pool
}

func (h *HTTP) startIdleTimer(c *tcp.Conn) {
	if h.IdleTimeout > 0 {
		c.SetTimer(h.IdleTimeout)
	}
}

// Opened implements tcp.Handler.
func (h *HTTP) Opened(c *tcp.Conn) { h.startIdleTimer(c) }

// After maxPipelined requests of one connection, the event loop serves other connections.
const maxPipelined = 32

// Received implements tcp.Handler.
func (h *HTTP) Received(c *tcp.Conn, in []byte) (used int) {
	for n := 0; used < len(in) && !c.Paused(); n++ {
		if n == maxPipelined {
			yield(c)
			break
		}
		if x, ok := c.Value().(*exchange); ok {
			n := x.bufferOrDiscardBodyInput(c, in[used:])
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
		n, more := h.serveNextRequest(c, in[used:], seen)
		if used += n; !more {
			break
		}
	}
	return used
}

// serveNextRequest handles the request at the beginning of in. If the header is incomplete, used is 0. The first
// alreadySearched bytes do not contain the end of the header. If more input can be processed, keepReading is true.
func (h *HTTP) serveNextRequest(c *tcp.Conn, in []byte, alreadySearched int) (used int, keepReading bool) {
	n, err := completeHeadLength(in, alreadySearched, h.maxHeadBytes(c))
	if err != nil {
		h.rejectRequest(c, err)
		return len(in), false
	}
	if n == 0 {
		if h.ReadHeaderTimeout > 0 && alreadySearched == 0 {
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
		return n, x.serveOnConnOwner(c)
	}
	n += x.parsePipelined(c, in[n:])
	x.submitToPoolOrReject(c)
	return n, true
}

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

// parsePipelined appends the requests at the beginning of in to the list of x and returns their total length. It stops
// before a request that is incomplete, invalid or has a body, and after a request that may end HTTP on the connection.
func (x *exchange) parsePipelined(c *tcp.Conn, in []byte) (used int) {
	limit := x.h.maxHeadBytes(c)
	for range maxPipelined - 1 {
		if x.length != 0 || x.head.closeAfter || x.req.Method == http.MethodConnect || x.req.Header["Upgrade"] != nil {
			break
		}
		n, err := completeHeadLength(in[used:], 0, limit)
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

func (x *exchange) serveOnConnOwner(c *tcp.Conn) (keepReading bool) {
	x.req.Body = http.NoBody
	x.body.framing.done = true
	x.res.init(x, c)
	x.serveAndFinishRecoveringPanic()
	x.res.writeOnConnOwner(c)
	keepReading = x.switchHandler == nil && !x.res.closeAfter
	switch {
	case x.switchHandler != nil:
		x.switchHandler(c)
	case x.res.closeAfter:
		_ = c.Close()
	default:
		x.h.startIdleTimer(c)
	}
	recycleExchange(x)
	return keepReading
}

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
		x.failBodyReadAndCancelContext()
	}
	return used
}

// Closed implements tcp.Handler.
func (h *HTTP) Closed(c *tcp.Conn, why error) {
	x, _ := c.Value().(*exchange)
	for y := x; y != nil; y = y.next {
		y.abortOnConnClosed(why)
	}
	if x != nil && x.job != nil {
		x.job.takeExchange().cancelThisAndFollowing() // unless a worker has it
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

// NextProtos implements tcp.ALPNHandler. It removes HTTP/2 from the configured protocols and adds HTTP/1.1.
func (h *HTTP) NextProtos(configured []string) []string {
	all := slices.DeleteFunc(slices.Clone(configured), func(p string) bool { return p == "h2" || p == "http/1.1" })
	return append(all, "http/1.1")
}

// Heartbeat implements tcp.HeartbeatHandler. It sends nothing, because HTTP has no heartbeats. If a connection has no
// request, it closes as if the client had not answered heartbeats.
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

// Quick marks h as a handler that neither blocks nor computes for long nor reads the body of a request. h runs on the
// event loop, without a goroutine, while other connections of the loop wait. h must not keep the http.Request, its
// Header, its URL or the ResponseWriter, because HTTP reuses them. The output of h is limited to Limits.MaxUnsent.
//
// Use the result as the Handler of an HTTP. If the Handler is an http.ServeMux, register the result there. A request
// with a body always runs on the pool. If h is nil, Quick panics.
func Quick(h http.Handler) http.Handler {
	if h == nil {
		panic("web: Quick: the http.Handler is nil; expected a handler")
	}
	return quickHandler{h}
}

type quickHandler struct{ http.Handler }

// routeRequest finds the handler for the request: in the mux, if the server's handler is an http.ServeMux. isQuick
// reports whether the handler is marked as Quick.
func (x *exchange) routeRequest() (isQuick bool) {
	mux, ok := x.handler.(*http.ServeMux)
	if !ok || x.req.RequestURI == "*" {
		_, isQuick = x.handler.(quickHandler)
		return isQuick
	}
	h, pattern := mux.Handler(x.req)
	if !strings.Contains(pattern, "{") { // otherwise only ServeMux.ServeHTTP can set PathValues
		x.handler, x.req.Pattern = h, pattern
	}
	_, isQuick = h.(quickHandler)
	return isQuick
}

// Ref returns a handle of the connection of a request. The handle may also be used after the request. If the request is
// served by a Quick handler, or is not served by an HTTP, ok is false.
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

package web

import (
	"cmp"
	"context"
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

	"github.com/myriad-go/myriad/internal/overload"
	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
)

// HTTP is a [tcp.Handler] that serves an [http.Handler] over HTTP/1.1 and HTTP/2. Between two HTTP/1.1 requests, a
// connection takes no more memory than an idle connection of any other handler. Several servers can share one HTTP. Do
// not change the fields while HTTP serves.
//
// Handlers may block, as in net/http. At first, a handler runs on Pool. After about 200 calls shorter than 100 µs, HTTP
// moves the handler to the event loop. A handler can run on the loop only in the epoll model, if the loops share a
// descriptor table, and if the request body has arrived with the header.
//
// A call that takes longer than about 5 ms does not hold up other connections, because another goroutine continues the
// loop. If slow calls recur, or if the handler waits for its client, HTTP moves the handler back to Pool for at least
// one second. If the handler soon moves back to Pool again, it stays there twice as long as before, but at most one
// minute.
//
// With an http.ServeMux, HTTP moves the handlers of each pattern separately, up to 1,024 patterns. Any other Handler
// moves as a whole. [HTTP.Routes] shows where the handlers run. Handlers marked as [Quick] always run on the event
// loop. Handlers marked as [Blocking] always run on Pool.
type HTTP struct {
	// Handler answers requests. The default is http.DefaultServeMux.
	Handler http.Handler
	// Pool runs the handlers. If the pool rejects or sheds a request, HTTP answers the request with the status 503.
	// While a handler waits for its client, the handler does not count as a worker.
	//
	// The default is a single pool for all HTTP values of the process. It has at most 10,000 workers and 1,048,576
	// queued requests, and sheds nothing.
	Pool *pool.Pool
	// MaxHeaderBytes is the maximum size of a request's header, including the request line. A request with a larger
	// header is answered with the status 431. The default is 32 KiB. MaxHeaderBytes must be less than Limits.MaxMessage
	// of the server.
	MaxHeaderBytes int
	// ReadHeaderTimeout limits the time from the first byte of a request to the end of its header. IdleTimeout limits
	// the time from a response to the next request. A connection that exceeds a limit is closed, up to 10 ms late. By
	// default there are no such limits, but Limits.MessageTimeout and Limits.IdleTimeout of the server always apply.
	// IdleTimeout makes an idle connection about 200 bytes larger; Limits.IdleTimeout does not. While Server.Overload
	// shortens idle timeouts, connections that become idle get an eighth of IdleTimeout.
	ReadHeaderTimeout, IdleTimeout time.Duration
	// ReadTimeout limits the time from the end of a request's header to the end of its body. WriteTimeout limits the
	// time until the end of the response. It begins at the end of the request's header or at the end of the previous
	// response, whichever is later. Both timeouts have no effect on Quick handlers. By default there is no limit. A
	// handler can set its own limits with http.ResponseController.
	ReadTimeout, WriteTimeout time.Duration
	// DisableHTTP2 makes TLS connections use HTTP/1.1 only. By default, clients that support HTTP/2 use it, and
	// net/http serves their connections.
	//
	// Over HTTP/2, handlers run on goroutines of net/http instead of Pool, and Quick has no effect. The function Ref
	// returns false, because several requests share a connection. The fields of HTTP and the limits of the server also
	// apply to HTTP/2.
	DisableHTTP2 bool
	// UnencryptedHTTP2 accepts HTTP/2 without TLS (h2c). The client must begin with the HTTP/2 preface.
	UnencryptedHTTP2 bool
	// HTTP2 configures HTTP/2 connections. The default is net/http's configuration. If SendPingTimeout is 0,
	// Server.Heartbeat.Interval is used.
	HTTP2 *http.HTTP2Config
	// ErrorLog receives messages about panics and mistakes of handlers. The default is package log's standard logger.
	ErrorLog *log.Logger
	// Endpoints contains WebSockets and Events that Handler uses, each with a name. tcp.Server.Upgrade moves their
	// connections to the new process, whose Endpoints must contain the same names. A connection with a Value moves only
	// if its handler saves the Value; see SocketMigrator and Events.Save.
	//
	// Connections of WebSockets and Events that are not in Endpoints stay in the old process, which drains them.
	Endpoints map[string]Endpoint

	routes routeTable
	once   sync.Once
	server *http.Server // for http.ServerContextKey

	afterReturn *exchange // see sharedExchangeForLateCalls

	http2Mu      sync.Mutex
	http2Servers map[*tcp.Server]*http2Server // only servers with HTTP/2 connections

	sendsFiles atomic.Pointer[tcp.Limits] // the Limits of the last server that has sent a file, to identify the server
}

// Handler returns an [HTTP] that serves h with default settings.
func Handler(h http.Handler) tcp.Handler { return &HTTP{Handler: h} }

// ErrTimeout is the close reason of a connection that has exceeded IdleTimeout or ReadHeaderTimeout.
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
	h.initOnce()
	return h.server
}

func (h *HTTP) initOnce() {
	h.once.Do(func() {
		h.server = new(http.Server)
		h.configureHTTPServer(h.server)
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		h.afterReturn = &exchange{h: h, req: new(http.Request).WithContext(ended), limits: new(tcp.Limits), state: stateDone}
	})
}

func (h *HTTP) configureHTTPServer(s *http.Server) {
	s.Handler, s.MaxHeaderBytes, s.ErrorLog = h.handlerOrDefaultMux(), h.MaxHeaderBytes, h.ErrorLog
	s.ReadHeaderTimeout, s.IdleTimeout = h.ReadHeaderTimeout, h.IdleTimeout
	s.ReadTimeout, s.WriteTimeout = h.ReadTimeout, h.WriteTimeout
}

func (h *HTTP) logf(format string, args ...any) {
	if h.ErrorLog != nil {
		h.ErrorLog.Printf(format, args...)
	} else {
		log.Printf(format, args...)
	}
}

func (h *HTTP) maxHeadBytes(c *tcp.Conn) int {
	return min(h.maxHeaderBytesOrDefault(), maxMessage(c)-1)
}

func (h *HTTP) maxHeaderBytesOrDefault() int {
	if h.MaxHeaderBytes <= 0 {
		return defaultMaxHeaderBytes
	}
	return h.MaxHeaderBytes
}

func (h *HTTP) poolOrDefault() *pool.Pool {
	if h.Pool == nil {
		return defaultPool()
	}
	return h.Pool
}

func (h *HTTP) startIdleTimer(c *tcp.Conn) {
	if h.IdleTimeout > 0 {
		c.SetTimer(shortenIfOverloaded(c, h.IdleTimeout))
	}
}

func (h *HTTP) Opened(c *tcp.Conn) { h.startIdleTimer(c) }

// maxPipelined is the maximum number of requests of a connection that the event loop handles before it serves other
// connections.
const maxPipelined = 32

func (h *HTTP) Received(c *tcp.Conn, in []byte) (used int) {
	for n := 0; used < len(in) && !c.Paused(); n++ {
		if n == maxPipelined {
			yieldToOtherConns(c)
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
			seen = unusedInputBytes(c)
		}
		n, more := h.serveNextRequest(c, in[used:], seen)
		if used += n; !more {
			break
		}
	}
	return used
}

// serveNextRequest handles the request at the beginning of the input, and pipelined requests after it. alreadySearched
// is the number of bytes in which an earlier call has not found the end of the header. If the header is still
// incomplete, used is 0. If keepReading is true, the caller may continue with the rest of the input.
func (h *HTTP) serveNextRequest(c *tcp.Conn, in []byte, alreadySearched int) (used int, keepReading bool) {
	n, err := completeHeadLength(in, alreadySearched, h.maxHeadBytes(c))
	if err != nil {
		h.rejectRequestAndClose(c, err)
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
		if used, isHTTP2 := h.startHTTP2(c, in); isHTTP2 {
			return used, false
		}
		h.rejectRequestAndClose(c, err)
		return len(in), false
	}
	if h.IdleTimeout > 0 || h.ReadHeaderTimeout > 0 {
		c.SetTimer(0)
	}
	isQuick := x.routeRequest()
	body, isWhole := x.arrivedBody(in[n:])
	runsNow := isQuick && isWhole
	ticket, admitted := x.askOverloadManagerToAdmit(c, runsNow)
	switch {
	case !admitted && isWhole && x.rejectWithFixed503IfPossible(c):
		return n + len(body), true
	case admitted && runsNow:
		return n + len(body), x.serveOnConnOwner(c, body)
	}
	n += x.parsePipelinedOfSameRoute(c, in[n:])
	return n + x.dispatchOrReject(c, body, isWhole, admitted, ticket), true
}

var rejection = []byte("HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\n" +
	"X-Content-Type-Options: nosniff\r\nContent-Length: 24\r\n\r\n" + serviceUnavailable + "\n")

// rejectWithFixed503IfPossible answers x with the status 503 and recycles x, which is faster than dispatchOrReject. Its
// fixed response does not suit HEAD requests, HTTP/1.0, requests with an Upgrade field, and connections that must
// close. For these, it does nothing and returns false.
func (x *exchange) rejectWithFixed503IfPossible(c *tcp.Conn) (rejected bool) {
	if x.head.closeAfter || x.head.keepAlive10 || x.req.Method == http.MethodHead || x.req.Header["Upgrade"] != nil {
		return false
	}
	_, _ = c.Write(rejection) // an error ends the connection
	x.h.startIdleTimer(c)
	recycleExchange(x)
	return true
}

// arrivedBody returns the part of x's body at the beginning of the input, at most 32 KiB. If isWhole is true, body is
// the complete and valid body. If the client waits for 100 Continue, body is nil.
func (x *exchange) arrivedBody(in []byte) (body []byte, isWhole bool) {
	in = in[:min(len(in), maxUnreadBody/2)]
	switch {
	case x.expectsContinue || x.length == 0:
		return nil, x.length == 0
	case x.length > 0:
		body = in[:min(int64(len(in)), x.length)]
		return body, int64(len(body)) == x.length
	}
	if n := wholeChunkedBodyLength(in); n > 0 {
		return in[:n], true
	}
	return in, false
}

func (h *HTTP) parseRequest(c *tcp.Conn, head []byte) (*exchange, error) {
	x := h.newExchange(c)
	var err error
	if x.head, err = parseHead(head, x.req, &x.headMemory); err != nil {
		recycleExchange(x)
		return nil, err
	}
	if mustEndKeepAlive(c) && x.req.Header["Upgrade"] == nil {
		x.head.closeAfter = true
	}
	x.req.RemoteAddr = x.remoteAddr(c)
	if x.req.TLS = c.TLS(); x.req.TLS != nil && x.req.TLS.NegotiatedProtocol == "h2" {
		recycleExchange(x)
		return nil, badRequest("HTTP/1.1 is used, but HTTP/2 was negotiated")
	}
	return x, nil
}

// parsePipelinedOfSameRoute parses requests at the beginning of the input, appends them to x's list, and returns their
// total length. It stops before a request that is incomplete or invalid, has a body, or belongs to another route. It
// also stops after a request after which the connection may close or no longer use HTTP.
func (x *exchange) parsePipelinedOfSameRoute(c *tcp.Conn, in []byte) (used int) {
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
		if y.headMemory.text == x.headMemory.text {
			y.handler, y.req.Pattern, y.route, y.priority = x.handler, x.req.Pattern, x.route, x.priority
		} else {
			y.routeRequest()
		}
		if y.length != 0 || y.route != x.route || y.priority != x.priority {
			recycleExchange(y)
			break
		}
		x.next, x = y, y
		used += n
	}
	return used
}

func (x *exchange) remoteAddr(c *tcp.Conn) string {
	a := peerAddr(c)
	if !a.IsValid() {
		return cmp.Or(c.RemoteAddr().String(), "@") // of a unix socket, as in net/http
	}
	if a != x.headMemory.addr {
		x.headMemory.addr, x.headMemory.addrText = a, a.String()
	}
	return x.headMemory.addrText
}

// serveOnConnOwner runs a Quick handler on the goroutine that owns the connection. body is the whole request body.
// keepReading means that further requests may follow.
func (x *exchange) serveOnConnOwner(c *tcp.Conn, body []byte) (keepReading bool) {
	if x.req == &x.request {
		x.quickRequest = *x.req.WithContext(context.Background())
		x.req = &x.quickRequest
	}
	if x.req.Body = http.NoBody; len(body) > 0 {
		x.readable.L = &x.mu
		*x.body = requestBody{x: x, buf: x.body.buf[:0], framing: newBodyDecoder(x.length), continueSent: true}
		x.body.decodeBodyIntoBuffer(body)
		x.req.Body = x.body
	}
	x.body.framing.done = true
	x.res.init(x, c)
	x.serveAndFinishOrAbort()
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

func (h *HTTP) rejectRequestAndClose(c *tcp.Conn, err error) {
	status, reason := errorStatus(err)
	text := fmt.Sprintf("%d %s", status, http.StatusText(status))
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n%s: %s", text, text, reason)
	_ = c.Close()
}

func (h *HTTP) Ended(c *tcp.Conn, rest []byte) (used int) {
	used = h.Received(c, rest)
	if x, ok := c.Value().(*exchange); ok && (used == len(rest) || !c.Paused()) {
		for x.next != nil {
			x = x.next
		}
		x.failBodyReadAndCancelContext()
	} else if nc, ok := c.Value().(*tcp.NetConn); ok {
		return used + nc.Value().(*http2Conn).Ended(c, rest[used:])
	}
	return used
}

func (h *HTTP) Closed(c *tcp.Conn, reason error) {
	x, _ := c.Value().(*exchange)
	for y := x; y != nil; y = y.next {
		y.abortOnConnClosed(reason)
	}
	if x != nil && x.job != nil {
		x.job.takeExchange().cancelThisAndFollowing() // takeExchange returns nil if a worker has the job
	}
}

func (h *HTTP) Draining(c *tcp.Conn) {
	x, _ := c.Value().(*exchange)
	for ; x != nil; x = x.next {
		x.mu.Lock()
		x.draining = true
		x.mu.Unlock()
	}
}

// NextProtos implements tcp.ALPNHandler. It adds HTTP/1.1 to the configured protocols. Unless DisableHTTP2 is set, it
// also adds HTTP/2.
func (h *HTTP) NextProtos(configured []string) []string {
	all := slices.DeleteFunc(slices.Clone(configured), func(p string) bool { return p == "h2" || p == "http/1.1" })
	if !h.DisableHTTP2 {
		all = append(all, "h2")
	}
	return append(all, "http/1.1")
}

// Heartbeat implements tcp.HeartbeatHandler. It sends nothing, because HTTP/1.1 has no heartbeats. A silent connection
// without a request in progress closes with tcp.ErrHeartbeatTimeout.
func (h *HTTP) Heartbeat(c *tcp.Conn) (answers bool) {
	_, busy := c.Value().(*exchange)
	return !busy
}

func (h *HTTP) Timer(c *tcp.Conn) {
	if _, ok := c.Value().(*exchange); !ok {
		c.CloseWith(ErrTimeout)
	}
}

// Quick marks h as a handler that neither blocks nor computes for long. h runs on the event loop, without a goroutine,
// while other connections of the loop wait. After h has returned, it must not use the http.Request, its Header, its URL
// or the ResponseWriter, because HTTP reuses them. The output of h is limited to Limits.MaxUnsent.
//
// Use the result as the Handler of an HTTP, or register it in an http.ServeMux that is the Handler. If the body of a
// request exceeds 32 KiB or has not arrived with the header, h runs on the pool. Quick panics if h is nil.
func Quick(h http.Handler) http.Handler {
	if h == nil {
		panic("web: Quick: the http.Handler is nil; expected a handler")
	}
	return quickHandler{h}
}

type quickHandler struct{ http.Handler }

// Blocking marks h as a handler that often waits or computes for long. h always runs on the pool. A handler without a
// mark runs on the event loop while its calls prove quick; see [HTTP]. Use the result like that of [Quick]. Blocking
// panics if h is nil.
func Blocking(h http.Handler) http.Handler {
	if h == nil {
		panic("web: Blocking: the http.Handler is nil; expected a handler")
	}
	return blockingHandler{h}
}

type blockingHandler struct{ http.Handler }

// Critical marks h as a handler whose requests, such as health checks, are never shed under overload. Use the result
// like that of [Quick]. h may itself be a result of Quick or Blocking. Critical panics if h is nil.
func Critical(h http.Handler) http.Handler {
	if h == nil {
		panic("web: Critical: the http.Handler is nil; expected a handler")
	}
	return criticalHandler{h}
}

type criticalHandler struct{ http.Handler }

func priorityOf(h http.Handler, r *http.Request) overload.Priority {
	if mux, ok := h.(*http.ServeMux); ok {
		h, _ = mux.Handler(r)
	}
	if _, ok := h.(criticalHandler); ok {
		return overload.Critical
	}
	return overload.Normal
}

// routeRequest sets the handler, the route and the priority of x. If x.handler is an http.ServeMux, it uses the handler
// of the matching pattern. A handler marked as Quick or Blocking has no route. isQuick means that the handler is marked
// as Quick.
func (x *exchange) routeRequest() (isQuick bool) {
	mux, ok := x.handler.(*http.ServeMux)
	h, pattern := x.handler, ""
	if ok && x.req.RequestURI != "*" {
		if h, pattern = x.findPattern(mux); !strings.Contains(pattern, "{") { // otherwise only ServeMux.ServeHTTP can set PathValues
			x.handler, x.req.Pattern = h, pattern
		}
	}
	x.priority = overload.Normal
	if critical, ok := h.(criticalHandler); ok {
		h, x.priority = critical.Handler, overload.Critical
	}
	switch h.(type) {
	case quickHandler:
		return true
	case blockingHandler:
	default:
		x.route = x.h.routes.getOrAdd(pattern)
	}
	return false
}

// Ref returns a handle of the connection that carries r. The handle may also be used after the request. ok is false in
// a Quick handler, for a request over HTTP/2, and if r is not served by an HTTP.
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

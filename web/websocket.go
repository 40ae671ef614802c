package web

import (
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/myriad-go/myriad/internal/wsframe"
	"github.com/myriad-go/myriad/tcp"
)

// SocketHandler handles the messages of WebSockets. For each socket, the methods are called one at a time. In a model
// with event loops, they run on the loop of the socket and must not block. The arguments s and message are valid only
// during the call.
type SocketHandler interface {
	// Opened is the first call.
	Opened(s Socket)
	// Message is called for each complete message.
	Message(s Socket, kind Kind, message []byte)
	// Closed is the last call. The reason is a *CloseError if the peer has closed or violated the protocol,
	// io.ErrUnexpectedEOF if it has ended without a close frame, nil after Socket.Close, or a reason of
	// tcp.Handler.Closed.
	Closed(s Socket, why error)
}

// SocketBase is a SocketHandler that does nothing. Embed it in a type that needs only some of the methods.
type SocketBase struct{}

// Opened implements SocketHandler.
func (SocketBase) Opened(Socket) {}

// Message implements SocketHandler.
func (SocketBase) Message(Socket, Kind, []byte) {}

// Closed implements SocketHandler.
func (SocketBase) Closed(Socket, error) {}

// OnMessage is a SocketHandler that handles only messages.
type OnMessage func(s Socket, kind Kind, message []byte)

// Opened implements SocketHandler.
func (OnMessage) Opened(Socket) {}

// Message implements SocketHandler.
func (f OnMessage) Message(s Socket, kind Kind, message []byte) { f(s, kind, message) }

// Closed implements SocketHandler.
func (OnMessage) Closed(Socket, error) {}

// WebSocket upgrades connections to WebSockets (RFC 6455). Register a WebSocket as an [http.Handler], or call Upgrade
// in another handler. If this handler is marked as [Quick], no goroutine is used.
//
// An idle WebSocket takes about 50 bytes more than an idle connection. WebSocket answers pings and performs the closing
// handshake. With Server.Heartbeat, it pings silent peers. Do not change the fields after the first use.
type WebSocket struct {
	// Handler handles the sockets. It is required.
	Handler SocketHandler
	// Subprotocols are the protocols of the server in order of preference. WebSocket selects the first one that the
	// client offers. If the client offers none of them, the socket has no subprotocol.
	Subprotocols []string
	// CheckOrigin reports whether a page with the request's Origin may connect. By default, the Origin must have the
	// request's host. Requests without an Origin are allowed by default, because they are not from browsers.
	CheckOrigin func(r *http.Request) bool
	// MaxMessage is the maximum size in bytes of a message from the client after decompression. The default is 64 KiB,
	// and the largest possible value is 1 GiB. A longer message closes the socket with CloseTooLarge. A message that is
	// incomplete after Limits.MessageTimeout closes the socket with tcp.ErrMessageTimeout. For messages of the server,
	// including their frame headers, Limits.MaxUnsent is the limit (default 1 MiB).
	MaxMessage int
	// Compression accepts permessage-deflate (RFC 7692) from clients that request it. Each message is compressed
	// separately (no context takeover), so an idle socket needs no memory for compression. By default there is no
	// compression, because it takes about 20 times as much CPU as sending.
	Compression bool
	// MinCompressed is the minimum size in bytes of a message that Socket.Write compresses. The default is 512.
	MinCompressed int

	once     sync.Once
	handlers map[socketOptions]*negotiatedSocket
}

const defaultMaxMessage = 64 << 10

type socketOptions struct {
	protocol string
	deflate  bool
}

// All sockets of a WebSocket that have negotiated the same options share a negotiatedSocket as their tcp.Handler.
type negotiatedSocket struct {
	*WebSocket
	socketOptions
}

// partialMessage is the tcp.Handler of a socket while the socket receives a fragmented or large message.
type partialMessage struct {
	*negotiatedSocket
	kind      Kind
	deflate   bool
	message   []byte
	checker   utf8Checker
	frame     frameHead // the current frame
	remaining int       // bytes of its payload
	complete  bool      // the message is complete
}

// Close codes of RFC 6455, section 7.4.1.
const (
	CloseNormal        = 1000
	CloseGoingAway     = 1001
	CloseProtocolError = 1002
	CloseUnsupported   = 1003
	CloseNoCode        = 1005 // the peer has sent no code; it is never sent
	CloseInvalidData   = 1007
	ClosePolicy        = 1008
	CloseTooLarge      = 1009
	CloseInternal      = 1011
)

// CloseError is the reason why a WebSocket has closed.
type CloseError struct {
	Code   int
	Reason string
}

func (e *CloseError) Error() string { return fmt.Sprintf("websocket: close %d: %s", e.Code, e.Reason) }

// Socket represents a WebSocket during a call of its SocketHandler. At other times, use Ref.
type Socket struct {
	conn       *tcp.Conn
	negotiated *negotiatedSocket
}

// Conn returns the underlying connection. Data that is written to it must be framed; see [Frame].
func (s Socket) Conn() *tcp.Conn { return s.conn }

// Ref returns a handle that any goroutine may use, for example with ref.Send(web.Frame(web.Text, "hello")).
func (s Socket) Ref() tcp.Ref { return s.conn.Ref() }

// Value returns the connection's value.
func (s Socket) Value() any { return s.conn.Value() }

// SetValue sets the connection's value.
func (s Socket) SetValue(v any) { s.conn.SetValue(v) }

// Subprotocol returns the negotiated subprotocol, or "".
func (s Socket) Subprotocol() string { return s.negotiated.protocol }

// Compressed reports whether the client accepts compressed messages.
func (s Socket) Compressed() bool { return s.negotiated.deflate }

// Write sends a message; see tcp.Conn.Write.
func (s Socket) Write(kind Kind, message []byte) error {
	if s.negotiated.deflate && len(message) >= s.negotiated.minCompressedBytes() {
		_, err := s.conn.Write(compressFrame(kind, message))
		return err
	}
	var head [10]byte
	_, err := s.conn.Writev(appendFrameHead(head[:0], byte(kind), len(message)), message)
	return err
}

// WriteText sends a text message.
func (s Socket) WriteText(message string) error { return s.Write(Text, []byte(message)) }

// Ping sends a ping. The peer's answer counts as activity and has no other effect.
func (s Socket) Ping() error {
	_, err := s.conn.Write([]byte{bitFin | opPing, 0})
	return err
}

// Close sends pending output and a close frame, and closes the socket. The reason is cut to 123 bytes.
func (s Socket) Close(code int, reason string) error {
	_, _ = s.conn.Write(CloseFrame(code, reason))
	return s.conn.Close()
}

// CloseFrame returns an encoded close frame. Send it with tcp.Ref.Send before tcp.Ref.Close.
func CloseFrame(code int, reason string) []byte {
	if len(reason) > maxControl-2 {
		reason = strings.ToValidUTF8(reason[:maxControl-2], "")
	}
	b := appendFrameHead(nil, opClose, 2+len(reason))
	return append(binary.BigEndian.AppendUint16(b, uint16(code)), reason...)
}

// ErrNoUpgrade reports that a request can't be upgraded to a WebSocket. Such a request has already been answered.
var ErrNoUpgrade = errors.New("web: the request can't be upgraded to a WebSocket")

// ServeHTTP implements http.Handler.
func (ws *WebSocket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = ws.Upgrade(w, r, nil)
}

// Upgrade turns the connection of r into a WebSocket after the handler of r has returned. value becomes the
// connection's Value. The response contains the header fields of w. If the upgrade is impossible, Upgrade returns an
// error that wraps ErrNoUpgrade. In this case, r has already been answered. r must be served by an [HTTP]. If
// middleware wraps w, the new ResponseWriter must implement Unwrap, as for http.ResponseController.
func (ws *WebSocket) Upgrade(w http.ResponseWriter, r *http.Request, value any) error {
	key, status, why := ws.checkUpgradeRequest(r)
	res := unwrapResponse(w)
	switch {
	case status != 0:
	case res == nil:
		status, why = http.StatusInternalServerError, "the request is not served by package web"
	case res.state != responsePending:
		return fmt.Errorf("%w: it was already answered", ErrNoUpgrade)
	}
	if status != 0 {
		if status == http.StatusUpgradeRequired {
			w.Header().Set("Sec-WebSocket-Version", "13")
			w.Header().Set("Upgrade", "websocket")
		}
		http.Error(w, why, status)
		return fmt.Errorf("%w: %s", ErrNoUpgrade, why)
	}
	v := ws.negotiateSubprotocolAndDeflate(r)
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	out := append(res.out, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "...)
	out = append(base64.StdEncoding.AppendEncode(out, sum[:]), "\r\n"...)
	if v.protocol != "" {
		out = appendSanitizedField(out, "Sec-WebSocket-Protocol", v.protocol)
	}
	if v.deflate {
		out = appendSanitizedField(out, "Sec-WebSocket-Extensions", "permessage-deflate; server_no_context_takeover; client_no_context_takeover")
	}
	out = appendHeader(out, w.Header(), upgradeField|connectionField|contentLength|transferEncoding|socketPrefix)
	res.out = append(out, "\r\n"...)
	res.scheduleHandlerSwitch(v, value, func(c *tcp.Conn) { v.Handler.Opened(Socket{c, v}) })
	return nil
}

func unwrapResponse(w http.ResponseWriter) *response {
	for {
		switch t := w.(type) {
		case *response:
			return t
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return nil
		}
	}
}

// checkUpgradeRequest validates a request for an upgrade. If the request is invalid, status and why are the answer.
func (ws *WebSocket) checkUpgradeRequest(r *http.Request) (key string, status int, why string) {
	h := r.Header
	list := func(key, token string) bool { return hasToken(strings.Join(h[key], ","), token) }
	key = h.Get("Sec-Websocket-Key")
	raw, err := base64.StdEncoding.DecodeString(key)
	onMessage, isFunc := ws.Handler.(OnMessage)
	switch {
	case ws.Handler == nil, isFunc && onMessage == nil:
		return "", http.StatusInternalServerError, "web.WebSocket has no Handler"
	case !list("Connection", "upgrade"), !list("Upgrade", "websocket"):
		return "", http.StatusUpgradeRequired, "expected a WebSocket upgrade"
	case r.Method != http.MethodGet || r.ProtoMinor != 1 || r.ContentLength != 0:
		return "", http.StatusMethodNotAllowed, "expected GET, without a body, over HTTP/1.1"
	case h.Get("Sec-Websocket-Version") != "13":
		return "", http.StatusUpgradeRequired, "expected Sec-WebSocket-Version: 13"
	case err != nil || len(raw) != 16:
		return "", http.StatusBadRequest, "Sec-WebSocket-Key is not 16 bytes in base64"
	case len(h["Origin"]) > 1:
		return "", http.StatusBadRequest, "the request has more than one Origin; expected at most one"
	case !ws.originAllowedOrSameHost(r):
		return "", http.StatusForbidden, "the page's origin may not connect"
	}
	return key, 0, ""
}

func (ws *WebSocket) originAllowedOrSameHost(r *http.Request) bool {
	if ws.CheckOrigin != nil {
		return ws.CheckOrigin(r)
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && equalFold(u.Host, r.Host)
}

// handlerFor returns the tcp.Handler for the options. If ws does not support the options, it returns nil.
func (ws *WebSocket) handlerFor(options socketOptions) *negotiatedSocket {
	ws.once.Do(func() {
		ws.handlers = make(map[socketOptions]*negotiatedSocket)
		for _, p := range append([]string{""}, ws.Subprotocols...) {
			for _, deflate := range []bool{false, true} {
				options := socketOptions{p, deflate}
				ws.handlers[options] = &negotiatedSocket{ws, options}
			}
		}
	})
	return ws.handlers[options]
}

func (ws *WebSocket) negotiateSubprotocolAndDeflate(r *http.Request) *negotiatedSocket {
	var k socketOptions
	offered := strings.Join(r.Header["Sec-Websocket-Protocol"], ",")
	for _, p := range ws.Subprotocols {
		if hasToken(offered, p) {
			k.protocol = p
			break
		}
	}
	k.deflate = ws.Compression && acceptsDeflate(r.Header["Sec-Websocket-Extensions"])
	return ws.handlerFor(k)
}

func (ws *WebSocket) maxMessageBytes() int {
	if ws.MaxMessage <= 0 {
		return defaultMaxMessage
	}
	return min(ws.MaxMessage, 1<<30)
}

func (ws *WebSocket) minCompressedBytes() int {
	if ws.MinCompressed <= 0 {
		return 512
	}
	return ws.MinCompressed
}

// Opened is never called, because the connection is already open when it is upgraded.
func (v *negotiatedSocket) Opened(*tcp.Conn) {}

// A frame of at most maxBufferedFrame bytes stays in the unused input of the connection until the frame is complete. A
// partialMessage assembles larger frames.
const maxBufferedFrame = 8 << 10

// After maxWorkPerCall bytes of messages, a call of Received ends, and other connections of the loop are served. Each
// frame counts as frameWork more bytes, and each compressed byte as deflateWork more bytes.
const (
	maxWorkPerCall = 256 << 10
	frameWork      = 256
	deflateWork    = 8
)

var payloadBuffers = sync.Pool{New: func() any { b := make([]byte, 0, maxBufferedFrame); return &b }}

func (v *negotiatedSocket) Received(c *tcp.Conn, in []byte) (used int) {
	room := payloadBuffers.Get().(*[]byte)
	defer payloadBuffers.Put(room)
	for work := 0; used < len(in) && !c.Paused(); work += frameWork {
		if work > maxWorkPerCall {
			yield(c)
			return used
		}
		h, err := parseFrameHead(in[used:], v.deflate)
		if err == nil && h.n > 0 {
			err = v.checkMessageSize(h, 0)
		}
		switch {
		case err != nil:
			v.sendCloseFrameAndClose(c, err)
			return len(in)
		case h.n == 0:
			return used
		case h.op == opContinuation:
			v.sendCloseFrameAndClose(c, &CloseError{CloseProtocolError, "a continuation frame without a message"})
			return len(in)
		case h.isControl() || h.fin && h.n+h.size <= maxBufferedFrame:
			if len(in)-used < h.n+h.size {
				return used
			}
			p := appendUnmasked((*room)[:0], in[used+h.n:used+h.n+h.size], h.mask, 0)
			used += h.n + h.size
			if h.isControl() {
				if !v.handleControlFrame(c, h.op, p) {
					return len(in)
				}
			} else if n, ok := v.validateAndDeliverMessage(c, Kind(h.op), h.deflate, p, nil); !ok {
				return len(in)
			} else {
				work += n
			}
		default:
			p := &partialMessage{negotiatedSocket: v, kind: Kind(h.op), deflate: h.deflate, frame: h, remaining: h.size}
			_ = c.SetHandler(p)
			return used + h.n
		}
	}
	return used
}

// If the frame with the head h makes its message too long, checkMessageSize returns an error. receivedBytes is the size
// of the message's earlier frames.
func (v *negotiatedSocket) checkMessageSize(h frameHead, receivedBytes int) error {
	if !h.isControl() && h.size > v.maxMessageBytes()-receivedBytes {
		return &CloseError{CloseTooLarge, fmt.Sprintf("the message is larger than %d bytes", v.maxMessageBytes())}
	}
	return nil
}

func (m *partialMessage) Received(c *tcp.Conn, in []byte) (used int) {
	if used = m.readFramesAndDeliver(c, in); !m.complete {
		reserve(c, partialMemory+cap(m.message), true)
	}
	return used
}

const partialMemory = 256

func (m *partialMessage) readFramesAndDeliver(c *tcp.Conn, in []byte) (used int) {
	work := 0
	for used < len(in) && !c.Paused() {
		if m.remaining > 0 {
			n := min(m.remaining, len(in)-used)
			m.message = appendUnmasked(m.message, in[used:used+n], m.frame.mask, m.frame.size-m.remaining)
			used += n
			if m.remaining -= n; m.kind == Text && !m.deflate && !m.checker.isValidPrefix(m.message, false) {
				m.sendCloseFrameAndClose(c, errInvalidUTF8)
				return len(in)
			}
		}
		if m.remaining == 0 && m.frame.fin {
			if !m.deliverCompletedMessage(c) {
				return len(in)
			}
			return used
		}
		if m.remaining > 0 {
			return used
		}
		if work += frameWork; work > maxWorkPerCall {
			yield(c)
			return used
		}
		h, err := parseFrameHead(in[used:], m.negotiatedSocket.deflate)
		if err == nil && h.n > 0 {
			err = m.checkMessageSize(h, len(m.message))
		}
		switch {
		case err == nil && h.n > 0 && (h.op == byte(Text) || h.op == byte(Binary)):
			err = &CloseError{CloseProtocolError, "a message within another message"}
			fallthrough
		case err != nil:
			m.sendCloseFrameAndClose(c, err)
			return len(in)
		case h.n == 0:
			return used
		case h.isControl():
			if len(in)-used < h.n+h.size {
				return used
			}
			var room [maxControl]byte
			if !m.handleControlFrame(c, h.op, appendUnmasked(room[:0], in[used+h.n:used+h.n+h.size], h.mask, 0)) {
				return len(in)
			}
			used += h.n + h.size
		default:
			m.frame, m.remaining = h, h.size
			used += h.n
		}
	}
	if m.remaining == 0 && m.frame.fin && !c.Paused() {
		m.deliverCompletedMessage(c)
	}
	return used
}

func (m *partialMessage) deliverCompletedMessage(c *tcp.Conn) (stillOpen bool) {
	m.complete = true
	_ = c.SetHandler(m.negotiatedSocket)
	reserve(c, 0, false)
	n, ok := m.validateAndDeliverMessage(c, m.kind, m.deflate, m.message, &m.checker)
	if n > maxWorkPerCall {
		yield(c)
	}
	return ok
}

var errInvalidUTF8 = &CloseError{CloseInvalidData, "the text is not valid UTF-8"}

// validateAndDeliverMessage passes a message to the handler. If the message is invalid, it closes the socket instead.
func (v *negotiatedSocket) validateAndDeliverMessage(c *tcp.Conn, kind Kind, deflate bool, p []byte, checker *utf8Checker) (cost int, stillOpen bool) {
	if deflate {
		var err error
		cost = deflateWork * len(p)
		if p, err = decompress(p, v.maxMessageBytes()); err != nil {
			v.sendCloseFrameAndClose(c, err)
			return cost, false
		}
		defer recycleDecompressed(p)
		checker = nil
	}
	if kind == Text && (checker == nil && !utf8.Valid(p) || checker != nil && !checker.isValidPrefix(p, true)) {
		v.sendCloseFrameAndClose(c, errInvalidUTF8)
		return cost, false
	}
	v.Handler.Message(Socket{c, v}, kind, p)
	return cost + len(p), true
}

func (v *negotiatedSocket) handleControlFrame(c *tcp.Conn, op byte, p []byte) (stillOpen bool) {
	switch op {
	case opPing:
		_, _ = c.Write(appendFrame(make([]byte, 0, 2+maxControl), opPong, p))
	case opClose:
		why := &CloseError{Code: CloseNoCode}
		if len(p) == 1 {
			why = &CloseError{CloseProtocolError, "a close frame with an incomplete code"}
		} else if len(p) > 1 {
			why.Code, why.Reason = int(binary.BigEndian.Uint16(p)), string(p[2:])
			if !wsframe.ValidCloseCode(why.Code) {
				why = &CloseError{CloseProtocolError, "an invalid close code"}
			} else if !utf8.ValidString(why.Reason) {
				why = errInvalidUTF8
			}
		}
		v.sendCloseFrameAndClose(c, why)
		return false
	}
	return true
}

// sendCloseFrameAndClose closes the socket. If why is a *CloseError, the close frame contains its code and its reason.
func (v *negotiatedSocket) sendCloseFrameAndClose(c *tcp.Conn, why error) {
	code, reason := CloseInternal, ""
	var e *CloseError
	if errors.As(why, &e) {
		code, reason = e.Code, e.Reason
	}
	if code == CloseNoCode {
		_, _ = c.Write([]byte{bitFin | opClose, 0})
	} else {
		_, _ = c.Write(CloseFrame(code, reason))
	}
	c.CloseWith(why)
}

func (v *negotiatedSocket) Ended(c *tcp.Conn, rest []byte) int {
	used := v.Received(c, rest)
	v.closeAfterPeerEndUnlessPaused(c)
	return used
}

func (m *partialMessage) Ended(c *tcp.Conn, rest []byte) int {
	used := m.Received(c, rest)
	m.closeAfterPeerEndUnlessPaused(c)
	return used
}

func (v *negotiatedSocket) closeAfterPeerEndUnlessPaused(c *tcp.Conn) {
	if !c.Paused() {
		c.CloseWith(io.ErrUnexpectedEOF)
	}
}

func (v *negotiatedSocket) Closed(c *tcp.Conn, why error) { v.Handler.Closed(Socket{c, v}, why) }

func (v *negotiatedSocket) Heartbeat(c *tcp.Conn) (answers bool) {
	_ = Socket{c, v}.Ping()
	return true
}

func (v *negotiatedSocket) Draining(c *tcp.Conn) {
	_ = Socket{c, v}.Close(CloseGoingAway, "the server ends")
}

package web

import (
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

// SocketHandler handles the messages of WebSockets. Calls for the same socket never overlap. In a model with event
// loops, the methods run on the socket's loop and must not block. The arguments s and message are valid only during the
// call.
type SocketHandler interface {
	// Opened is called first, when the socket opens.
	Opened(s Socket)
	// Message is called for each complete message.
	Message(s Socket, kind Kind, message []byte)
	// Closed is called last. The reason is a *CloseError if the peer has closed or violated the protocol,
	// io.ErrUnexpectedEOF without a close frame, nil after Socket.Close, or a reason of tcp.Handler.Closed.
	Closed(s Socket, reason error)
}

// SocketMissedHandler is implemented by a SocketHandler that is notified of missed messages; see tcp.MissedHandler.
type SocketMissedHandler interface {
	// Missed is like Missed of a tcp.MissedHandler.
	Missed(s Socket, n int64)
}

// SocketBase is a SocketHandler that does nothing. Embed it in a type that needs only some of the methods.
type SocketBase struct{}

func (SocketBase) Opened(Socket) {}

func (SocketBase) Message(Socket, Kind, []byte) {}

func (SocketBase) Closed(Socket, error) {}

// OnMessage is a SocketHandler that calls a function for each message. It ignores all other events.
type OnMessage func(s Socket, kind Kind, message []byte)

func (OnMessage) Opened(Socket) {}

func (f OnMessage) Message(s Socket, kind Kind, message []byte) { f(s, kind, message) }

func (OnMessage) Closed(Socket, error) {}

// WebSocket upgrades HTTP connections to WebSockets (RFC 6455). Register a WebSocket as an [http.Handler], or call
// Upgrade in another handler. If that handler is marked as [Quick], the upgrade does not need a goroutine. To connect
// to another server as a client, call Dial. The field Handler also handles the dialed sockets.
//
// An idle WebSocket takes about 50 bytes more than an idle connection. WebSocket answers pings and performs the closing
// handshake. With Server.Heartbeat, it pings silent peers. Do not change the fields after the first use.
type WebSocket struct {
	// Handler handles the sockets. It is required.
	Handler SocketHandler
	// Subprotocols are the supported subprotocols in order of preference. A server selects the first one that the
	// client offers. If the client offers none of them, the socket has no subprotocol. Dial offers all of them.
	Subprotocols []string
	// CheckOrigin reports whether a page with the request's Origin may connect. The default accepts an Origin with the
	// same host as the request. It also accepts requests without an Origin, because they do not come from browsers.
	CheckOrigin func(r *http.Request) bool
	// MaxMessage is the maximum size in bytes of a received message, after decompression. The default is 64 KiB, the
	// maximum 1 GiB. If a message is larger, the socket closes with CloseTooLarge. If a message is still incomplete
	// after Limits.MessageTimeout, the socket closes with tcp.ErrMessageTimeout.
	//
	// MaxMessage does not limit sent messages. Limits.MaxUnsent, by default 1 MiB, limits the size of a sent message
	// with its frame header.
	MaxMessage int
	// Compression enables permessage-deflate (RFC 7692) for clients that request it, and for Dial. Each message is
	// compressed separately (no context takeover), so an idle socket needs no memory for compression. By default,
	// Compression is off, because it takes about 20 times as much CPU as sending.
	Compression bool
	// MinCompressed is the minimum size in bytes of a message that Socket.Write compresses. The default is 1 KiB.
	MinCompressed int

	once     sync.Once
	handlers map[socketOptions]*negotiatedSocket
}

const defaultMaxMessage = 64 << 10

type socketOptions struct {
	protocol string
	deflate  bool
	client   bool // the socket was dialed: it sends masked frames and receives unmasked ones
}

// negotiatedSocket is the tcp.Handler of WebSocket connections after the handshake. All connections of a WebSocket that
// have negotiated the same options share one negotiatedSocket.
type negotiatedSocket struct {
	*WebSocket
	socketOptions
}

// Close codes of RFC 6455, section 7.4.1.
const (
	CloseNormal        = 1000
	CloseGoingAway     = 1001
	CloseProtocolError = 1002
	CloseUnsupported   = 1003
	CloseNoCode        = 1005 // the peer has sent no code; a close frame never contains this value
	CloseInvalidData   = 1007
	ClosePolicy        = 1008
	CloseTooLarge      = 1009
	CloseInternal      = 1011
)

// CloseError is the reason why a WebSocket has closed. Code and Reason are those of the close frame that the peer has
// sent. If the peer has violated the protocol, they are those of the close frame that was sent to the peer.
type CloseError struct {
	Code   int
	Reason string
}

func (e *CloseError) Error() string { return fmt.Sprintf("websocket: close %d: %s", e.Code, e.Reason) }

// Socket represents a WebSocket during a call of its SocketHandler. Outside of such calls, use the result of Ref.
type Socket struct {
	conn       *tcp.Conn
	negotiated *negotiatedSocket
}

// Conn returns the underlying connection. Data written to the connection must be framed; see [Frame] and [MaskFrame].
func (s Socket) Conn() *tcp.Conn { return s.conn }

// Ref returns a handle that any goroutine may use, for example with ref.Send(web.Frame(web.Text, "hello")). A dialed
// socket must send masked frames; see [MaskFrame].
func (s Socket) Ref() tcp.Ref { return s.conn.Ref() }

// Value returns the connection's value.
func (s Socket) Value() any { return s.conn.Value() }

// SetValue sets the connection's value.
func (s Socket) SetValue(v any) { s.conn.SetValue(v) }

// Subprotocol returns the negotiated subprotocol, or "".
func (s Socket) Subprotocol() string { return s.negotiated.protocol }

// Compressed reports whether the peer accepts compressed messages.
func (s Socket) Compressed() bool { return s.negotiated.deflate }

// Write sends a message; see tcp.Conn.Write.
func (s Socket) Write(kind Kind, message []byte) error {
	if s.negotiated.deflate && len(message) >= s.negotiated.minCompressedBytes() {
		return s.negotiated.writeFrame(s.conn, byte(kind)|bitDeflate, compress(message))
	}
	return s.negotiated.writeFrame(s.conn, byte(kind), message)
}

func (v *negotiatedSocket) writeFrame(c *tcp.Conn, op byte, payload []byte) error {
	if !v.client {
		var head [10]byte
		_, err := c.Writev(appendFrameHead(head[:0], op, len(payload)), payload)
		return err
	}
	room := payloadBuffers.Get().(*[]byte)
	defer payloadBuffers.Put(room)
	_, err := c.Write(appendMaskedFrame((*room)[:0], bitFin|op, payload))
	return err
}

// WriteText sends a text message.
func (s Socket) WriteText(message string) error { return s.Write(Text, []byte(message)) }

// Ping sends a ping. The peer's answer counts as activity and has no other effect.
func (s Socket) Ping() error { return s.negotiated.writeFrame(s.conn, opPing, nil) }

// Close sends pending output and a close frame, and closes the socket. reason is cut to 123 bytes. A dialed socket
// stays open until the server closes the TCP connection, but at most for Limits.CloseTimeout.
func (s Socket) Close(code int, reason string) error {
	err := s.negotiated.writeFrame(s.conn, opClose, appendClosePayload(nil, code, reason))
	if !errors.Is(err, tcp.ErrOutsideCall) {
		s.negotiated.closeOrAwaitPeerClose(s.conn, nil)
		err = nil
	}
	return err
}

// CloseFrame returns an encoded close frame. Send it with tcp.Ref.Send before tcp.Ref.Close.
func CloseFrame(code int, reason string) []byte {
	return appendFrame(nil, opClose, appendClosePayload(nil, code, reason))
}

func appendClosePayload(b []byte, code int, reason string) []byte {
	if len(reason) > maxControl-2 {
		reason = strings.ToValidUTF8(reason[:maxControl-2], "")
	}
	return append(binary.BigEndian.AppendUint16(b, uint16(code)), reason...)
}

// closeOrAwaitPeerClose closes the connection. A client lets the server close first (RFC 6455, section 7.1.1).
func (v *negotiatedSocket) closeOrAwaitPeerClose(c *tcp.Conn, reason error) {
	if v.client {
		closeAfterPeerEnd(c, reason)
	} else {
		c.CloseWith(reason)
	}
}

// ErrNoUpgrade reports that a request can't be upgraded to a WebSocket. Such a request has already been answered.
var ErrNoUpgrade = errors.New("web: the request can't be upgraded to a WebSocket")

// ServeHTTP implements http.Handler. It calls Upgrade with a nil value.
func (ws *WebSocket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = ws.Upgrade(w, r, nil)
}

// Upgrade turns the connection of r into a WebSocket after the handler of r has returned. value becomes the
// connection's Value. The response contains the header fields of w. r must be served by an [HTTP].
//
// If the upgrade is impossible, Upgrade answers r and returns an error that wraps ErrNoUpgrade. If middleware wraps w,
// the new ResponseWriter must implement Unwrap, as for http.ResponseController.
func (ws *WebSocket) Upgrade(w http.ResponseWriter, r *http.Request, value any) error {
	key, status, reason := ws.checkUpgradeRequest(r)
	res, notFound := unwrapResponse(w)
	switch {
	case status != 0:
	case res == nil:
		status, reason = http.StatusInternalServerError, notFound
	case res.state != responsePending:
		return fmt.Errorf("%w: the request was already answered", ErrNoUpgrade)
	}
	if status != 0 {
		if status == http.StatusUpgradeRequired {
			w.Header().Set("Sec-WebSocket-Version", "13")
			w.Header().Set("Upgrade", "websocket")
		}
		http.Error(w, reason, status)
		return fmt.Errorf("%w: %s", ErrNoUpgrade, reason)
	}
	v := ws.negotiateSubprotocolAndDeflate(r)
	out := append(res.out, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"...)
	out = appendSanitizedField(out, "Sec-WebSocket-Accept", wsframe.AcceptValue(key))
	if v.protocol != "" {
		out = appendSanitizedField(out, "Sec-WebSocket-Protocol", v.protocol)
	}
	if v.deflate {
		out = appendSanitizedField(out, "Sec-WebSocket-Extensions", deflateExtension)
	}
	out = appendHeader(out, w.Header(), upgradeField|connectionField|contentLength|transferEncoding|socketPrefix)
	res.out = append(out, "\r\n"...)
	res.scheduleHandlerSwitch(v, value, func(c *tcp.Conn) { v.Handler.Opened(Socket{c, v}) })
	return nil
}

// unwrapResponse returns w if w is a *response, or else the *response that w wraps. If there is neither, res is nil and
// notFound is an error message.
func unwrapResponse(w http.ResponseWriter) (res *response, notFound string) {
	for {
		switch t := w.(type) {
		case *response:
			return t, ""
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return nil, fmt.Sprintf("the http.ResponseWriter is a %T, which is not of package web; if it wraps one of package web, "+
				"add the method Unwrap() http.ResponseWriter", w)
		}
	}
}

// checkUpgradeRequest validates an upgrade request and returns its Sec-WebSocket-Key. If the request is valid, status
// is 0. Otherwise, the caller must answer the request with status, and with reason as the text.
func (ws *WebSocket) checkUpgradeRequest(r *http.Request) (key string, status int, reason string) {
	h := r.Header
	list := func(key, token string) bool { return hasToken(strings.Join(h[key], ","), token) }
	key = h.Get("Sec-Websocket-Key")
	raw, err := base64.StdEncoding.DecodeString(key)
	switch {
	case !ws.hasHandler():
		return "", http.StatusInternalServerError, "WebSocket.Handler is nil; expected a SocketHandler"
	case !list("Connection", "upgrade"), !list("Upgrade", "websocket"):
		return "", http.StatusUpgradeRequired, "the request is not a WebSocket handshake; expected Connection: Upgrade and Upgrade: websocket"
	case r.Method != http.MethodGet || r.ProtoMinor != 1 || r.ContentLength != 0:
		return "", http.StatusMethodNotAllowed, fmt.Sprintf("the request is %s over %s; expected GET without a body over HTTP/1.1", describeMethodAndBody(r), r.Proto)
	case h.Get("Sec-Websocket-Version") != "13":
		return "", http.StatusUpgradeRequired, fmt.Sprintf("Sec-WebSocket-Version is %.20q; expected 13", h.Get("Sec-Websocket-Version"))
	case err != nil || len(raw) != 16:
		return "", http.StatusBadRequest, fmt.Sprintf("Sec-WebSocket-Key is %.40q; expected 16 bytes in base64", key)
	case len(h["Origin"]) > 1:
		return "", http.StatusBadRequest, "the request has more than one Origin; expected at most one"
	case !ws.passesOriginCheck(r):
		return "", http.StatusForbidden, fmt.Sprintf("origin %.100q is not allowed; expected the server's own origin or one that WebSocket.CheckOrigin accepts", h.Get("Origin"))
	}
	return key, 0, ""
}

func describeMethodAndBody(r *http.Request) string {
	if r.ContentLength == 0 {
		return fmt.Sprintf("%.20s without a body", r.Method)
	}
	return fmt.Sprintf("%.20s with a body", r.Method)
}

func (ws *WebSocket) hasHandler() bool {
	onMessage, isFunc := ws.Handler.(OnMessage)
	return ws.Handler != nil && (!isFunc || onMessage != nil)
}

func (ws *WebSocket) passesOriginCheck(r *http.Request) bool {
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

func (ws *WebSocket) handlerFor(options socketOptions) (handlerOrNil *negotiatedSocket) {
	ws.once.Do(func() {
		ws.handlers = make(map[socketOptions]*negotiatedSocket)
		for _, p := range append([]string{""}, ws.Subprotocols...) {
			for i := range 4 {
				options := socketOptions{p, i&1 != 0, i&2 != 0}
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
		return defaultMinCompressed
	}
	return ws.MinCompressed
}

// Opened is never called, because the connection is already open when v becomes its handler.
func (v *negotiatedSocket) Opened(*tcp.Conn) {}

func (v *negotiatedSocket) Missed(c *tcp.Conn, n int64) {
	if h, ok := v.Handler.(SocketMissedHandler); ok {
		h.Missed(Socket{c, v}, n)
	}
}

// maxBufferedFrame is the maximum size in bytes of a frame that Received handles only when the whole frame has arrived.
// A partialMessage receives larger frames piece by piece.
const maxBufferedFrame = 8 << 10

// Limits of the work in one call of Received. After about maxWorkPerCall bytes of messages, Received ends and the loop
// serves other connections. In addition to its payload, each frame counts as frameWork bytes, and each compressed byte
// as deflateWork bytes.
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
			yieldToOtherConns(c)
			return used
		}
		h, err := parseFrameHeadIfComplete(in[used:], v.socketOptions)
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

// checkMessageSize returns an error if a message becomes too long with the frame h. receivedBytes is the size of the
// earlier frames of the message.
func (v *negotiatedSocket) checkMessageSize(h frameHead, receivedBytes int) error {
	if !h.isControl() && h.size > v.maxMessageBytes()-receivedBytes {
		return &CloseError{CloseTooLarge, fmt.Sprintf("the message is larger than %d bytes", v.maxMessageBytes())}
	}
	return nil
}

var errInvalidUTF8 = &CloseError{CloseInvalidData, "the text is not valid UTF-8"}

// validateAndDeliverMessage passes the message p to the handler. If the message is invalid, it closes the socket
// instead, and stillOpen is false. If checker is not nil, it has already checked the beginning of p. cost is the work
// in bytes, as limited by maxWorkPerCall.
func (v *negotiatedSocket) validateAndDeliverMessage(c *tcp.Conn, kind Kind, deflate bool, p []byte, checker *utf8Checker) (cost int, stillOpen bool) {
	if deflate {
		var err error
		cost = deflateWork * len(p)
		if p, err = decompressToPooled(p, v.maxMessageBytes()); err != nil {
			v.sendCloseFrameAndClose(c, err)
			return cost, false
		}
		defer recycleDecompressed(p)
		checker = nil
	}
	if kind == Text && (checker == nil && !utf8.Valid(p) || checker != nil && !checker.validateIncrementally(p, true)) {
		v.sendCloseFrameAndClose(c, errInvalidUTF8)
		return cost, false
	}
	v.Handler.Message(Socket{c, v}, kind, p)
	return cost + len(p), true
}

func (v *negotiatedSocket) handleControlFrame(c *tcp.Conn, op byte, p []byte) (stillOpen bool) {
	switch op {
	case opPing:
		_ = v.writeFrame(c, opPong, p)
	case opClose:
		reason := &CloseError{Code: CloseNoCode}
		if len(p) == 1 {
			reason = &CloseError{CloseProtocolError, "the close code has 1 byte; expected 2"}
		} else if len(p) > 1 {
			reason.Code, reason.Reason = int(binary.BigEndian.Uint16(p)), string(p[2:])
			if !wsframe.ValidCloseCode(reason.Code) {
				reason = &CloseError{CloseProtocolError, fmt.Sprintf("invalid close code %d", reason.Code)}
			} else if !utf8.ValidString(reason.Reason) {
				reason = errInvalidUTF8
			}
		}
		v.sendCloseFrameAndClose(c, reason)
		return false
	}
	return true
}

// sendCloseFrameAndClose sends a close frame and closes the socket with the given reason. If reason is a *CloseError,
// the close frame contains its code and reason.
func (v *negotiatedSocket) sendCloseFrameAndClose(c *tcp.Conn, reason error) {
	code, text := CloseInternal, ""
	var e *CloseError
	if errors.As(reason, &e) {
		code, text = e.Code, e.Reason
	}
	var p []byte
	if code != CloseNoCode {
		p = appendClosePayload(nil, code, text)
	}
	_ = v.writeFrame(c, opClose, p)
	v.closeOrAwaitPeerClose(c, reason)
}

func (v *negotiatedSocket) Ended(c *tcp.Conn, rest []byte) int {
	used := v.Received(c, rest)
	v.closeUnlessPaused(c)
	return used
}

func (v *negotiatedSocket) closeUnlessPaused(c *tcp.Conn) {
	if !c.Paused() {
		c.CloseWith(io.ErrUnexpectedEOF)
	}
}

func (v *negotiatedSocket) Closed(c *tcp.Conn, reason error) { v.Handler.Closed(Socket{c, v}, reason) }

func (v *negotiatedSocket) Heartbeat(c *tcp.Conn) (answers bool) {
	_ = Socket{c, v}.Ping()
	return true
}

func (v *negotiatedSocket) Draining(c *tcp.Conn) {
	_ = Socket{c, v}.Close(CloseGoingAway, "the server ends")
}

package web

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/wsframe"
	"github.com/myriad-go/myriad/tcp"
)

// SocketDial describes an outgoing WebSocket for [WebSocket.Dial].
type SocketDial struct {
	// URL is ws://host/path or wss://host/path, with an optional port and query.
	URL string
	// Header contains additional fields of the request, such as Origin, Cookie or Authorization. A Host field replaces
	// the host of URL. Dial sets the Connection, Upgrade and Sec-WebSocket fields itself, and ignores them in Header.
	Header http.Header
	// TLSConfig is used for wss. By default, the server's certificate must match the host of URL; see
	// tcp.Dial.TLSConfig.
	TLSConfig *tls.Config
	// Source is the local address to connect from. By default, the kernel chooses the address.
	Source netip.Addr
	// Timeout limits each step of a dial separately: the lookup, the connection attempt and the WebSocket handshake.
	// The default is 30 s, the maximum 10 min. See also tcp.Dial.Timeout.
	Timeout time.Duration
	// Value is the initial value of the connection; see Socket.Value.
	Value any
}

// DialFailedHandler is implemented by a SocketHandler that handles failures of WebSocket.Dial.
type DialFailedHandler interface {
	// DialFailed is called instead of all other methods if a dial failed. It may run on any goroutine or event loop and
	// must not block. d is the argument of Dial and can be dialed again. err is a *HandshakeError, an error of
	// tcp.DialFailedHandler such as tcp.ErrDialTimeout, or a reason of tcp.Handler.Closed.
	DialFailed(d SocketDial, err error)
}

// HandshakeError reports a rejected WebSocket handshake or an invalid response. Redirects count as rejections.
type HandshakeError struct {
	// Status and Header are the status code and the fields of the response. If the response is not valid HTTP, Status
	// is 0.
	Status int
	Header http.Header
	// Body is the beginning of the response's body, at most 1 KiB.
	Body []byte
	// Reason describes an invalid response. If the server has sent a valid response with a status other than 101,
	// Reason is nil.
	Reason error
}

func (e *HandshakeError) Error() string {
	if e.Reason != nil {
		return "web: invalid response to the WebSocket handshake: " + e.Reason.Error()
	}
	return fmt.Sprintf("web: the server answered the WebSocket handshake with %d %s: %q; expected 101", e.Status, http.StatusText(e.Status), e.Body)
}

// Unwrap returns Reason.
func (e *HandshakeError) Unwrap() error { return e.Reason }

const (
	maxResponseHead = 16 << 10
	maxErrorBody    = 1 << 10
)

// Dial starts to connect to a WebSocket server and returns immediately. The socket runs on an event loop of s, without
// a goroutine. After the handshake, ws.Handler handles the socket. If Dial returns nil but the connection or the
// handshake fails, DialFailed of ws.Handler is called instead.
//
// The server's response must be valid HTTP/1.1, with a head of at most 16 KiB. Dial does not use CheckOrigin.
//
// If d is invalid, Dial returns an error that wraps tcp.ErrBadConfig. Dial also returns the errors of tcp.Server.Dial.
// Dial is safe for concurrent use, and a handler may call it.
func (ws *WebSocket) Dial(s *tcp.Server, d SocketDial) error {
	t, err := ws.buildTCPDial(d)
	if err != nil {
		return err
	}
	return s.Dial(t)
}

// DialFrom is like Dial, but prefers the event loop of c, as tcp.Conn.Dial does.
func (ws *WebSocket) DialFrom(c *tcp.Conn, d SocketDial) error {
	t, err := ws.buildTCPDial(d)
	if err != nil {
		return err
	}
	return c.Dial(t)
}

func (ws *WebSocket) buildTCPDial(d SocketDial) (t tcp.Dial, err error) {
	if !ws.hasHandler() {
		return t, fmt.Errorf("web: WebSocket.Handler is nil; expected a SocketHandler: %w", tcp.ErrBadConfig)
	}
	u, err := url.Parse(d.URL)
	if err == nil {
		d.URL = u.Redacted()
	}
	if err != nil || u.Scheme != "ws" && u.Scheme != "wss" || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
		return t, fmt.Errorf("web: SocketDial.URL is %q; expected ws://host/path or wss://host/path, without user info or fragment: %w", d.URL, tcp.ErrBadConfig)
	}
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails
	h := &socketHandshake{ws: ws, dial: d, key: base64.StdEncoding.EncodeToString(nonce[:])}
	if h.request, err = ws.encodeHandshakeRequest(u, d.Header, h.key); err != nil {
		return t, fmt.Errorf("web: SocketDial.URL or SocketDial.Header: %w: %w", err, tcp.ErrBadConfig)
	}
	t = tcp.Dial{Handler: h, Source: d.Source, Timeout: d.Timeout, Value: d.Value}
	port := "80"
	if u.Scheme == "wss" {
		port, t.TLSConfig = "443", cmp.Or(d.TLSConfig, new(tls.Config))
	}
	t.Addr = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
	return t, nil
}

func (ws *WebSocket) encodeHandshakeRequest(u *url.URL, fields http.Header, key string) ([]byte, error) {
	h := make(http.Header, len(fields)+6)
	for name, values := range fields {
		if name = http.CanonicalHeaderKey(name); !strings.HasPrefix(name, "Sec-Websocket-") {
			h[name] = values
		}
	}
	h["Connection"], h["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	h["Sec-Websocket-Version"], h["Sec-Websocket-Key"] = []string{"13"}, []string{key}
	if len(ws.Subprotocols) > 0 {
		h["Sec-Websocket-Protocol"] = []string{strings.Join(ws.Subprotocols, ", ")}
	}
	if ws.Compression {
		h["Sec-Websocket-Extensions"] = []string{deflateExtension}
	}
	var b bytes.Buffer
	err := (&http.Request{Method: http.MethodGet, URL: u, Host: h.Get("Host"), Header: h}).Write(&b)
	return b.Bytes(), err
}

// socketHandshake is the tcp.Handler of a dialed connection during the WebSocket handshake.
type socketHandshake struct {
	tcp.Base
	ws      *WebSocket
	dial    SocketDial
	key     string
	request []byte
	err     error // why the handshake has failed
}

func (h *socketHandshake) Opened(c *tcp.Conn) {
	c.SetDeadline(cmp.Or(h.dial.Timeout, 30*time.Second))
	if _, err := c.Write(h.request); err != nil {
		c.CloseWith(err)
	}
	h.request = nil
}

func (h *socketHandshake) Received(c *tcp.Conn, in []byte) (used int) {
	return h.openSocketOrCloseOnResponse(c, in, false)
}

func (h *socketHandshake) Ended(c *tcp.Conn, rest []byte) (used int) {
	used = h.openSocketOrCloseOnResponse(c, rest, true)
	c.CloseWith(io.ErrUnexpectedEOF) // no effect if c is already closing
	return used
}

// openSocketOrCloseOnResponse reads the server's response. If the response accepts the handshake, the socket opens.
// Otherwise, the connection closes. While the response is incomplete, used is 0. ended means that no more input will
// arrive.
func (h *socketHandshake) openSocketOrCloseOnResponse(c *tcp.Conn, in []byte, ended bool) (used int) {
	n, err := completeHeadLength(in, 0, maxResponseHead)
	switch {
	case err == errHeadTooLarge:
		err = fmt.Errorf("the head is larger than %d bytes", maxResponseHead)
	case err == nil && n == 0:
		return 0
	}
	var res *http.Response
	if err == nil {
		res, err = http.ReadResponse(bufio.NewReader(bytes.NewReader(in)), &http.Request{Method: http.MethodGet})
	}
	switch {
	case err != nil:
		return h.failHandshake(c, &HandshakeError{Reason: err}, len(in))
	case res.StatusCode == http.StatusSwitchingProtocols:
		v, err := h.checkNegotiation(res)
		if err != nil {
			return h.failHandshake(c, &HandshakeError{Status: res.StatusCode, Header: res.Header, Reason: err}, len(in))
		}
		c.SetDeadline(0)
		_ = c.SetHandler(v) // does not fail during a call
		v.Handler.Opened(Socket{c, v})
		return n
	case res.StatusCode < 200: // such as 103 Early Hints
		return n
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	h.err = &HandshakeError{Status: res.StatusCode, Header: res.Header, Body: body}
	endsWithConn := res.ContentLength < 0 && len(res.TransferEncoding) == 0 && len(body) < maxErrorBody
	if !ended && (errors.Is(err, io.ErrUnexpectedEOF) || endsWithConn) {
		return 0
	}
	return h.failHandshake(c, h.err, len(in))
}

func (h *socketHandshake) failHandshake(c *tcp.Conn, reason error, used int) int {
	h.err = reason
	c.CloseWith(reason)
	return used
}

func (h *socketHandshake) checkNegotiation(res *http.Response) (*negotiatedSocket, error) {
	const protocolField, extensionsField = "Sec-Websocket-Protocol", "Sec-Websocket-Extensions"
	if !res.ProtoAtLeast(1, 1) {
		return nil, fmt.Errorf("the server's protocol is %s; expected HTTP/1.1", res.Proto)
	}
	if err := wsframe.CheckResponseHeader(res.Header, h.key); err != nil {
		return nil, err
	}
	o := socketOptions{protocol: strings.Join(res.Header[protocolField], ", "), client: true}
	if extensions := strings.Join(res.Header[extensionsField], ", "); extensions != "" {
		switch o.deflate = true; {
		case !h.ws.Compression:
			return nil, wsframe.UnexpectedFieldError(res.Header, extensionsField, "none")
		case !isSupportedDeflateResponse(extensions):
			return nil, wsframe.UnexpectedFieldError(res.Header, extensionsField, deflateExtension)
		}
	}
	v := h.ws.handlerFor(o)
	if v == nil {
		return nil, wsframe.UnexpectedFieldError(res.Header, protocolField, fmt.Sprintf("none or one of %q", h.ws.Subprotocols))
	}
	return v, nil
}

// Closed calls DialFailed, because the connection has closed before the end of the handshake. After a successful
// handshake, the connection has another handler.
func (h *socketHandshake) Closed(_ *tcp.Conn, reason error) {
	if h.err == nil && errors.Is(reason, tcp.ErrDeadline) {
		reason = tcp.ErrDialTimeout
	}
	h.DialFailed(tcp.Dial{}, cmp.Or(h.err, reason))
}

func (h *socketHandshake) DialFailed(_ tcp.Dial, err error) {
	if f, ok := h.ws.Handler.(DialFailedHandler); ok {
		f.DialFailed(h.dial, err)
	}
}

package web

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/overload"
	"github.com/myriad-go/myriad/tcp"
)

// HTTP/2 connections are served by net/http. A connection begins as HTTP/1.1. When its owner has read the client's
// preface, it makes an http2Conn the connection's handler. The http2Conn passes the decrypted input to a tcp.NetConn,
// and an http.Server serves the NetConn like an unencrypted connection.
//
// Concurrency: an http2Conn belongs to the connection's owner. Requests run on goroutines of net/http, which end with
// the NetConn. HTTP.http2Mu guards HTTP.http2Servers and the connection counts in it. The goroutine of
// http2Server.drain ends when the last connection of its server has closed.

// http2Server serves the HTTP/2 connections of one tcp.Server. Each tcp.Server has its own http2Server, so that it can
// be drained without the other servers.
type http2Server struct {
	http.Server
	conns     int
	drainOnce sync.Once
}

// http2Conn is the tcp.Handler of an HTTP/2 connection. It is also the Value of the tcp.NetConn that net/http serves.
type http2Conn struct {
	*tcp.NetListener // passes input to the NetConn
	h                *HTTP
	tcpServer        *tcp.Server
	server           *http2Server
	tls              *tls.ConnectionState // nil without TLS
	overload         *overload.Manager
	source           netip.Addr // for fair sharing under overload
}

const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// startHTTP2 starts HTTP/2 on c if TLS has negotiated HTTP/2. It also does so without TLS if UnencryptedHTTP2 is set
// and the input begins with the HTTP/2 preface. Otherwise, isHTTP2 is false. While the preface is incomplete, used is
// 0. If the preface is wrong, TLS is too weak or the server drains, startHTTP2 closes c.
func (h *HTTP) startHTTP2(c *tcp.Conn, in []byte) (used int, isHTTP2 bool) {
	isPreface := bytes.HasPrefix(in, []byte(http2Preface)[:min(len(in), len(http2Preface))])
	state := c.TLS()
	negotiated := state != nil && state.NegotiatedProtocol == "h2" && !h.DisableHTTP2
	switch {
	case !negotiated && (state != nil || !h.UnencryptedHTTP2 || !isPreface):
		return 0, false
	case !isPreface:
		sendGoAwayAndClose(c, protocolError)
		return len(in), true
	case len(in) < len(http2Preface):
		return 0, true
	case isDraining(c):
		sendGoAwayAndClose(c, noError)
		return len(in), true
	case negotiated && !isSecureForHTTP2(state):
		sendGoAwayAndClose(c, inadequateSecurity)
		return len(in), true
	}
	c.SetTimer(0)
	hc := &http2Conn{tcp.NewNetListener(), h, c.Server(), h.acquireHTTP2Server(c.Server()), state, overloadManager(c), peerAddr(c).Addr()}
	_ = c.SetHandler(hc) // does not fail during a call
	hc.Opened(c)
	nc := c.Value().(*tcp.NetConn)
	nc.SetValue(hc)
	go hc.server.Serve(&singleConnListener{NetListener: hc.NetListener}) // returns when it has accepted nc
	return hc.Received(c, in), true
}

// Error codes of HTTP/2 (RFC 9113, section 7).
const (
	noError            = 0
	protocolError      = 1
	inadequateSecurity = 12
)

// sendGoAwayAndClose sends a GOAWAY frame with the given error code, and closes c. The frame tells the client that no
// request was processed.
func sendGoAwayAndClose(c *tcp.Conn, code byte) {
	_, _ = c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, code})
	_ = c.Close()
}

// isSecureForHTTP2 reports whether RFC 9113, section 9.2, allows the TLS version and the cipher suite of s.
func isSecureForHTTP2(s *tls.ConnectionState) bool {
	name := tls.CipherSuiteName(s.CipherSuite)
	return s.Version >= tls.VersionTLS13 || s.Version == tls.VersionTLS12 && strings.HasPrefix(name, "TLS_ECDHE_") &&
		(strings.Contains(name, "_GCM_") || strings.Contains(name, "_CHACHA20_"))
}

func (h *HTTP) acquireHTTP2Server(ts *tcp.Server) *http2Server {
	h.http2Mu.Lock()
	defer h.http2Mu.Unlock()
	s := h.http2Servers[ts]
	if s == nil {
		if h.http2Servers == nil {
			h.http2Servers = make(map[*tcp.Server]*http2Server)
		}
		s = &http2Server{}
		h.configureHTTPServer(&s.Server)
		s.configureHTTP2(h, ts)
		h.http2Servers[ts] = s
	}
	s.conns++
	return s
}

func (s *http2Server) configureHTTP2(h *HTTP, ts *tcp.Server) {
	s.MaxHeaderBytes = h.maxHeaderBytesOrDefault()
	s.Protocols = new(http.Protocols)
	s.Protocols.SetUnencryptedHTTP2(true) // the NetConn is already decrypted
	if s.HTTP2 = new(http.HTTP2Config); h.HTTP2 != nil {
		*s.HTTP2 = *h.HTTP2
	}
	if s.HTTP2.SendPingTimeout == 0 {
		s.HTTP2.SendPingTimeout = ts.Heartbeat.Interval
	}
	s.ConnContext = func(ctx context.Context, nc net.Conn) context.Context {
		return context.WithValue(ctx, http2Key{}, nc.(*tcp.NetConn).Value())
	}
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hc := http2ConnOf(r)
		r.TLS = hc.tls
		if hc.overload.IsShedding() && !hc.overload.Admit(nil, hc.source, priorityOf(h.handlerOrDefaultMux(), r)) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, serviceUnavailable, http.StatusServiceUnavailable)
			return
		}
		h.handlerOrDefaultMux().ServeHTTP(w, r)
	})
}

type http2Key struct{}

func http2ConnOf(r *http.Request) *http2Conn {
	hc, _ := r.Context().Value(http2Key{}).(*http2Conn)
	return hc
}

// Draining implements tcp.DrainingHandler. It sends GOAWAY to all HTTP/2 clients of the server.
func (hc *http2Conn) Draining(*tcp.Conn) { hc.server.startDrain() }

// startDrain closes the connections in the background after their requests have ended. It calls Shutdown repeatedly,
// because one call can miss connections that net/http has just accepted.
func (s *http2Server) startDrain() {
	s.drainOnce.Do(func() {
		go func() {
			for done := false; !done; {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				done = s.Shutdown(ctx) == nil
				cancel()
			}
		}()
	})
}

// Heartbeat implements tcp.HeartbeatHandler. It sends nothing, because net/http sends the pings.
func (hc *http2Conn) Heartbeat(*tcp.Conn) (answers bool) { return false }

func (hc *http2Conn) Closed(c *tcp.Conn, reason error) {
	hc.NetListener.Closed(c, reason)
	hc.h.http2Mu.Lock()
	defer hc.h.http2Mu.Unlock()
	if hc.server.conns--; hc.server.conns == 0 {
		delete(hc.h.http2Servers, hc.tcpServer)
	}
}

// singleConnListener is a NetListener that accepts one connection and then returns an error. The error ends
// http.Server.Serve.
type singleConnListener struct {
	*tcp.NetListener
	accepted bool
}

func (l *singleConnListener) Accept() (net.Conn, error) {
	if l.accepted {
		return nil, net.ErrClosed
	}
	l.accepted = true
	return l.NetListener.Accept()
}

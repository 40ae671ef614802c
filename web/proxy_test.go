package web_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

func newCertificate(t *testing.T) (cert []tls.Certificate, roots *x509.CertPool) {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	return s.TLS.Certificates, s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
}

// TestALPN checks that HTTP/2 is preferred unless it is disabled, and HTTP/1.1 used otherwise, whatever the
// configuration contains.
func TestALPN(t *testing.T) {
	cert, roots := newCertificate(t)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.TLS.NegotiatedProtocol) })
	for _, disabled := range []bool{false, true} {
		for _, configured := range [][]string{nil, {"acme-tls/1", "http/1.1", "h2"}} {
			config := &tls.Config{Certificates: cert, NextProtos: configured}
			addr := startServer(t, &tcp.Server{Handler: &web.HTTP{Handler: h, DisableHTTP2: disabled}, Log: slog.New(slog.DiscardHandler), TLSConfig: config})
			for offered, want := range map[string]string{"": "", "http/1.1": "http/1.1", "http/1.1 h2": "h2", "h2": "h2"} {
				if disabled {
					want = strings.Replace(want, "h2", strings.TrimSpace(strings.Replace(offered, "h2", "", 1)), 1)
				}
				nc, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots, NextProtos: strings.Fields(offered)})
				if disabled && offered == "h2" {
					if err == nil || !strings.Contains(err.Error(), "no application protocol") {
						t.Errorf("%q: HTTP/2 alone: %v", configured, err)
					}
					continue
				}
				testkit.RequireNoError(t, err)
				if got := nc.ConnectionState().NegotiatedProtocol; got != want {
					t.Errorf("disabled %v, %q: %q is used with a client that offers %q; want %q", disabled, configured, got, offered, want)
				}
				c := testkit.NewConn(t, nc)
				if want != "h2" {
					ask(t, c, "/", want)
				}
			}
		}
	}
}

// TestHTTPOnTLSPort checks that an unencrypted request is answered as by net/http, and counted as a failed handshake.
func TestHTTPOnTLSPort(t *testing.T) {
	cert, _ := newCertificate(t)
	h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	theirs := httptest.NewUnstartedServer(h)
	theirs.Config.ErrorLog = silent
	theirs.StartTLS()
	defer theirs.Close()
	for _, model := range tcp.Models() {
		srv := &tcp.Server{Model: model, Handler: web.Handler(h), TLSConfig: &tls.Config{Certificates: cert}, Log: slog.New(slog.DiscardHandler)}
		addr := startServer(t, srv)
		requests := []string{getRequests("/"), "POST /", "HEAD / ", "PUT /x", "OPTIONS *", "DELETE / HTTP/1.1\r\n\r\n", "GET x HTTP/1.1\r\n\r\n", "hello\r\n"}
		for _, request := range requests {
			if got, want := exchangeUntilEnd(t, addr, request), exchangeUntilEnd(t, theirs.Listener.Addr().String(), request); got != want {
				t.Errorf("%s: %q is answered with %q; net/http answers %q", model, request, got, want)
			}
		}
		testkit.WaitFor(t, "not all failed handshakes are counted", func() bool { return srv.Stats().Refused.Handshake == int64(len(requests)) })
	}
}

func exchangeUntilEnd(t *testing.T, addr, request string) string {
	c := testkit.Dial(t, addr)
	defer c.Close()
	c.Send(request)
	return c.ExpectClosed()
}

// TestBehindProxies checks that RemoteAddr is the client in a PROXY header, and that fields of the
// request do not change it.
func TestBehindProxies(t *testing.T) {
	about := func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %q %q", r.RemoteAddr, r.Header["X-Forwarded-For"], r.Header["Forwarded"])
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/pool", about)
	mux.Handle("/quick", web.Quick(http.HandlerFunc(about)))
	trusted := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	addr := startServer(t, &tcp.Server{Handler: web.Handler(mux), TrustedProxies: trusted})
	c := testkit.Dial(t, addr)
	c.Send("PROXY TCP4 192.0.2.7 192.0.2.8 1234 80\r\n")
	for _, path := range []string{"/pool", "/quick"} {
		c.Send("GET " + path + " HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 10.0.0.1\r\nForwarded: for=x\r\n\r\n")
		expectBody(t, c, `192.0.2.7:1234 ["10.0.0.1"] ["for=x"]`)
	}
}

// TestUnixSocket checks that RemoteAddr is as in net/http.
func TestUnixSocket(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%q", r.RemoteAddr) })
	path := filepath.Join(t.TempDir(), "s")
	startServer(t, &tcp.Server{Handler: web.Handler(h), Listeners: []tcp.Listener{{Network: "unix", Addr: path}}})
	ask(t, testkit.Dial(t, path), "/", `"@"`)
}

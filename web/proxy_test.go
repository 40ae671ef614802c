package web_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
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

// TestALPN checks that HTTP/1.1 is negotiated with clients that offer it, whatever the
// configuration contains, and that clients with only HTTP/2 are rejected.
func TestALPN(t *testing.T) {
	cert, roots := newCertificate(t)
	h := web.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.TLS.NegotiatedProtocol) }))
	for _, configured := range [][]string{nil, {"h2", "http/1.1"}, {"acme-tls/1", "h2"}} {
		config := &tls.Config{Certificates: cert, NextProtos: configured}
		addr := startServer(t, &tcp.Server{Handler: h, Log: slog.New(slog.DiscardHandler), TLSConfig: config})
		for offered, want := range map[string]string{"": "", "http/1.1": "http/1.1", "h2 http/1.1": "http/1.1"} {
			c := testkit.DialTLS(t, addr, &tls.Config{RootCAs: roots, NextProtos: strings.Fields(offered)})
			c.Send(getRequests("/"))
			expectBody(t, c, want)
		}
		if _, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}}); err == nil || !strings.Contains(err.Error(), "no application protocol") {
			t.Errorf("%q: HTTP/2 alone: %v", configured, err)
		}
	}
}

// TestBehindProxies checks that RemoteAddr is the client in a PROXY header, and that fields of
// the request do not change it.
func TestBehindProxies(t *testing.T) {
	cert, roots := newCertificate(t)
	mux := http.NewServeMux()
	about := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %q %q %t", r.RemoteAddr, r.Header["X-Forwarded-For"], r.Header["Forwarded"], r.TLS != nil)
	})
	mux.Handle("/pool", about)
	mux.Handle("/quick", web.Quick(about))
	fields := "Host: x\r\nX-Forwarded-For: 198.51.100.1\r\nX-Forwarded-For: 10.0.0.1\r\nForwarded: for=198.51.100.1;proto=https\r\n\r\n"
	told := ` ["198.51.100.1" "10.0.0.1"] ["for=198.51.100.1;proto=https"] `
	v2 := "\r\n\r\n\x00\r\nQUIT\n\x21\x21\x00\x24" + strings.Repeat("\x20\x01\x0d\xb8"+strings.Repeat("\x00", 11)+"\x07", 2) + "\x04\xd2\x00\x50"
	for _, secured := range []bool{false, true} {
		s := &tcp.Server{Handler: web.Handler(mux), TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
		if secured {
			s.TLSConfig = &tls.Config{Certificates: cert}
		}
		addr := startServer(t, s)
		for header, client := range map[string]string{
			"PROXY TCP4 192.0.2.7 192.0.2.8 1234 80\r\n": "192.0.2.7:1234",
			v2:                  "[2001:db8::7]:1234",
			"PROXY UNKNOWN\r\n": "",
		} {
			c := testkit.Dial(t, addr)
			c.Send(header)
			if client == "" {
				client = c.LocalAddr().String()
			}
			if secured {
				c = testkit.NewConn(t, tls.Client(c.Conn, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}))
			}
			for _, path := range []string{"/pool", "/quick"} {
				c.Send("GET " + path + " HTTP/1.1\r\n" + fields)
				expectBody(t, c, client+told+fmt.Sprint(secured))
			}
		}
	}
}

// TestUnixSocket serves a proxy on the same machine, with the addresses of net/http.
func TestUnixSocket(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%q", r.RemoteAddr) })
	get := func(path string) string {
		c := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }}}
		defer c.CloseIdleConnections()
		res, err := c.Get("http://x/")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return string(b)
	}
	theirs := filepath.Join(t.TempDir(), "theirs")
	l, err := net.Listen("unix", theirs)
	if err != nil {
		t.Fatal(err)
	}
	standard := &http.Server{Handler: h}
	go standard.Serve(l)
	defer standard.Close()
	path := filepath.Join(t.TempDir(), "ours")
	startServer(t, &tcp.Server{Handler: web.Handler(h), Listeners: []tcp.Listener{{Network: "unix", Addr: path}}})
	if got, want := get(path), get(theirs); got != want {
		t.Errorf("RemoteAddr is %s; net/http's %s", got, want)
	}
}

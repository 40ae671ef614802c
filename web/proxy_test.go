package web_test

import (
	"cmp"
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
	for header, client := range map[string]string{"PROXY TCP4 192.0.2.7 192.0.2.8 1234 80\r\n": "192.0.2.7:1234", "PROXY UNKNOWN\r\n": ""} {
		c := testkit.Dial(t, addr)
		c.Send(header)
		for _, path := range []string{"/pool", "/quick"} {
			c.Send("GET " + path + " HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 198.51.100.1\r\nX-Forwarded-For: 10.0.0.1\r\nForwarded: for=x\r\n\r\n")
			expectBody(t, c, cmp.Or(client, c.LocalAddr().String())+` ["198.51.100.1" "10.0.0.1"] ["for=x"]`)
		}
	}
}

// TestUnixSocket checks that RemoteAddr is as in net/http.
func TestUnixSocket(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%q", r.RemoteAddr) })
	path := filepath.Join(t.TempDir(), "s")
	startServer(t, &tcp.Server{Handler: web.Handler(h), Listeners: []tcp.Listener{{Network: "unix", Addr: path}}})
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := testkit.NewConn(t, nc)
	c.Send(getRequests("/"))
	expectBody(t, c, `"@"`)
}

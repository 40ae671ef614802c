package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"testing"
)

// TestCertificate serves the plain apps with one, over TLS 1.3.
func TestCertificate(t *testing.T) {
	c, err := newCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(c.key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v; want it for its owner alone", info.Mode(), err)
	}
	own, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := c.trust()
	if err != nil {
		t.Fatal(err)
	}
	for _, app := range []string{Echo, Lines, Sink, HTTP} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- Plain(ctx, ln, PlainOptions{App: app, TLS: &tls.Config{Certificates: []tls.Certificate{own}}})
		}()
		conn, err := probe(t.Context(), ln.Addr().String(), app, trust)
		if err != nil {
			t.Fatalf("%s: %v", app, err)
		}
		if v := conn.(*tls.Conn).ConnectionState().Version; v != tls.VersionTLS13 {
			t.Errorf("%s: %s", app, tls.VersionName(v))
		}
		conn.Close()
		var unknown x509.UnknownAuthorityError
		if _, err := probe(t.Context(), ln.Addr().String(), app, &tls.Config{ServerName: "127.0.0.1"}); !errors.As(err, &unknown) {
			t.Errorf("%s, without trust: got %v", app, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", app, err)
		}
	}
	if (*certificate)(nil).loadFlags() != nil {
		t.Error("no certificate has flags")
	}
}

// checkEmpty looks whether the temporary directory is empty.
func checkEmpty(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) != 0 {
		t.Errorf("%v are left in the temporary directory, %v", left, err)
	}
}

// TestCertificateNowhere has no directory to be put in.
func TestCertificateNowhere(t *testing.T) {
	if _, err := newCertificate("/does/not/exist"); err == nil {
		t.Error("no error")
	}
	o := children(t)
	t.Setenv("TMPDIR", "/does/not/exist")
	s := testScenario()
	s.Workloads[0].TLS = true
	if report, err := Run(t.Context(), s, o); report != nil || err == nil {
		t.Errorf("got %v, %v, want an error before the first run", report, err)
	}
}

// TestPlainSink says nothing, and ends when its client does.
func TestPlainSink(t *testing.T) {
	conn, end := startPlain(t, Sink)
	if err := askSlow(conn, Sink); err != nil {
		t.Error(err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	conn, end = startPlain(t, Echo)
	if err := ask(conn, Sink); err == nil {
		t.Error("echo passes for sink")
	}
	_ = end()
	if err := askSink(struct{ net.Conn }{nopConn{}}); err == nil {
		t.Error("a connection that can't be shut passes")
	}
}

type nopConn struct{ net.Conn }

func (nopConn) Write(p []byte) (int, error) { return len(p), nil }
func (nopConn) Read([]byte) (int, error)    { return 0, io.EOF }

package run

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/lab/app"
)

const (
	// readyBound is how long a server may take to answer its first connection. One that
	// followed a run of a million connections, on a busy machine, took more than 10 s.
	readyBound = 30 * time.Second
	// attemptBound is how long one attempt to reach it may take.
	attemptBound = time.Second
)

// server is a subject that runs.
type server struct {
	*process
	addr string
}

// port is where the server listens.
func (s *server) port() uint16 { return netip.MustParseAddrPort(s.addr).Port() }

// watch returns a context that ends, with the reason as its cause, when the server ends by
// itself. The returned function releases it and waits.
func (s *server) watch(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wait sync.WaitGroup
	wait.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.done:
			cancel(s.failure("the server"))
		}
	})
	return ctx, func() {
		cancel(nil)
		wait.Wait()
	}
}

// awaitReady waits until the server answers, and returns the connection over which it did.
func (s *server) awaitReady(ctx context.Context, name string, trust *tls.Config) (net.Conn, error) {
	bound, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	var last error
	for {
		conn, err := dialAndAsk(bound, s.addr, name, trust)
		if err == nil {
			return conn, nil
		}
		if bound.Err() == nil || last == nil {
			last = err // and not that there was no more time
		}
		if pause(bound, poll) != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, fmt.Errorf("the server was not ready within %v: %w%s", readyBound, last, s.words())
		}
	}
}

// dialAndAsk connects and has the app answer once. So the connection has been accepted, not
// only queued.
func dialAndAsk(ctx context.Context, addr, name string, trust *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptBound)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	raw := conn
	if trust != nil {
		conn = tls.Client(conn, trust)
	}
	err = conn.SetDeadline(time.Now().Add(attemptBound))
	if err == nil {
		err = app.Ask(conn, name)
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// dialTraceless connects so that nothing is left of the connection when it is closed: no
// TIME_WAIT.
func dialTraceless(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: broadcastBound}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		err = tcp.SetLinger(0)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// freeAddr returns a loopback address that nobody listens on. It looks below the range that
// systems take client ports from, so that none of the many connections of a load takes the
// port first.
func freeAddr() (string, error) {
	const from, to, tries = 20000, 30000, 100
	var last error
	for range tries {
		addr := fmt.Sprintf("127.0.0.1:%d", from+mathrand.IntN(to-from))
		ln, err := net.Listen("tcp", addr)
		if err == nil {
			return addr, ln.Close()
		}
		last = err
	}
	return "", fmt.Errorf("no free port found in %d tries: %w", tries, last)
}

// newCertificate makes a certificate for 127.0.0.1 with a key of its own (ECDSA, P-256), and
// returns the PEM file in a directory that has both. It is valid for a month: longer than any
// scenario takes.
func newCertificate(dir string) (path string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot make a certificate: %w", err)
		}
	}()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		NotBefore:    now.Add(-time.Hour), // for a clock that is set back
		NotAfter:     now.Add(31 * 24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return "", err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", err
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})...)
	path = filepath.Join(dir, "certificate.pem")
	return path, os.WriteFile(path, text, 0o600)
}

// trust is what a client needs to speak with who has the certificate of a file.
func trust(certificate string) (*tls.Config, error) {
	text, err := os.ReadFile(certificate)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: trusted, ServerName: "127.0.0.1"}, nil
}

package load

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/layers"
	"github.com/myriad-go/myriad/internal/secure"
)

// What ends a handshake without a word from TLS itself.
var (
	errHandshakeLate   = errors.New("not over in time")
	errHandshakeBroken = errors.New("the connection broke")
)

// handshakeError is why a TLS handshake failed.
type handshakeError struct{ error }

func (e handshakeError) Unwrap() error { return e.error }

// encryption is what the connections of a run have in common where they are
// encrypted.
type encryption struct {
	layers layers.Config
	most   time.Duration   // for a handshake
	failed func(err error) // may be called on any goroutine
	agreed atomic.Pointer[tls.ConnectionState]
}

// newEncryption tells failed of each handshake that fails. The handshakes that
// are under way have places in a gate; the others wait for theirs. They compute
// off the loops, on half of the processors, like a server's.
func newEncryption(cfg *tls.Config, most time.Duration, failed func(error)) *encryption {
	gate := secure.NewGate(halfOpen, max(runtime.GOMAXPROCS(0)/2, 1))
	return &encryption{layers: layers.Config{TLS: cfg, Gate: gate}, most: most, failed: failed}
}

// wait waits until no handshake is under way, when the engine has stopped.
func (e *encryption) wait() { e.layers.Gate.Wait() }

// first makes a connection's layer. It is an engine.Config.NewLayer.
func (e *encryption) first(c *engine.Conn) engine.Layer {
	return &handshake{Layer: e.layers.NewFirstLayer(c), of: e, began: engine.MonotonicNow()}
}

// handshake stands before a connection's TLS layer until the handshake is over.
// The handler is not called for a connection whose handshake fails; this does.
type handshake struct {
	engine.Layer
	of    *encryption
	began time.Duration
	why   error // what TLS said
	ended bool  // the server has ended the connection
}

func (h *handshake) OnRead(c *engine.Conn, p []byte) error {
	return h.look(c, h.Layer.OnRead(c, p))
}
func (h *handshake) Resume(c *engine.Conn) error { return h.look(c, h.Layer.Resume(c)) }

// OnEOF says why, where TLS has nothing to say.
func (h *handshake) OnEOF(c *engine.Conn) error {
	h.ended = true
	return h.look(c, h.Layer.OnEOF(c))
}

// look keeps what TLS said, and makes way when the handshake is over.
func (h *handshake) look(c *engine.Conn, err error) error {
	h.why = cmp.Or(h.why, err)
	if c.InHandshake() {
		return err
	}
	c.SetLayer(h.Layer)
	if h.of.agreed.Load() == nil {
		h.of.agreed.CompareAndSwap(nil, layers.TLSState(c))
	}
	return err
}

// Closed tells of a handshake that failed: only then it is called.
func (h *handshake) Closed(c *engine.Conn) {
	h.Layer.OnClosed(c)
	if c.ConnHandler() == nil { // a reconnection has been told
		h.of.failed(handshakeError{h.cause()})
	}
}

func (h *handshake) cause() error {
	switch {
	case h.ended && (h.why == nil || errors.Is(h.why, io.EOF) || errors.Is(h.why, io.ErrUnexpectedEOF)):
		return io.EOF
	case h.why != nil:
		return h.why
	case engine.MonotonicNow()-h.began >= h.of.most:
		return errHandshakeLate
	}
	return errHandshakeBroken
}

// describe names what was agreed on, as far as any handshake has succeeded.
func (e *encryption) describe() string {
	if e == nil {
		return ""
	}
	s := e.agreed.Load()
	if s == nil {
		return "no handshake succeeded"
	}
	return tls.VersionName(s.Version) + ", " + tls.CipherSuiteName(s.CipherSuite)
}

// clientTLS is the TLS configuration of a run, nil for none. Errors say what is wrong
// with its file of certificates.
func (c Config) clientTLS() (*tls.Config, error) {
	if c.TLS == nil {
		return nil, nil
	}
	t := c.TLS
	cfg := t.Config.Clone()
	if cfg == nil {
		cfg = &tls.Config{}
	}
	cfg.ServerName = cmp.Or(t.ServerName, cfg.ServerName)
	cfg.InsecureSkipVerify = cfg.InsecureSkipVerify || t.Insecure
	if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
		host, _, _ := net.SplitHostPort(c.Target) // checked before
		cfg.ServerName = cmp.Or(host, "localhost")
	}
	if t.CAFile == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, fmt.Errorf("load: certificates to trust: %w", err)
	}
	cfg.RootCAs = x509.NewCertPool()
	if !cfg.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("load: certificates to trust: %s has none; expected a PEM file", t.CAFile)
	}
	return cfg, nil
}

// sealed is at most how many bytes n bytes of messages take on the wire where
// each is sent for itself. A record adds 22 bytes to at least 1,024, or to a
// message (RFC 8446, section 5.2); TLS 1.2 with CBC adds up to 53.
func sealed(messages, size int) int {
	const overhead = 64
	return messages * (size + overhead*(1+size/1024))
}

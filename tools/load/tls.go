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
	"github.com/myriad-go/myriad/internal/secure/tls13"
)

// Errors that describe a failed TLS handshake if crypto/tls has returned no error.
var (
	errHandshakeTimeout = errors.New("not completed in time")
	errHandshakeBroken  = errors.New("connection closed")
)

type handshakeError struct{ error }

func (e handshakeError) Unwrap() error { return e.error }

// tlsClient is the TLS state shared by all connections of a run.
type tlsClient struct {
	layers     layers.Config
	timeout    time.Duration                       // limit for a handshake
	onFailure  func(err error)                     // may be called on any goroutine
	firstState atomic.Pointer[tls.ConnectionState] // state of the first successful handshake
}

func newTLSClient(cfg *tls.Config, timeout time.Duration, onFailure func(error)) *tlsClient {
	gate := secure.NewHandshakeLimiter(maxHalfOpen, max(runtime.GOMAXPROCS(0)/2, 1))
	return &tlsClient{layers: layers.Config{TLS: cfg, Gate: gate, Ciphers: new(tls13.CipherCache), DropExporters: true}, timeout: timeout, onFailure: onFailure}
}

// waitHandshakesAndClose waits until no handshake is running, and then closes the cipher cache. The caller must have
// stopped the engine.
func (e *tlsClient) waitHandshakesAndClose() {
	e.layers.Gate.Wait()
	e.layers.Ciphers.Close()
}

func (e *tlsClient) newReportingTLSLayer(c *engine.Conn) engine.Layer {
	return &handshakeReporter{Layer: e.layers.NewFirstLayer(c), client: e, startedAt: engine.MonotonicNow()}
}

// handshakeReporter wraps a connection's TLS layer until the handshake is done, and reports failures.
type handshakeReporter struct {
	engine.Layer
	client      *tlsClient
	startedAt   time.Duration
	tlsErr      error // first TLS error
	serverEnded bool  // the server has closed the connection
}

func (h *handshakeReporter) OnRead(c *engine.Conn, p []byte) error {
	return h.recordErrorAndUnwrapWhenDone(c, h.Layer.OnRead(c, p))
}
func (h *handshakeReporter) ContinueHandshake(c *engine.Conn) error {
	return h.recordErrorAndUnwrapWhenDone(c, h.Layer.ContinueHandshake(c))
}

func (h *handshakeReporter) OnEOF(c *engine.Conn) error {
	h.serverEnded = true
	return h.recordErrorAndUnwrapWhenDone(c, h.Layer.OnEOF(c))
}

func (h *handshakeReporter) recordErrorAndUnwrapWhenDone(c *engine.Conn, err error) (sameErr error) {
	h.tlsErr = cmp.Or(h.tlsErr, err)
	if c.InHandshake() {
		return err
	}
	if c.Layer() == h { // otherwise the TLS layer has replaced itself
		c.ReplaceLayer(h.Layer)
	}
	if h.client.firstState.Load() == nil {
		h.client.firstState.CompareAndSwap(nil, layers.TLSStateAfterHandshake(c))
	}
	return err
}

func (h *handshakeReporter) OnClosed(c *engine.Conn) {
	h.Layer.OnClosed(c)
	if c.ConnHandler() == nil { // reconnections report failures through DialFailed
		h.client.onFailure(handshakeError{h.classifyHandshakeFailure()})
	}
}

func (h *handshakeReporter) classifyHandshakeFailure() error {
	switch {
	case h.serverEnded && (h.tlsErr == nil || errors.Is(h.tlsErr, io.EOF) || errors.Is(h.tlsErr, io.ErrUnexpectedEOF)):
		return io.EOF
	case h.tlsErr != nil:
		return h.tlsErr
	case engine.MonotonicNow()-h.startedAt >= h.client.timeout:
		return errHandshakeTimeout
	}
	return errHandshakeBroken
}

func (e *tlsClient) firstHandshakeVersionAndCipher() string {
	if e == nil {
		return ""
	}
	s := e.firstState.Load()
	if s == nil {
		return "no handshake succeeded"
	}
	return tls.VersionName(s.Version) + ", " + tls.CipherSuiteName(s.CipherSuite)
}

func (c Config) clientTLSConfig() (configOrNil *tls.Config, _ error) {
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
		host, _, _ := net.SplitHostPort(c.Target) // checked earlier
		cfg.ServerName = cmp.Or(host, "localhost")
	}
	if t.CAFile == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, fmt.Errorf("load: --tls-ca: %w", err)
	}
	cfg.RootCAs = x509.NewCertPool()
	if !cfg.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("load: --tls-ca: %s contains no certificates; expected a PEM file", t.CAFile)
	}
	return cfg, nil
}

// maxTLSBytesOfMessages returns an upper limit for the size in bytes of messages that are each encrypted separately.
func maxTLSBytesOfMessages(messages, messageSize int) int {
	const overhead = 64
	return messages * (messageSize + overhead*(1+messageSize/1024))
}

package layers

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"unique"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/secure"
	"github.com/myriad-go/myriad/internal/secure/tls13"
)

// compactTLSLayer is a TLS layer for use after a TLS 1.3 handshake. It uses less memory than crypto/tls.
type compactTLSLayer struct {
	records  tls13.Conn
	params   unique.Handle[sharedTLSParams]
	exporter secure.Exporter // nil if it was dropped, or if another process has performed the handshake
}

// sharedTLSParams contains the fields of a tls.ConnectionState that are equal in many connections.
type sharedTLSParams struct {
	CurveID                                   tls.CurveID
	DidResume, HelloRetryRequest, ECHAccepted bool
	NegotiatedProtocol, ServerName            string
	peer                                      *peerCertificates // nil if the peer has presented no certificate
}

// peerCertificates contains the fields of a tls.ConnectionState that depend on the peer's certificates.
type peerCertificates struct {
	certificates []*x509.Certificate
	chains       [][]*x509.Certificate
	timestamps   [][]byte
	ocspResponse []byte
}

func newCompactTLSLayer(cfg *Config, records tls13.Conn, s *tls.ConnectionState) *compactTLSLayer {
	p := sharedTLSParams{
		CurveID: s.CurveID, DidResume: s.DidResume, HelloRetryRequest: s.HelloRetryRequest, ECHAccepted: s.ECHAccepted,
		NegotiatedProtocol: s.NegotiatedProtocol, ServerName: s.ServerName,
	}
	if len(s.PeerCertificates) > 0 {
		p.peer = cfg.last.shareLastOrReplace(&peerCertificates{s.PeerCertificates, s.VerifiedChains, s.SignedCertificateTimestamps, s.OCSPResponse})
	}
	l := &compactTLSLayer{records: records, params: unique.Make(p)}
	if !cfg.DropExporters {
		l.exporter = secure.ExporterOf(s)
	}
	return l
}

// lastPeer contains the most recently created peerCertificates. Successive connections with equal certificates share
// this copy. A lastPeer is safe for concurrent use.
type lastPeer struct {
	atomic.Pointer[peerCertificates]
}

func (l *lastPeer) shareLastOrReplace(p *peerCertificates) *peerCertificates {
	if last := l.Load(); last != nil && last.isEqual(p) {
		return last
	}
	l.Store(p)
	return p
}

func (p *peerCertificates) isEqual(q *peerCertificates) bool {
	return slices.Equal(p.certificates, q.certificates) &&
		slices.EqualFunc(p.chains, q.chains, func(a, b []*x509.Certificate) bool { return slices.Equal(a, b) }) &&
		slices.EqualFunc(p.timestamps, q.timestamps, bytes.Equal) && bytes.Equal(p.ocspResponse, q.ocspResponse)
}

func (l *compactTLSLayer) OnRead(c *engine.Conn, p []byte) error {
	for {
		plaintext, used, err := l.records.ReadInPlace(c, p)
		p = p[used:]
		if len(plaintext) > 0 {
			c.OnPlaintext(plaintext)
		}
		switch {
		case err == nil:
		case errors.Is(err, tls13.ErrAgain):
			return nil
		case errors.Is(err, io.EOF):
			c.MarkPeerEOFAndForwardOrStartTimeout()
			return nil
		default:
			return &engine.TLSError{Err: err}
		}
	}
}

func (l *compactTLSLayer) Write(c *engine.Conn, p []byte) error {
	// After ErrBroken, OnRead returns the cause.
	if err := l.records.Write(c, p); err != nil && !errors.Is(err, tls13.ErrBroken) {
		return &engine.TLSError{Err: err}
	}
	return nil
}

func (l *compactTLSLayer) ContinueHandshake(*engine.Conn) error { return nil }

func (l *compactTLSLayer) InputFull() bool { return false }

func (l *compactTLSLayer) Memory() (memory int, partial bool) {
	return l.records.PartialRecordMemory(), l.records.HasPartialRecord()
}

// OnEOF handles the end of the transport's input. If the peer has not sent a close_notify alert, OnEOF returns
// io.ErrUnexpectedEOF, because an attacker may have cut the connection.
func (l *compactTLSLayer) OnEOF(c *engine.Conn) error {
	if !l.records.IsReadClosed() {
		return io.ErrUnexpectedEOF
	}
	return nil
}

func (l *compactTLSLayer) SendClose(c *engine.Conn) {
	_ = l.records.CloseWrite(c) // fails if the connection is broken
}

func (l *compactTLSLayer) OnClosed(*engine.Conn) { l.records.Close() }

var errNoExporter = errors.New("myriad: keying material can be exported only by the process that performed the TLS handshake, and not with Server.DropTLSExporters")

func (l *compactTLSLayer) state() *tls.ConnectionState {
	p := l.params.Value()
	s := &tls.ConnectionState{
		Version: tls.VersionTLS13, HandshakeComplete: true, CipherSuite: l.records.CipherSuite(),
		CurveID: p.CurveID, DidResume: p.DidResume, HelloRetryRequest: p.HelloRetryRequest, ECHAccepted: p.ECHAccepted,
		NegotiatedProtocol: p.NegotiatedProtocol, ServerName: p.ServerName,
	}
	s.NegotiatedProtocolIsMutual = true //lint:ignore SA1019 crypto/tls sets it
	if p.peer != nil {
		s.PeerCertificates, s.VerifiedChains = p.peer.certificates, p.peer.chains
		s.SignedCertificateTimestamps, s.OCSPResponse = p.peer.timestamps, p.peer.ocspResponse
	}
	exporter := l.exporter
	if exporter == nil {
		exporter = func(string, []byte, int) ([]byte, error) { return nil, errNoExporter }
	}
	secure.SetExporter(s, exporter)
	return s
}

package layers

import (
	"crypto/fips140"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unique"
	"weak"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/secure/tls13"
)

// savedTLSLayer is the JSON form of a compactTLSLayer. It does not contain the state of compactTLSLayer.records, which
// is saved separately.
type savedTLSLayer struct {
	CurveID                                   tls.CurveID
	DidResume, HelloRetryRequest, ECHAccepted bool
	NegotiatedProtocol, ServerName            []byte     // may be invalid UTF-8
	Certificates                              [][]byte   `json:",omitempty"` // DER
	Chains                                    [][][]byte `json:",omitempty"`
	Timestamps                                [][]byte   `json:",omitempty"`
	OCSPResponse                              []byte     `json:",omitempty"`
}

// AppendState implements engine.MovableLayer. It appends the length of the JSON encoding of a savedTLSLayer, the
// encoding itself, and the state of l.records.
func (l *compactTLSLayer) AppendState(dst []byte) []byte {
	p := l.params.Value()
	saved := savedTLSLayer{
		CurveID: p.CurveID, DidResume: p.DidResume, HelloRetryRequest: p.HelloRetryRequest, ECHAccepted: p.ECHAccepted,
		NegotiatedProtocol: []byte(p.NegotiatedProtocol), ServerName: []byte(p.ServerName),
	}
	if p.peer != nil {
		saved.Certificates = encodeCertificates(p.peer.certificates)
		for _, chain := range p.peer.chains {
			saved.Chains = append(saved.Chains, encodeCertificates(chain))
		}
		saved.Timestamps, saved.OCSPResponse = p.peer.timestamps, p.peer.ocspResponse
	}
	encoded, _ := json.Marshal(saved) // every value can be encoded
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(encoded)))
	return l.records.AppendState(append(dst, encoded...))
}

func encodeCertificates(certificates []*x509.Certificate) (der [][]byte) {
	for _, c := range certificates {
		der = append(der, c.Raw)
	}
	return der
}

// Restorer recreates TLS layers from states that another process has saved. Restored connections with equal
// certificates share one copy of the certificates. A Restorer is safe for concurrent use.
type Restorer struct {
	Ciphers *tls13.CipherCache

	certificates sync.Map // weak.Pointer[x509.Certificate] by the SHA-256 of their DER
}

// RestoreLayer implements engine.Config.RestoreLayer.
func (r *Restorer) RestoreLayer(state []byte) (engine.Layer, error) {
	if fips140.Enabled() {
		return nil, errors.New("myriad: compact TLS connections can't continue in FIPS 140 mode")
	}
	if len(state) < 4 || uint64(binary.BigEndian.Uint32(state)) > uint64(len(state)-4) {
		return nil, fmt.Errorf("myriad: saved TLS connection has %d bytes; expected all that were saved", len(state))
	}
	n := int(binary.BigEndian.Uint32(state))
	l, err := r.decodeLayerParams(state[4 : 4+n])
	if err == nil {
		l.records, err = tls13.RestoreConn(state[4+n:], r.Ciphers)
	}
	if err != nil {
		return nil, fmt.Errorf("myriad: saved TLS connection: %w", err)
	}
	return l, nil
}

func (r *Restorer) decodeLayerParams(encoded []byte) (*compactTLSLayer, error) {
	var saved savedTLSLayer
	if err := json.Unmarshal(encoded, &saved); err != nil {
		return nil, err
	}
	params := sharedTLSParams{
		CurveID: saved.CurveID, DidResume: saved.DidResume, HelloRetryRequest: saved.HelloRetryRequest, ECHAccepted: saved.ECHAccepted,
		NegotiatedProtocol: string(saved.NegotiatedProtocol), ServerName: string(saved.ServerName),
	}
	if len(saved.Certificates) > 0 {
		peer := &peerCertificates{timestamps: saved.Timestamps, ocspResponse: saved.OCSPResponse}
		var err error
		if peer.certificates, err = r.parseOrShareCertificates(saved.Certificates); err != nil {
			return nil, err
		}
		for _, der := range saved.Chains {
			chain, err := r.parseOrShareCertificates(der)
			if err != nil {
				return nil, err
			}
			peer.chains = append(peer.chains, chain)
		}
		params.peer = peer
	}
	return &compactTLSLayer{params: unique.Make(params)}, nil
}

func (r *Restorer) parseOrShareCertificates(all [][]byte) (certificates []*x509.Certificate, err error) {
	for _, der := range all {
		hash := sha256.Sum256(der)
		var c *x509.Certificate
		if known, ok := r.certificates.Load(hash); ok {
			c = known.(weak.Pointer[x509.Certificate]).Value()
		}
		if c == nil {
			if c, err = x509.ParseCertificate(der); err != nil {
				return nil, err
			}
			pointer := weak.Make(c)
			r.certificates.Store(hash, pointer)
			runtime.AddCleanup(c, func(hash [sha256.Size]byte) { r.certificates.CompareAndDelete(hash, pointer) }, hash)
		}
		certificates = append(certificates, c)
	}
	return certificates, nil
}

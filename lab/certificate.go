package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certificate is where a server finds its certificate and its key, as PEM files.
// The certificate is all that a client needs to trust it.
type certificate struct {
	cert, key string
}

// newCertificate makes one for 127.0.0.1, with a key of its own (ECDSA, P-256),
// in a directory. It is valid for a month: longer than any scenario takes.
func newCertificate(dir string) (*certificate, error) {
	c := &certificate{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
	if err := c.make(time.Now()); err != nil {
		return nil, fmt.Errorf("cannot make a certificate: %w", err)
	}
	return c, nil
}

func (c *certificate) make(now time.Time) error {
	const month = 31 * 24 * time.Hour
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		NotBefore:    now.Add(-time.Hour), // for a clock that is set back
		NotAfter:     now.Add(month),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(writePEM(c.cert, "CERTIFICATE", der), writePEM(c.key, "PRIVATE KEY", secret))
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// trust is what a client needs to speak with who has the certificate; nil has no
// TLS.
func (c *certificate) trust() (*tls.Config, error) {
	if c == nil {
		return nil, nil
	}
	text, err := os.ReadFile(c.cert)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: trusted, ServerName: "127.0.0.1"}, nil
}

// loadFlags are those of the load generator.
func (c *certificate) loadFlags() []string {
	if c == nil {
		return nil
	}
	return []string{"--tls", "--tls-ca", c.cert}
}

package secure

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const checkInterval = time.Second

// Reloader holds a certificate and its key, and reloads both files when one of them changes. Use its GetCertificate in
// a [tls.Config]. A Reloader is safe for concurrent use.
//
// A Reloader checks the files during handshakes, at most once a second. If loading fails, it logs the error once and
// keeps the old certificate.
type Reloader struct {
	certFile, keyFile string
	log               *slog.Logger
	current           atomic.Pointer[tls.Certificate]

	mu        sync.Mutex // held by the goroutine that checks the files; others do not wait
	lastCheck time.Time
	cert, key []byte // the last pair that was tried
}

// NewReloader loads a certificate chain and its key from two PEM files. If reloading fails later, the Reloader logs the
// error with log. If log is nil, it uses [slog.Default].
func NewReloader(certFile, keyFile string, log *slog.Logger) (*Reloader, error) {
	r := &Reloader{certFile: certFile, keyFile: keyFile, log: cmp.Or(log, slog.Default())}
	if _, err := r.ReloadNow(); err != nil {
		return nil, fmt.Errorf("load the certificate %s with the key %s: %w", certFile, keyFile, err)
	}
	return r, nil
}

// GetCertificate returns the current certificate. If the files were last checked a second or more ago, it first checks
// the files and reloads them if they have changed. The error is always nil.
func (r *Reloader) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if r.mu.TryLock() {
		if time.Since(r.lastCheck) >= checkInterval {
			switch attempted, err := r.loadIfChangedLocked(false); {
			case !attempted:
			case err != nil:
				r.log.Error("certificate reload failed; keeping the old one", "cert", r.certFile, "key", r.keyFile, "error", err)
			default:
				r.log.Info("certificate reloaded", "cert", r.certFile, "expires", leafExpiryOrZero(r.current.Load()))
			}
		}
		r.mu.Unlock()
	}
	return r.current.Load(), nil
}

// ReloadNow loads the certificate and key even if the files have not changed. expires is the time at which the
// certificate expires. After an error, the old certificate stays in use.
func (r *Reloader) ReloadNow() (expires time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.loadIfChangedLocked(true); err != nil {
		return time.Time{}, err
	}
	return leafExpiryOrZero(r.current.Load()), nil
}

// loadIfChangedLocked loads the certificate and key if one of the files has changed or force is true. If it did not try
// to load them, attempted is false.
func (r *Reloader) loadIfChangedLocked(force bool) (attempted bool, err error) {
	r.lastCheck = time.Now()
	cert, err := os.ReadFile(r.certFile)
	key, keyErr := os.ReadFile(r.keyFile)
	if !force && bytes.Equal(cert, r.cert) && bytes.Equal(key, r.key) {
		return false, nil
	}
	r.cert, r.key = cert, key
	if err = cmp.Or(err, keyErr); err != nil {
		return true, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err == nil {
		r.current.Store(&pair)
	}
	return true, err
}

func leafExpiryOrZero(c *tls.Certificate) time.Time {
	if c.Leaf == nil { // GODEBUG=x509keypairleaf=0
		return time.Time{}
	}
	return c.Leaf.NotAfter
}

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

// checkInterval is how often a Reloader looks at its files, at most.
const checkInterval = time.Second

// A Reloader has the certificate of a pair of files and loads it again when the
// files change. Its GetCertificate is for [tls.Config]; it is safe for concurrent
// use.
//
// It reads them when a handshake asks, at most once a second. A pair that can't be
// loaded is logged once, and the old one stays in use; the next change is tried again. It
// does not matter in which order the two files are replaced.
type Reloader struct {
	certFile, keyFile string
	log               *slog.Logger
	current           atomic.Pointer[tls.Certificate]

	mu        sync.Mutex // one goroutine looks; the others go on
	lastCheck time.Time
	cert, key []byte // of the pair that was last tried
}

// NewReloader loads the pair of PEM files, the certificate with its chain and its key.
// It is an error if that fails now; later failures go to log, or to
// [slog.Default] if that is nil.
func NewReloader(certFile, keyFile string, log *slog.Logger) (*Reloader, error) {
	r := &Reloader{certFile: certFile, keyFile: keyFile, log: cmp.Or(log, slog.Default())}
	if _, err := r.ReloadNow(); err != nil {
		return nil, fmt.Errorf("load the certificate %s with the key %s: %w", certFile, keyFile, err)
	}
	return r, nil
}

// GetCertificate is the pair in use. It never fails.
func (r *Reloader) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if r.mu.TryLock() {
		if time.Since(r.lastCheck) >= checkInterval {
			switch changed, err := r.loadIfChanged(false); {
			case !changed:
			case err != nil:
				r.log.Error("the certificate can't be reloaded, the old one stays in use", "cert", r.certFile, "key", r.keyFile, "err", err)
			default:
				r.log.Info("certificate reloaded", "cert", r.certFile, "expires", certExpiry(r.current.Load()))
			}
		}
		r.mu.Unlock()
	}
	return r.current.Load(), nil
}

// ReloadNow loads the pair now, whether it has changed or not, and says when the
// certificate ends. After an error the old one stays in use.
func (r *Reloader) ReloadNow() (expires time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.loadIfChanged(true); err != nil {
		return time.Time{}, err
	}
	return certExpiry(r.current.Load()), nil
}

// loadIfChanged puts the pair in use if it has changed since it was last tried, or always.
func (r *Reloader) loadIfChanged(force bool) (changed bool, err error) {
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

// certExpiry is when the certificate ends.
func certExpiry(c *tls.Certificate) time.Time {
	if c.Leaf == nil { // GODEBUG=x509keypairleaf=0
		return time.Time{}
	}
	return c.Leaf.NotAfter
}

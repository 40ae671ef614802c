package secure

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// lookEvery is how often a Reloader looks at its files, at most.
const lookEvery = time.Second

// A Reloader has the certificate of a pair of files and loads it again when the
// files change. Its GetCertificate is for [tls.Config]; it is safe for concurrent
// use.
//
// It looks when a handshake asks, at most once a second, at the files' identity,
// modification time and size. A change that leaves all three alone is not seen: so
// write a new file and rename it over the old one. A pair that can't be loaded is
// logged once, and the old one stays in use; the next change is tried again. It
// does not matter in which order the two files are replaced.
type Reloader struct {
	certFile, keyFile string
	log               *slog.Logger
	current           atomic.Pointer[tls.Certificate]

	mu     sync.Mutex // one goroutine looks; the others go on
	looked time.Time
	seen   stamp // of the pair that was last tried
}

// Reload loads the pair of PEM files, the certificate with its chain and its key.
// It is an error if that fails now; later failures go to log, or to
// [slog.Default] if that is nil.
func Reload(certFile, keyFile string, log *slog.Logger) (*Reloader, error) {
	r := &Reloader{certFile: certFile, keyFile: keyFile, log: cmp.Or(log, slog.Default()), looked: time.Now()}
	seen, err := r.stamp()
	if err == nil {
		err = r.load()
	}
	if err != nil {
		return nil, fmt.Errorf("load the certificate %s with the key %s: %w", certFile, keyFile, err)
	}
	r.seen = seen
	return r, nil
}

// GetCertificate is the pair in use. It never fails.
func (r *Reloader) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if r.mu.TryLock() {
		if now := time.Now(); now.Sub(r.looked) >= lookEvery {
			r.looked = now
			r.look()
		}
		r.mu.Unlock()
	}
	return r.current.Load(), nil
}

// look loads the pair if the files have changed. They are stamped first: what
// changes while they are read is found at the next look.
func (r *Reloader) look() {
	now, err := r.stamp()
	if now.same(r.seen) {
		return
	}
	r.seen = now
	if err == nil {
		err = r.load()
	}
	if err != nil {
		r.log.Error("the certificate can't be reloaded, the old one stays in use", "cert", r.certFile, "key", r.keyFile, "err", err)
		return
	}
	r.log.Info("certificate reloaded", "cert", r.certFile, "expires", expiry(r.current.Load()))
}

// Again loads the pair now, whether it has changed or not, and says when the
// certificate ends. After an error the old one stays in use.
func (r *Reloader) Again() (expires time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked = time.Now()
	if r.seen, err = r.stamp(); err == nil {
		err = r.load()
	}
	return expiry(r.current.Load()), err
}

// expiry is when the certificate ends.
func expiry(c *tls.Certificate) time.Time {
	if c.Leaf == nil { // GODEBUG=x509keypairleaf=0
		return time.Time{}
	}
	return c.Leaf.NotAfter
}

// load puts the pair in use.
func (r *Reloader) load() error {
	pair, err := tls.LoadX509KeyPair(r.certFile, r.keyFile)
	if err != nil {
		return err
	}
	r.current.Store(&pair)
	return nil
}

// A stamp tells two states of the pair apart. A file that can't be looked at is
// nil in it.
type stamp [2]os.FileInfo

// stamp looks at the files.
func (r *Reloader) stamp() (s stamp, first error) {
	for i, file := range []string{r.certFile, r.keyFile} {
		info, err := os.Stat(file)
		if err != nil {
			first = cmp.Or(first, err)
			continue
		}
		s[i] = info
	}
	return s, first
}

func (s stamp) same(old stamp) bool {
	for i, a := range s {
		b := old[i]
		if a == nil || b == nil {
			if a != b {
				return false
			}
			continue
		}
		if !os.SameFile(a, b) || !a.ModTime().Equal(b.ModTime()) || a.Size() != b.Size() {
			return false
		}
	}
	return true
}

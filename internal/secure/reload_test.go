package secure

import (
	"bytes"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

type pairDir struct {
	t         *testing.T
	cert, key string
	log       bytes.Buffer
}

func newPairDir(t *testing.T) *pairDir {
	dir := t.TempDir()
	return &pairDir{t: t, cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
}

func (d *pairDir) writePair(name string) {
	d.t.Helper()
	cert, key := testkit.WriteCertificate(d.t, func(c *x509.Certificate) { c.Subject.CommonName = name })
	testkit.RequireNoError(d.t, os.Rename(cert, d.cert))
	testkit.RequireNoError(d.t, os.Rename(key, d.key))
}

func (d *pairDir) newReloader() *Reloader {
	d.t.Helper()
	r, err := NewReloader(d.cert, d.key, slog.New(slog.NewTextHandler(&d.log, nil)))
	testkit.RequireNoError(d.t, err)
	return r
}

func (d *pairDir) checkCert(r *Reloader, name string, errorLines, infos int) {
	d.t.Helper()
	c, err := r.GetCertificate(nil)
	testkit.RequireNoError(d.t, err)
	if got := c.Leaf.Subject.CommonName; got != name {
		d.t.Errorf("the certificate is for %s, want %s", got, name)
	}
	log := d.log.String()
	if e, i := strings.Count(log, "level=ERROR"), strings.Count(log, "level=INFO"); e != errorLines || i != infos {
		d.t.Errorf("%d errors and %d other lines were logged, want %d and %d:\n%s", e, i, errorLines, infos, log)
	}
}

// TestReload checks that the files are read once a second and by ReloadNow, and that an invalid pair does
// not replace the current one.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newPairDir(t)
		d.writePair("one")
		r := d.newReloader()
		d.checkCert(r, "one", 0, 0)

		wait := func(name string, errorLines, infos int) {
			t.Helper()
			time.Sleep(checkInterval)
			d.checkCert(r, name, errorLines, infos)
		}
		d.writePair("two")
		d.checkCert(r, "one", 0, 0) // less than a second later
		wait("two", 0, 1)

		breakKey := func() { testkit.RequireNoError(t, os.WriteFile(d.key, []byte("broken"), 0o600)) }
		breakKey()
		wait("two", 1, 1)
		wait("two", 1, 1) // logged once for each change

		cert, key := testkit.WriteCertificate(t, func(c *x509.Certificate) { c.Subject.CommonName = "three" })
		testkit.RequireNoError(t, os.Rename(cert, d.cert)) // the key does not match yet
		wait("two", 2, 1)
		testkit.RequireNoError(t, os.Rename(key, d.key))
		wait("three", 2, 2)

		testkit.RequireNoError(t, os.Rename(d.cert, cert))
		for range 3 {
			wait("three", 3, 2)
		}
		testkit.RequireNoError(t, os.Rename(cert, d.cert))
		wait("three", 3, 3)

		d.writePair("four")
		expires, err := r.ReloadNow()
		if c, _ := r.GetCertificate(nil); err != nil || !expires.Equal(c.Leaf.NotAfter) {
			t.Errorf("Again: %v, %v; want when the certificate ends", expires, err)
		}
		d.checkCert(r, "four", 3, 3)
		breakKey()
		if _, err := r.ReloadNow(); err == nil {
			t.Error("Again: no error of a broken key")
		}
		d.checkCert(r, "four", 3, 3)
	})
}

func TestReloadErrors(t *testing.T) {
	d := newPairDir(t)
	_, err := NewReloader(d.cert, d.key, nil)
	if err == nil || !strings.Contains(err.Error(), d.cert) || !strings.Contains(err.Error(), d.key) {
		t.Errorf("%v: want an error that names both files", err)
	}
}

// TestReloadConcurrent asks from many goroutines while the pair changes.
func TestReloadConcurrent(t *testing.T) {
	d := newPairDir(t)
	d.writePair("site.test")
	r := d.newReloader()
	r.lastCheck = time.Time{} // the next check is due
	d.writePair("site.test")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				if c, err := r.GetCertificate(nil); c == nil || err != nil {
					t.Errorf("%v, %v", c, err)
				}
			}
		})
	}
	all.Wait()
	d.checkCert(r, "site.test", 0, 1)
}

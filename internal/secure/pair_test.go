package secure

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	mrand "math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

func TestMain(m *testing.M) {
	site() // before any test makes it in a bubble, where the year is another
	testkit.Main(m)
}

// An authority signs the certificates of the tests.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

var root = sync.OnceValue(func() *authority {
	a := &authority{key: newKey(), pool: x509.NewCertPool()}
	t := template("authority")
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, &a.key.PublicKey, a.key)
	if err != nil {
		panic(err)
	}
	a.cert, _ = x509.ParseCertificate(der)
	a.pool.AddCert(a.cert)
	return a
})

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
}

func template(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<60))
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(1000 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// issue makes a certificate for the name, as PEM and ready for use.
func issue(name string) (cert tls.Certificate, certPEM, keyPEM []byte) {
	a, key := root(), newKey()
	der, err := x509.CreateCertificate(rand.Reader, template(name), a.cert, &key.PublicKey, a.key)
	if err != nil {
		panic(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err)
	}
	certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
	if cert, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		panic(err)
	}
	return cert, certPEM, keyPEM
}

var site = sync.OnceValue(func() tls.Certificate { c, _, _ := issue("site.test"); return c })

// configs are those of a server and a client that speak one version.
func configs(version uint16) (server, client *tls.Config) {
	server = &tls.Config{Certificates: []tls.Certificate{site()}, MinVersion: version, MaxVersion: version}
	client = &tls.Config{RootCAs: root().pool, ServerName: "site.test", MinVersion: version, MaxVersion: version}
	return server, client
}

var versions = map[string]uint16{"TLS12": tls.VersionTLS12, "TLS13": tls.VersionTLS13}

// A side is a Session with its owner.
type side struct {
	t      testing.TB
	s      *Session
	out    []byte
	held   []byte // arrived while the handshake was full
	got    []byte // plaintext
	open   bool
	err    error // of Step, Feed or Read
	buf    []byte
	onText func() // after plaintext has come
	onWake func()
}

func (d *side) Emit(p []byte) { d.out = append(d.out, p...) }
func (d *side) Wake() {
	if d.onWake != nil {
		d.onWake()
	}
}

func serverSide(t testing.TB, cfg *tls.Config, g *Gate) *side {
	d := &side{t: t, buf: make([]byte, 32<<10)}
	d.s = Server(cfg, g, d, nil)
	return d
}

func clientSide(t testing.TB, cfg *tls.Config, g *Gate) *side {
	d := &side{t: t, buf: make([]byte, 32<<10)}
	d.s = Client(cfg, g, d, nil)
	return d
}

func (d *side) give(p []byte) {
	switch {
	case d.err != nil:
	case d.open:
		d.read(p)
	case len(d.held) > 0 || d.s.Full():
		d.held = append(d.held, p...)
	default:
		if err := d.s.Feed(p); err != nil {
			d.err = err
		}
	}
}

func (d *side) poll() {
	if d.open || d.err != nil {
		return
	}
	open, err := d.s.Step()
	if err != nil {
		d.err = err
		return
	}
	if held := d.held; open || len(held) > 0 && !d.s.Full() {
		d.open, d.held = open, nil
		if open {
			d.read(nil)
		}
		if len(held) > 0 {
			d.give(held)
		}
	}
}

func (d *side) read(in []byte) {
	for {
		n, used, err := d.s.Read(d.buf, in)
		in = in[used:]
		d.got = append(d.got, d.buf[:n]...)
		if n > 0 && d.onText != nil {
			d.onText()
		}
		if err == nil {
			if n == 0 {
				d.t.Error("Read: neither bytes nor an error")
				return
			}
			continue
		}
		if len(in) > 0 {
			d.t.Errorf("Read: %v, with %d bytes of input unused", err, len(in))
		}
		if err != ErrAgain {
			d.err = err
		}
		return
	}
}

func (d *side) end() {
	d.s.Ended()
	if d.open && d.err == nil {
		d.read(nil)
	}
	d.poll()
}

func (d *side) collect() []byte { out := d.out; d.out = nil; return out }
func (d *side) write(p []byte) {
	d.t.Helper()
	if err := d.s.Write(p); err != nil {
		d.t.Errorf("Write: %v", err)
	}
}

// A pump moves bytes between two ends, in pieces.
type pump struct {
	t     testing.TB
	a, b  *side
	piece func() int
}

// upTo is pieces of 1 to n bytes.
func upTo(seed uint64, n int) func() int {
	r := mrand.New(mrand.NewPCG(seed, 1))
	return func() int { return 1 + r.IntN(n) }
}

// always is pieces of n bytes.
func always(n int) func() int { return func() int { return n } }

// until pumps until the condition holds.
func (p *pump) until(what string, done func() bool) {
	p.t.Helper()
	testkit.WaitFor(p.t, what, func() bool {
		for p.turn() {
		}
		return done()
	})
}

// turn moves what there is, once, and says whether there was something.
func (p *pump) turn() (moved bool) {
	for _, ends := range [2][2]*side{{p.a, p.b}, {p.b, p.a}} {
		from, to := ends[0], ends[1]
		from.poll()
		for out := from.collect(); len(out) > 0; {
			n := min(p.piece(), len(out))
			piece := bytes.Clone(out[:n])
			to.give(piece)
			clear(piece) // it was valid during the call
			out = out[n:]
			moved = true
		}
	}
	return moved
}

// random is n bytes, the same for the same seed.
func random(seed uint64, n int) []byte {
	r := mrand.New(mrand.NewPCG(seed, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// opened is two sessions of which both are open.
func opened(t testing.TB, serverCfg, clientCfg *tls.Config) (server, client *side, p *pump) {
	t.Helper()
	server = serverSide(t, serverCfg, NewGate(4, 2))
	client = clientSide(t, clientCfg, NewGate(4, 2))
	p = &pump{t: t, a: server, b: client, piece: always(64 << 10)}
	p.until("both are open", func() bool {
		if server.err != nil || client.err != nil {
			t.Fatalf("handshake: server %v, client %v", server.err, client.err)
		}
		return server.open && client.open
	})
	return server, client, p
}

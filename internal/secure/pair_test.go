package secure

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	mrand "math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// siteCert returns a self-signed certificate for site.test. It is also valid in the year in which bubbles begin.
var siteCert = sync.OnceValue(func() tls.Certificate {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"site.test"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(time.Hour),
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	der, err2 := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	leaf, err3 := x509.ParseCertificate(der)
	if err := errors.Join(err, err2, err3); err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
})

// siteRoots trusts siteCert.
func siteRoots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(siteCert().Leaf)
	return roots
}

func newConfigs(version uint16) (server, client *tls.Config) {
	server = &tls.Config{Certificates: []tls.Certificate{siteCert()}, MinVersion: version, MaxVersion: version}
	client = &tls.Config{RootCAs: siteRoots(), ServerName: "site.test", MinVersion: version, MaxVersion: version}
	return server, client
}

var versions = map[string]uint16{"TLS12": tls.VersionTLS12, "TLS13": tls.VersionTLS13}

type testPeer struct {
	t       testing.TB
	session *Session
	out     []byte
	pending []byte // received while the handshake's input was full
	got     []byte // plaintext
	open    bool
	err     error // of AdvanceHandshake, FeedHandshake or Read
	buf     []byte
	onText  func() // called after plaintext has arrived
	onWake  func()
}

func (d *testPeer) Emit(p []byte) { d.out = append(d.out, p...) }
func (d *testPeer) Wake() {
	if d.onWake != nil {
		d.onWake()
	}
}

func newServerPeer(t testing.TB, cfg *tls.Config, g *HandshakeLimiter) *testPeer {
	d := &testPeer{t: t, buf: make([]byte, 32<<10)}
	d.session = NewServerSession(cfg, g, d, nil)
	return d
}

// newPeers returns the two ends of a connection, each with a handshake limiter of its own, and what connects them.
func newPeers(t testing.TB, serverCfg, clientCfg *tls.Config) (server, client *testPeer, p *pump) {
	server = newServerPeer(t, serverCfg, NewHandshakeLimiter(4, 2))
	client = newClientPeer(t, clientCfg, NewHandshakeLimiter(4, 2))
	return server, client, &pump{t: t, a: server, b: client, piece: fixedPieceSize(64 << 10)}
}

func newClientPeer(t testing.TB, cfg *tls.Config, g *HandshakeLimiter) *testPeer {
	d := &testPeer{t: t, buf: make([]byte, 32<<10)}
	d.session = NewClientSession(cfg, g, d, nil, false)
	return d
}

func (d *testPeer) receiveCiphertext(p []byte) {
	switch {
	case d.err != nil:
	case d.open:
		d.readAllPlaintext(p)
	case len(d.pending) > 0 || d.session.IsInputFull():
		d.pending = append(d.pending, p...)
	default:
		if err := d.session.FeedHandshake(p); err != nil {
			d.err = err
		}
	}
}

func (d *testPeer) advanceHandshake() {
	if d.open || d.err != nil {
		return
	}
	open, err := d.session.AdvanceHandshake()
	if err != nil {
		d.err = err
		return
	}
	if held := d.pending; open || len(held) > 0 && !d.session.IsInputFull() {
		d.open, d.pending = open, nil
		if open {
			d.readAllPlaintext(nil)
		}
		if len(held) > 0 {
			d.receiveCiphertext(held)
		}
	}
}

func (d *testPeer) readAllPlaintext(in []byte) {
	for {
		n, used, err := d.session.Read(d.buf, in)
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

func (d *testPeer) endInput() {
	d.session.MarkInputEnded()
	if d.open && d.err == nil {
		d.readAllPlaintext(nil)
	}
	d.advanceHandshake()
}

func (d *testPeer) waitForOutput() {
	d.t.Helper()
	testkit.WaitFor(d.t, "output", func() bool { d.advanceHandshake(); return len(d.out) > 0 })
}

func (d *testPeer) takeOutput() []byte { out := d.out; d.out = nil; return out }
func (d *testPeer) writePlaintext(p []byte) {
	d.t.Helper()
	if err := d.session.Write(p); err != nil {
		d.t.Errorf("Write: %v", err)
	}
}

type pump struct {
	t     testing.TB
	a, b  *testPeer
	piece func() int
}

func randomPieceSizes(seed uint64, n int) func() int {
	r := mrand.New(mrand.NewPCG(seed, 1))
	return func() int { return 1 + r.IntN(n) }
}

func fixedPieceSize(n int) func() int { return func() int { return n } }

func (p *pump) pumpUntil(what string, done func() bool) {
	p.t.Helper()
	testkit.WaitFor(p.t, what, func() bool {
		for p.moveOnce() {
		}
		return done()
	})
}

func (p *pump) moveOnce() (moved bool) {
	for _, ends := range [2][2]*testPeer{{p.a, p.b}, {p.b, p.a}} {
		from, to := ends[0], ends[1]
		from.advanceHandshake()
		for out := from.takeOutput(); len(out) > 0; {
			n := min(p.piece(), len(out))
			piece := bytes.Clone(out[:n])
			to.receiveCiphertext(piece)
			clear(piece) // it is valid only during the call
			out = out[n:]
			moved = true
		}
	}
	return moved
}

func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	mrand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
	return b
}

func newOpenPair(t testing.TB, serverCfg, clientCfg *tls.Config) (server, client *testPeer, p *pump) {
	t.Helper()
	server, client, p = newPeers(t, serverCfg, clientCfg)
	p.pumpUntil("both are open", func() bool {
		if server.err != nil || client.err != nil {
			t.Fatalf("handshake: server %v, client %v", server.err, client.err)
		}
		return server.open && client.open
	})
	return server, client, p
}

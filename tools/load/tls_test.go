package load

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/testkit"
)

// identity is a certificate for 127.0.0.1 and "there", and what trusts it.
var identity = sync.OnceValues(func() (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"there"}, IPAddresses: []net.IP{{127, 0, 0, 1}},
	}
	der, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, trusted
})

func serverTLS() *tls.Config {
	own, _ := identity()
	return &tls.Config{Certificates: []tls.Certificate{own}}
}

func clientTLS() *TLS {
	_, trusted := identity()
	return &TLS{Config: &tls.Config{RootCAs: trusted}}
}

// encrypted has a function serve over crypto/tls.
func encrypted(cfg *tls.Config, handle func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) { handle(tls.Server(c, cfg)) }
}

// TestTLS exchanges messages of all sizes with crypto/tls, under every model and
// both versions.
func TestTLS(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		version uint16
		cfg     Config
	}{
		"small":      {tls.VersionTLS13, Config{Size: 2, Pipeline: 300, Messages: 900}},
		"default":    {tls.VersionTLS13, Config{Messages: 5, HoldBefore: time.Millisecond}},
		"large":      {tls.VersionTLS13, Config{Size: 300_001, Pipeline: 3, Messages: 6, Connections: 2}},
		"TLS 1.2":    {tls.VersionTLS12, Config{Size: 100, Pipeline: 100, Messages: 1000}},
		"gracefully": {tls.VersionTLS13, Config{Messages: 5, Graceful: true}},
		"loops":      {tls.VersionTLS13, Config{Messages: 3, Loops: 3, Connections: 100}},
		"duration":   {tls.VersionTLS13, Config{Duration: 200 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachModel(t, func(t *testing.T, model string) {
				server := serverTLS()
				server.MaxVersion = test.version
				cfg := test.cfg
				cfg.Target, cfg.Model, cfg.TLS = serve(t, encrypted(server, echo)).addr(), model, clientTLS()
				setDefault(&cfg.Connections, 20)
				var r *Result
				for times := range slower(t) {
					cfg.Duration = times * test.cfg.Duration
					if r = check(t, cfg); r.Answered > 0 || r.Err() != nil {
						break
					}
				}
				if err := r.Err(); err != nil || r.Connected != cfg.Connections || len(r.ConnectErrors) > 0 || r.Unanswered > 0 {
					t.Fatalf("%v: got %+v", err, r)
				}
				if want := int64(cfg.Connections) * cfg.Messages; cfg.Messages > 0 && r.Answered != want || r.Answered == 0 {
					t.Errorf("answered %d, want %d", r.Answered, want)
				}
				if want := tls.VersionName(test.version) + ", "; !strings.HasPrefix(r.TLS, want) {
					t.Errorf("agreed on %q, want %q", r.TLS, want)
				}
			})
		})
	}
}

// TestTLSWrongByte sees through the encryption.
func TestTLSWrongByte(t *testing.T) {
	s := serve(t, encrypted(serverTLS(), func(c net.Conn) {
		message := make([]byte, 64)
		_, _ = io.ReadFull(c, message)
		message[40] = 0xff
		_, _ = c.Write(message)
		silent(c)
	}))
	r := check(t, Config{Target: s.addr(), TLS: clientTLS(), Connections: 3, Messages: 1})
	if r.Mismatched != 3 || r.FirstMismatch.Byte != 40 {
		t.Errorf("got %+v", r)
	}
}

// TestTLSLost tells an end with a goodbye from one without.
func TestTLSLost(t *testing.T) {
	t.Parallel()
	for want, end := range map[string]func(c net.Conn){
		"closed by the server":  func(c net.Conn) { c.Close() },
		"cut off by the server": func(c net.Conn) { c.(*tls.Conn).NetConn().Close() },
	} {
		eachModel(t, func(t *testing.T, model string) {
			s := serve(t, encrypted(serverTLS(), func(c net.Conn) {
				_, _ = io.ReadFull(c, make([]byte, 64))
				end(c)
			}))
			r := check(t, Config{Target: s.addr(), TLS: clientTLS(), Model: model, Connections: 3, Messages: 1})
			if len(r.Lost) != 1 || r.Lost[want] != 3 {
				t.Errorf("got %v, want %q three times", r.Lost, want)
			}
		})
	}
}

// alerted is a server whose version of TLS is too old, and that waits for its
// client's end.
func alerted(c net.Conn) {
	old := serverTLS()
	old.MinVersion, old.MaxVersion = tls.VersionTLS11, tls.VersionTLS11
	_ = tls.Server(c, old).Handshake()
	silent(c)
}

// TestTLSRefused has handshakes fail in every way, and counts each as a failed
// attempt to connect, with its cause.
func TestTLSRefused(t *testing.T) {
	t.Parallel()
	wrongName := clientTLS()
	wrongName.ServerName = "elsewhere"
	const least = 50 * time.Millisecond // for a handshake that nobody answers
	for name, test := range map[string]struct {
		handle func(net.Conn)
		tls    *TLS
		within time.Duration
		want   string
	}{
		"unknown authority": {encrypted(serverTLS(), echo), &TLS{}, 0, "certificate"},
		"another's name":    {encrypted(serverTLS(), echo), wrongName, 0, "elsewhere"},
		"not TLS":           {func(c net.Conn) { _, _ = io.WriteString(c, "hello, I am a line\n"); silent(c) }, clientTLS(), 0, "first record does not look like a TLS handshake"},
		"an end":            {func(net.Conn) {}, clientTLS(), 0, ""},
		"an alert":          {alerted, clientTLS(), 0, "version"},
		"a reset":           {func(c net.Conn) { _, _ = c.Read(make([]byte, 1)); _ = c.(*net.TCPConn).SetLinger(0) }, clientTLS(), 0, "broke"},
		"silence":           {silent, clientTLS(), least, "not "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachModel(t, func(t *testing.T, model string) {
				cfg := Config{Target: serve(t, test.handle).addr(), Model: model, Connections: 30, TLS: test.tls, ConnectTimeout: test.within}
				r := check(t, cfg)
				if r.Connected != 0 || r.Err() == nil {
					t.Fatalf("got %+v", r)
				}
				var all int64
				for cause, n := range r.ConnectErrors {
					all += n
					if test.within > 0 {
						// The connect phase may end first.
						cause = strings.Replace(cause, "not established", "TLS handshake: not ", 1)
					}
					if !strings.HasPrefix(cause, "TLS handshake: ") || !strings.Contains(cause, test.want) {
						t.Errorf("cause %q, want %q in it", cause, test.want)
					}
				}
				if all != 30 || len(r.ConnectErrors) > 2 {
					t.Errorf("causes %v, want 30", r.ConnectErrors)
				}
			})
		})
	}
}

// TestTLSSome goes on with the connections whose handshakes succeed; the others
// are failed attempts, not lost connections.
func TestTLSSome(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		var n atomic.Int64
		own := serverTLS()
		s := serve(t, func(c net.Conn) {
			if n.Add(1)%3 == 0 {
				_, _ = c.Read(make([]byte, 16<<10))
				return
			}
			echo(tls.Server(c, own))
		})
		r := check(t, Config{Target: s.addr(), Model: model, Connections: 30, Messages: 2, TLS: clientTLS()})
		if r.Err() != nil || r.Connected != 20 || r.Answered != 40 || len(r.Lost) != 0 {
			t.Fatalf("got %+v", r)
		}
		if n := r.ConnectErrors["TLS handshake: closed by the server"]; n != 10 {
			t.Errorf("causes %v", r.ConnectErrors)
		}
	})
}

// TestTLSResumption resumes no session unless asked to.
func TestTLSResumption(t *testing.T) {
	t.Parallel()
	for _, cached := range []bool{false, true} {
		var resumed atomic.Int64
		server := serverTLS()
		s := serve(t, func(c net.Conn) {
			secured := tls.Server(c, server)
			if secured.Handshake() == nil && secured.ConnectionState().DidResume {
				resumed.Add(1)
			}
			echo(secured)
		})
		client := clientTLS()
		if cached {
			client.Config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		}
		for range 2 { // the second has what the first was given
			check(t, Config{Target: s.addr(), Connections: 5, Messages: 1, TLS: client})
		}
		if (resumed.Load() > 0) != cached {
			t.Errorf("with a cache %v: %d sessions were resumed", cached, resumed.Load())
		}
	}
}

// TestTLSBounds has more connections under way than the gate has places, with a
// server that never answers: no more than that are in a handshake, and when the run
// has ended none is.
func TestTLSBounds(t *testing.T) {
	t.Parallel()
	const more = 100
	testkit.ReserveDescriptors(t, 2*(halfOpen+more)+50)
	silence := target{addr: netip.MustParseAddrPort(serve(t, silent).addr())}
	cfg := Config{TLS: clientTLS(), Connections: halfOpen + more, ConnectRate: 1 << 20, ConnectTimeout: time.Hour}
	cfg = cfg.filled()
	model, err := models.Find(cfg.Model)
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRun(cfg, []target{silence})
	if err != nil {
		t.Fatal(err)
	}
	started, err := model.Start(r.engineConfig())
	if err != nil {
		t.Fatal(err)
	}
	r.use(started, model.Name)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := r.run(ctx, r.phases); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}()
	gate := r.tls.layers.Gate
	testkit.WaitFor(t, "as many handshakes are under way as may be, and others wait", func() bool {
		running, waiting := gate.Count()
		if running > halfOpen {
			t.Errorf("%d handshakes under way; want at most %d", running, halfOpen)
		}
		return running >= halfOpen && waiting == more
	})
	cancel()
	<-ended
	if running, waiting := gate.Count(); running+waiting != 0 {
		t.Errorf("at the end %d handshakes were under way, %d waiting", running, waiting)
	}
	if plain := fakeRun(Config{}, &fakeEngine{}).engineConfig(); plain.NewLayer != nil || plain.Limits.HandshakeTimeout != 0 {
		t.Error("without TLS there is a layer")
	}
}

// TestTLSHTTP has HTTP over TLS, and a certificate that nobody trusts.
func TestTLSHTTP(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	s.TLS = serverTLS()
	s.StartTLS()
	defer s.Close()
	cfg := Config{Target: s.Listener.Addr().String(), TLS: clientTLS(), Match: matchHTTP, Connections: 4, Messages: 3}
	if r := check(t, cfg); r.Err() != nil || r.Answered != 12 {
		t.Errorf("%v, got %+v", r.Err(), r)
	}
	cfg.TLS = &TLS{}
	if r := check(t, cfg); r.Err() == nil || !strings.Contains(r.Err().Error(), "certificate") {
		t.Errorf("without trust: got %v", r.Err())
	}
}

// TestServerName is the host of the target unless something else was asked for.
func TestServerName(t *testing.T) {
	for _, test := range []struct {
		target, want string
		cfg          TLS
	}{
		{"there:1", "there", TLS{}},
		{"[::1]:1", "::1", TLS{}},
		{":1", "localhost", TLS{}},
		{"there:1", "here", TLS{ServerName: "here"}},
		{"there:1", "here", TLS{Config: &tls.Config{ServerName: "here"}}},
		{"there:1", "", TLS{Insecure: true}},
	} {
		if got, err := (Config{Target: test.target, TLS: &test.cfg}).clientTLS(); err != nil || got.ServerName != test.want {
			t.Errorf("%s: got %q, %v; want %q", test.target, got.ServerName, err, test.want)
		}
	}
	if got, err := (Config{}).clientTLS(); got != nil || err != nil {
		t.Error("a configuration without TLS has some")
	}
}

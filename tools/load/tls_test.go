package load

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/testkit"
)

// identity returns the certificate of httptest, which is for 127.0.0.1, and a pool that trusts it.
var identity = sync.OnceValues(func() (tls.Certificate, *x509.CertPool) {
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(s.Certificate())
	return s.TLS.Certificates[0], trusted
})

func newServerTLS() *tls.Config {
	own, _ := identity()
	return &tls.Config{Certificates: []tls.Certificate{own}}
}

func newClientTLS() *TLS {
	_, trusted := identity()
	return &TLS{Config: &tls.Config{RootCAs: trusted}}
}

func withTLS(cfg *tls.Config, handle handler) handler {
	return func(c net.Conn, n int) {
		secured := tls.Server(c, cfg)
		defer secured.Close()
		handle(secured, n)
	}
}

// TestTLSResumption checks that sessions are resumed only if requested.
func TestTLSResumption(t *testing.T) {
	t.Parallel()
	for _, cached := range []bool{false, true} {
		var resumed atomic.Int64
		server := newServerTLS()
		s := startTestServer(t, func(c net.Conn, n int) {
			secured := tls.Server(c, server)
			if secured.Handshake() == nil && secured.ConnectionState().DidResume {
				resumed.Add(1)
			}
			echo(secured, n)
		})
		client := newClientTLS()
		if cached {
			client.Config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		}
		for range 2 { // the second has what the first was given
			runToEnd(t, Config{Target: s.addr(), Connections: 5, Messages: 1, TLS: client})
		}
		if (resumed.Load() > 0) != cached {
			t.Errorf("with a cache %v: %d sessions were resumed", cached, resumed.Load())
		}
	}
}

// TestTLSBounds opens more connections than may be in a handshake, with a server that never
// answers: the limit holds, and no handshake is left when the run has ended.
func TestTLSBounds(t *testing.T) {
	t.Parallel()
	const more = 100
	testkit.AcquireDescriptorsOrSkip(t, 2*(maxHalfOpen+more)+50)
	silence := resolvedTarget{addr: netip.MustParseAddrPort(startTestServer(t, discardInput).addr())}
	cfg := Config{TLS: newClientTLS(), Connections: maxHalfOpen + more, ConnectRate: 1 << 20, ConnectTimeout: time.Hour}
	cfg = cfg.withDefaultsAndImplied()
	model := testkit.Must(models.FindAvailable(cfg.Model))(t)
	r := testkit.Must(newRunWithoutEngine(cfg, []resolvedTarget{silence}))(t)
	started := testkit.Must(model.Start(r.engineConfig()))(t)
	r.attachEngine(started, model.Name)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := r.runPhasesStopAndBuildResult(ctx, r.runAllPhases); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}()
	gate := r.tls.layers.Gate
	testkit.WaitFor(t, "as many handshakes are under way as may be, and others wait", func() bool {
		running, waiting := gate.Counts()
		if running > maxHalfOpen {
			t.Errorf("%d handshakes under way; want at most %d", running, maxHalfOpen)
		}
		return running >= maxHalfOpen && waiting == more
	})
	cancel()
	<-ended
	if running, waiting := gate.Counts(); running+waiting != 0 {
		t.Errorf("at the end %d handshakes were under way, %d waiting", running, waiting)
	}
	if plain := newFakeRun(Config{}, &fakeEngine{}).engineConfig(); plain.NewLayer != nil || plain.Limits.HandshakeTimeout != 0 {
		t.Error("without TLS there is a layer")
	}
}

// TestServerName checks that the server name is the target's host unless another one is set.
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
		if got, err := (Config{Target: test.target, TLS: &test.cfg}).clientTLSConfig(); err != nil || got.ServerName != test.want {
			t.Errorf("%s: got %q, %v; want %q", test.target, got.ServerName, err, test.want)
		}
	}
	if got, err := (Config{}).clientTLSConfig(); got != nil || err != nil {
		t.Error("a configuration without TLS has some")
	}
}

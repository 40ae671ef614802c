package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// expectBadConfig checks that a server fails to start with ErrBadConfig and an error that
// contains the words.
func expectBadConfig(t *testing.T, s *Server, words ...string) {
	t.Helper()
	s.Addr = "127.0.0.1:0"
	if s.Handler == nil {
		s.Handler = Base{}
	}
	err := s.ListenAndServe(context.Background())
	if !errors.Is(err, ErrBadConfig) {
		t.Fatalf("%v, want an error that wraps ErrBadConfig", err)
	}
	for _, word := range append(words, "expected") {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error %q does not say %q", err, word)
		}
	}
}

// A negative value of any limit is an error that names it.
func TestNegativeLimits(t *testing.T) {
	fields := reflect.TypeFor[Limits]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		t.Run(name, func(t *testing.T) {
			s := &Server{}
			f := reflect.ValueOf(&s.Limits).Elem().Field(i)
			f.SetInt(-7)
			value := "-7"
			if f.Type() == reflect.TypeFor[time.Duration]() {
				value = "-7ns"
			}
			expectBadConfig(t, s, "Limits."+name, value, "default")
			s.Processes = 2
			expectBadConfig(t, s, "Limits."+name)
		})
	}
}

func TestLimitsThatAreTooMuch(t *testing.T) {
	for _, c := range []struct {
		limits Limits
		words  []string
	}{
		{Limits{SourcePrefix: 129}, []string{"Limits.SourcePrefix", "129", "128"}},
		{Limits{MaxMessage: 1<<30 + 1}, []string{"Limits.MaxMessage", "1073741825", "1073741824"}},
		{Limits{AcceptRate: 1_000_000_001}, []string{"Limits.AcceptRate"}},
		{Limits{MaxUnsent: 100, HighWater: 101}, []string{"Limits.HighWater", "101", "MaxUnsent", "100"}},
		{Limits{HighWater: 100, LowWater: 101}, []string{"Limits.LowWater", "101", "HighWater", "100"}},
		{Limits{MaxUnsent: 100, LowWater: 101}, []string{"101", "100"}},
	} {
		expectBadConfig(t, &Server{Limits: c.limits}, c.words...)
	}
}

func TestWaterMarks(t *testing.T) {
	for _, c := range []struct{ set, want Limits }{
		{Limits{}, Limits{HighWater: 1 << 16, LowWater: 1 << 15}},
		{Limits{MaxUnsent: 1000}, Limits{HighWater: 500, LowWater: 250}},
		{Limits{MaxUnsent: 1000, HighWater: 1000}, Limits{HighWater: 1000, LowWater: 500}},
		{Limits{MaxUnsent: 1000, HighWater: 100}, Limits{HighWater: 100, LowWater: 50}},
		{Limits{MaxUnsent: 1000, LowWater: 700}, Limits{HighWater: 700, LowWater: 700}},
		{Limits{MaxUnsent: 1}, Limits{}},
	} {
		got, err := c.set.withDefaults()
		if err != nil || got.HighWater != c.want.HighWater || got.LowWater != c.want.LowWater {
			t.Errorf("%+v: marks %d and %d, %v; want %d and %d", c.set, got.HighWater, got.LowWater, err, c.want.HighWater, c.want.LowWater)
		}
	}
}

// Never means no limit for the engine, except for times that need one.
func TestNever(t *testing.T) {
	set := Limits{
		HandshakeTimeout: Never, FirstByteTimeout: Never, MessageTimeout: Never, IdleTimeout: Never,
		WriteTimeout: Never, HandlerTime: Never, CloseTimeout: Never, Linger: Never, ShutdownTimeout: Never,
	}
	l, err := set.withDefaults()
	requireNoError(t, err)
	e := l.toEngine()
	if e.HandshakeTimeout+e.FirstByteTimeout+e.MessageTimeout+e.IdleTimeout+e.WriteTimeout+e.SlowHandlerTime != 0 {
		t.Errorf("Never is a limit: %+v", e)
	}
	if e.CloseTimeout != forever || e.Linger != forever {
		t.Errorf("an end takes %v and %v, want %v", e.CloseTimeout, e.Linger, forever)
	}
	if l, _ = (Limits{}).withDefaults(); l.toEngine().IdleTimeout != 0 || l.toEngine().MessageTimeout != 30*time.Second {
		t.Errorf("the defaults are %+v", l.toEngine())
	}
}

func TestHeartbeatConfig(t *testing.T) {
	ping, send := []byte("ping"), func(*Conn) {}
	for _, h := range []Heartbeat{
		{Message: ping}, {Send: send}, {MaxMissed: 1}, {Interval: -1, Message: ping}, {Interval: 99 * time.Millisecond, Message: ping},
		{Interval: time.Second}, {Interval: time.Second, Message: ping, Send: send}, {Interval: time.Second, Message: []byte{}},
		{Interval: time.Second, Message: ping, MaxMissed: -1}, {Interval: time.Second, Message: ping, MaxMissed: 256},
	} {
		expectBadConfig(t, &Server{Heartbeat: h}, "Heartbeat")
	}
	for _, h := range []Heartbeat{{}, {Interval: minHeartbeat, Message: ping, MaxMissed: 255}, {Interval: Never, Send: send}} {
		if err := h.validate(false); err != nil {
			t.Errorf("%+v: %v", h, err)
		}
	}
	if e := (Heartbeat{Interval: time.Second, Send: send}).toEngine(nil); e.MaxMissed != defaultMissed || e.Every != time.Second {
		t.Errorf("the engines get %+v", e)
	}
	if e := (Heartbeat{Interval: Never, Send: send}).toEngine(nil); e.Every != 0 {
		t.Errorf("an interval of Never is %v", e.Every)
	}
}

func TestEntryConfig(t *testing.T) {
	good := netip.MustParsePrefix("10.0.0.0/8")
	expectBadConfig(t, &Server{Allow: []netip.Prefix{good, {}}}, "Server.Allow[1]", "prefix")
	expectBadConfig(t, &Server{Deny: []netip.Prefix{{}}}, "Server.Deny[0]")
	expectBadConfig(t, &Server{TrustedProxies: []netip.Prefix{{}}}, "Server.TrustedProxies[0]")
	expectBadConfig(t, &Server{Deny: make([]netip.Prefix, maxPrefixes+1)}, "Server.Deny", "1048577", "1048576")
	expectBadConfig(t, &Server{SlowConsumer: 2}, "Server.SlowConsumer", "2")
	expectBadConfig(t, &Server{TLSConfig: &tls.Config{}}, "Server.TLSConfig", "certificate")
}

func TestTrustedProxies(t *testing.T) {
	var cfg engine.Config
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fe80::/10")}
	new(Server).configureTLSAndProxyLayers(&cfg, Limits{}, []Listener{{}, {TrustedProxies: trusted}})
	for text, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "11.0.0.1": false, "fe80::1%eth0": true, "::1": false,
	} {
		if got := cfg.IsProxy(1, netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	if !cfg.IsProxy(1, netip.Addr{}) {
		t.Error("a unix socket is not trusted")
	}
	if cfg.IsProxy(0, netip.MustParseAddr("10.1.2.3")) {
		t.Error("a proxy is trusted at another listener")
	}
}

func TestReloadCertificateWithoutFiles(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.pem")
	get, err := ReloadCertificate(missing, missing, nil)
	if err == nil || get != nil || !strings.Contains(err.Error(), "missing.pem") {
		t.Errorf("ReloadCertificate without files: %v", err)
	}
}

// FuzzLimits checks that any limits are either resolved consistently or rejected with an error
// that names the field.
func FuzzLimits(f *testing.F) {
	f.Add(0, 0, 0, 0, 0, int64(0), int64(0))
	f.Add(10, 1<<20, 5, 9, -1, int64(-1), int64(Never))
	f.Add(1, 16, 16, 0, 1, int64(time.Second), int64(1))
	f.Fuzz(func(t *testing.T, conns, unsent, high, low, buffered int, idle, write int64) {
		l, err := Limits{
			MaxConns: conns, MaxUnsent: unsent, HighWater: high, LowWater: low, MaxBuffered: buffered,
			IdleTimeout: time.Duration(idle), WriteTimeout: time.Duration(write),
		}.withDefaults()
		if err != nil {
			if !errors.Is(err, ErrBadConfig) || !strings.Contains(err.Error(), "Limits.") || !strings.Contains(err.Error(), "expected") {
				t.Errorf("the error %q; want ErrBadConfig that names the field and what was expected", err)
			}
			return
		}
		e := l.toEngine()
		if l.LowWater > l.HighWater || l.HighWater > l.MaxUnsent || l.MaxConns < 1 || l.MaxBuffered < 1 || e.IdleTimeout < 0 || e.WriteTimeout < 0 {
			t.Errorf("resolved to %+v, for the engines %+v", l, e)
		}
	})
}

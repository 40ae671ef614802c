package tcp

import (
	"context"
	"crypto/tls"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// expectBadConfig checks that a server does not start, and that ErrBadConfig contains the words. A server
// without Addr and Listeners gets an address, and one without Handler gets one.
func expectBadConfig(t *testing.T, s *Server, words ...string) {
	t.Helper()
	if s.Addr == "" && s.Listeners == nil {
		s.Addr = "127.0.0.1:0"
	}
	if s.Handler == nil {
		s.Handler = Base{}
	}
	s.Listening = func(net.Addr) { go s.Close() }
	expectError(t, "ListenAndServe", s.ListenAndServe(context.Background()), ErrBadConfig, append(words, "expected")...)
}

func TestBadConfig(t *testing.T) {
	const addr = "127.0.0.1:0"
	own, beats := Listener{Addr: addr, Handler: Base{}}, Lines(newNamedHandler("a"))
	ping, send := []byte("ping"), func(*Conn) {}
	prefix := netip.MustParsePrefix("10.0.0.0/8")
	limits := func(l Limits) *Server { return &Server{Limits: l} }
	handler := func(h Handler) *Server { return &Server{Handler: h} }
	heartbeat := func(h Heartbeat) *Server { return &Server{Heartbeat: h} }
	listeners := func(l ...Listener) *Server { return &Server{Listeners: l} }
	for _, c := range []struct {
		srv  *Server
		says []string
	}{
		{&Server{Listeners: []Listener{}}, []string{"Server.Addr is empty", "host:port"}},
		{&Server{Network: "udp"}, []string{`"udp"`, "tcp, tcp4, tcp6 or unix"}},
		{&Server{Model: "threads"}, []string{`"threads"`, "expected one of auto, goroutine"}},
		{&Server{Loops: -1}, []string{"Loops is -1", "1024"}},
		{&Server{Loops: 2000}, []string{"Loops is 2000"}},
		{&Server{Spin: time.Second}, []string{"Spin is 1s", "10ms"}},
		{&Server{WriteDelay: time.Minute}, []string{"WriteDelay is 1m0s", "1s"}},
		{&Server{SlowConsumer: 2}, []string{"Server.SlowConsumer", "2"}},
		{&Server{TLSConfig: &tls.Config{}}, []string{"Server.TLSConfig", "certificate"}},
		{&Server{Allow: []netip.Prefix{prefix, {}}}, []string{"Server.Allow[1]", "prefix"}},
		{&Server{Deny: []netip.Prefix{{}}}, []string{"Server.Deny[0]"}},
		{&Server{Overload: Overload{SourceWeights: map[netip.Prefix]int{prefix: -1}}}, []string{"Server.Overload.SourceWeights", "-1", "0 to 1000000"}},
		{&Server{Overload: Overload{SourceWeights: map[netip.Prefix]int{{}: 1}}}, []string{"Server.Overload.SourceWeights", "prefix"}},
		{&Server{Deny: make([]netip.Prefix, maxPrefixes+1)}, []string{"Server.Deny", "1048577", "1048576"}},
		{&Server{TrustedProxies: []netip.Prefix{{}}}, []string{"Server.TrustedProxies[0]"}},
		{&Server{Processes: -1}, []string{"Server.Processes is -1"}},
		{&Server{TickInterval: time.Second}, []string{"Server.TickInterval is 1s although OnTick is nil"}},
		{&Server{OnTick: func() {}, TickInterval: time.Microsecond}, []string{"Server.TickInterval is 1µs; expected at least 1ms"}},

		{handler(Lines(nil)), []string{"Server.Handler", "MessageHandler", "is nil"}},
		{handler(Lines(MessageFunc(nil))), []string{"MessageHandler", "is nil"}},
		{handler(Split(nil, MessageFunc(echoLine))), []string{"SplitFunc", "bufio.ScanWords"}},
		{handler((*Blocking)(nil)), []string{"nil *Blocking", "Serve"}},
		{handler(&Blocking{}), []string{"Serve is nil"}},
		{handler(&Blocking{Serve: serveOneLine, MaxCalls: -1}), []string{"MaxCalls is -1"}},
		{handler(new(NetListener)), []string{"NewNetListener"}},
		{handler(Lines(oddShedding{})), []string{"expected that of MessageShedHandler"}},
		{handler(&embedsShed{}), []string{"expected that of ShedHandler"}},

		{limits(Limits{SourcePrefix: 129}), []string{"Limits.SourcePrefix", "129", "128"}},
		{limits(Limits{MaxMessage: 1<<30 + 1}), []string{"Limits.MaxMessage", "1073741825", "1073741824"}},
		{limits(Limits{MaxUnsent: 100, HighWater: 101}), []string{"Limits.HighWater", "101", "MaxUnsent", "100"}},
		{limits(Limits{HighWater: 100, LowWater: 101}), []string{"Limits.LowWater", "101", "HighWater", "100"}},

		{heartbeat(Heartbeat{Message: ping}), []string{"Heartbeat"}},
		{heartbeat(Heartbeat{MaxMissed: 1}), []string{"Heartbeat"}},
		{heartbeat(Heartbeat{Interval: minHeartbeat - 1, Message: ping}), []string{"Heartbeat"}},
		{heartbeat(Heartbeat{Interval: time.Second}), []string{"Heartbeat"}},
		{heartbeat(Heartbeat{Interval: time.Second, Message: ping, Send: send}), []string{"Heartbeat"}},
		{heartbeat(Heartbeat{Interval: time.Second, Message: []byte{}}), []string{"Heartbeat"}},
		{heartbeat(Heartbeat{Interval: time.Second, Message: ping, MaxMissed: -1}), []string{"Heartbeat"}},
		{heartbeat(Heartbeat{Interval: time.Second, Message: ping, MaxMissed: 256}), []string{"Heartbeat"}},

		{listeners(Listener{}), []string{"Server.Listeners[0].Addr is empty"}},
		{listeners(Listener{Addr: addr, Listener: &net.TCPListener{}}), []string{`Listeners[0].Addr is "127.0.0.1:0" and Listener is set`}},
		{listeners(Listener{Addr: addr, Network: "udp"}), []string{`Listeners[0].Network is "udp"`}},
		{listeners(Listener{Addr: addr, Name: "a"}, Listener{Addr: addr, Name: "a"}), []string{`Listeners[1].Name is "a", which is also the name of another`}},
		{listeners(Listener{Addr: addr, Mode: 0o600}), []string{"Listeners[0].Mode is 0600"}},
		{listeners(Listener{Network: "unix", Addr: "s", Mode: fs.ModeDir | 0o600}), []string{"Listeners[0].Mode is"}},
		{listeners(Listener{Addr: addr, MaxConns: -1}), []string{"Listeners[0].MaxConns is -1"}},
		{listeners(Listener{Addr: addr, Backlog: 1 << 17}), []string{"Listeners[0].Backlog is 131072"}},
		{listeners(Listener{Addr: addr, TLSConfig: &tls.Config{}}), []string{"Listeners[0].TLSConfig has no certificate"}},
		{listeners(Listener{Addr: addr, TrustedProxies: make([]netip.Prefix, 1)}), []string{"Listeners[0].TrustedProxies[0] is"}},
		{listeners(Listener{Listener: struct{ net.Listener }{}}), []string{"Listeners[0].Listener: listener of type"}},
		{&Server{Addr: addr, Listeners: make([]Listener, 32)}, []string{"33 listeners; expected at most 32"}},
		{listeners(own, Listener{Addr: addr, Handler: Lines(nil)}), []string{"Listeners[1].Handler: the MessageHandler"}},
		{listeners(Listener{Addr: addr, Handler: &embedsShed{}}), []string{"Listeners[0].Handler: the Shed method"}},
		{&Server{Heartbeat: Heartbeat{Interval: time.Second}, Listeners: []Listener{{Addr: addr, Handler: beats}, own}},
			[]string{"or Server.Listeners[1].Handler to be a HeartbeatHandler"}},
		{&Server{TrustedProxies: []netip.Prefix{prefix}, Listeners: []Listener{{Addr: addr}}}, []string{"Addr is empty; expected these settings in each"}},
	} {
		expectBadConfig(t, c.srv, c.says...)
	}
	for _, srv := range []*Server{
		{Addr: addr}, {Addr: addr, Listeners: []Listener{own}}, {Listeners: []Listener{own, {Addr: addr}}},
	} {
		expectError(t, "no handler", srv.ListenAndServe(t.Context()), ErrBadConfig, "Server.Handler is nil; expected")
	}
	expectError(t, "Serve on no listener", (&Server{Handler: Base{}}).Serve(t.Context(), nil), ErrBadConfig)
	odd := struct{ net.Listener }{&net.TCPListener{}}
	expectError(t, "Serve on an odd listener", (&Server{Handler: Base{}}).Serve(t.Context(), odd), ErrBadConfig, "struct")
	for _, h := range []Handler{struct{ Handler }{&embedsShed{}}, rawSheddingHandler{}, Lines(sheddingHandler{}), Lines(MessageFunc(echoLine)), Base{}} {
		expectNoError(t, checkShedSignature("", h))
	}
	for _, h := range []Heartbeat{{}, {Interval: minHeartbeat, Message: ping, MaxMissed: 255}, {Interval: Never, Send: send}} {
		expectNoError(t, h.validate("Server.Handler"))
	}
}

// oddShedding is a MessageHandler with the Shed method of a Handler.
type oddShedding struct{ MessageFunc }

func (oddShedding) Shed(*Conn, []byte, error) int { return 0 }

// embedsShed is a Handler that embeds the Shed method of a MessageHandler.
type embedsShed struct {
	Base
	messages
}

type messages struct{}

func (messages) Shed(*Conn, []byte, error) {}

// A negative value of any limit is an error that names it.
func TestNegativeLimits(t *testing.T) {
	for field := range reflect.TypeFor[Limits]().Fields() {
		for _, processes := range []int{0, 2} {
			s := &Server{Processes: processes}
			reflect.ValueOf(&s.Limits).Elem().FieldByIndex(field.Index).SetInt(-7)
			expectBadConfig(t, s, "Limits."+field.Name, "-7", "default")
		}
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
	if e := (Heartbeat{Interval: time.Second}).toEngine(nil); e.MaxMissed != defaultMissed || e.Every != time.Second {
		t.Errorf("a heartbeat each second is %+v", e)
	}
	expectEqual(t, "an interval of Never", (Heartbeat{Interval: Never}).toEngine(nil).Every, 0)
}

func TestTrustedProxies(t *testing.T) {
	var cfg engine.Config
	trusted := []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104"), netip.MustParsePrefix("fe80::/10")}
	new(Server).configureTLSAndProxyLayersLocked(&cfg, Limits{}, []Listener{{}, {TrustedProxies: trusted}})
	for text, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "11.0.0.1": false, "fe80::1%eth0": true, "::1": false,
	} {
		expectEqual(t, text, cfg.IsProxy(1, netip.MustParseAddr(text)), want)
	}
	if !cfg.IsProxy(1, netip.Addr{}) || cfg.IsProxy(0, netip.MustParseAddr("10.1.2.3")) {
		t.Error("a unix socket is not trusted, or a proxy at another listener is")
	}
}

func TestReloadCertificateWithoutFiles(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.pem")
	get, err := ReloadCertificate(missing, missing, nil)
	if err == nil || get != nil || !strings.Contains(err.Error(), "missing.pem") {
		t.Errorf("ReloadCertificate without files: %v", err)
	}
}

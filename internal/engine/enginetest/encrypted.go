package enginetest

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/layers"
	"github.com/myriad-go/myriad/internal/secure"
	"github.com/myriad-go/myriad/internal/secure/tls13"
	"github.com/myriad-go/myriad/internal/testkit"
)

var layerCases = []testCase{
	{"PROXY header in pieces, with input behind it", testProxyHeader},
	{"PROXY headers that are wrong or missing, and plain text instead of TLS", testHandshakeRefused},
	{"part of a TLS record counts as memory", testTLSPartialRecord},
	{"PROXY header of a source that has too many", testProxySource},
	{"TLS ends: half-close, close_notify, truncation, Close", testTLSClose},
	{"TLS that the peer breaks after the handshake", testTLSBrokenRecord},
	{"TLS clients that end at once, with a low HighWater", testTLSQuickEnd},
	{"TLS behind a PROXY header, with state", testTLSBehindProxyHeader},
	{"TLS with Stop during handshakes", testTLSStop},
}

var cert = sync.OnceValue(func() tls.Certificate {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	return s.TLS.Certificates[0]
})

func clientTLS() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, ServerName: "site.test", NextProtos: []string{"lines"}}
}

// handshakes is the limit for concurrent handshakes. It is high enough that a client that is slow
// for a second on a busy machine does not block others.
const handshakes = 8

// withLayers configures a PROXY header and TLS.
func (b *testEnv) withLayers(proxied, encrypted bool) with {
	cfg := &layers.Config{}
	if proxied {
		cfg.IsProxy = func(netip.Addr) bool { return true }
	}
	if encrypted {
		gate := secure.NewHandshakeLimiter(handshakes, 1)
		b.Cleanup(gate.Wait)
		cfg.Gate = gate
		cfg.Ciphers = new(tls13.CipherCache)
		b.Cleanup(cfg.Ciphers.Close)
		cfg.TLS = &tls.Config{Certificates: []tls.Certificate{cert()}, NextProtos: []string{"lines"}, ClientAuth: tls.RequestClientCert}
		secure.EnableTakeover(cfg.TLS)
	}
	return func(c *engine.Config) {
		c.NewLayer = cfg.NewFirstLayer
		if cfg.IsProxy != nil {
			c.IsProxy = func(_ int, a netip.Addr) bool { return cfg.IsProxy(a) }
		}
	}
}

func (s *server) dialTLS() *tls.Conn {
	s.t.Helper()
	c, err := s.dial().encrypt(clientTLS())
	if err != nil {
		s.t.Fatalf("client: handshake: %v", err)
	}
	return c
}

func (c *client) encrypt(cfg *tls.Config) (*tls.Conn, error) {
	t := tls.Client(c, cfg)
	return t, t.Handshake()
}

func exchangeTLS(c *tls.Conn, p []byte) error {
	errs := make(chan error, 1)
	go func() {
		_, err := c.Write(p)
		errs <- err
	}()
	if err := readAndCompare(c, string(p)); err != nil {
		return err
	}
	return <-errs
}

func testProxyHeader(b *testEnv) {
	peers := make(chan netip.AddrPort, 10)
	s := b.startServer(&Script{Received: answerLine, Opened: func(c *engine.Conn) { peers <- c.Peer() }}, b.withLayers(true, false))
	const header = "PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\n"
	want := netip.MustParseAddrPort("192.0.2.1:1234")
	whole := s.dial()
	whole.sendAndExpect(header+"hello\n", "hello\n")
	pieces := s.dial()
	for i := range header {
		pieces.Send(header[i : i+1])
		s.wantBytesIn(len(header) + 6 + i + 1)
	}
	pieces.exchange("hello\n")
	for range 2 {
		if got := testkit.Receive(b, peers, "Opened"); got != want {
			b.Errorf("Peer is %v, want %v", got, want)
		}
	}
	if n := s.Counters(); n[engine.Handshaking] != 0 || n[engine.Accepted] != 2 {
		b.Errorf("counted %d greeting and %d accepted, want 0 and 2", n[engine.Handshaking], n[engine.Accepted])
	}
}

// testHandshakeRefused sends an invalid PROXY header and invalid TLS.
func testHandshakeRefused(b *testEnv) {
	for _, proxied := range []bool{true, false} {
		s := b.startServer(lines(), b.withLayers(proxied, !proxied))
		wrong, ends := s.dial(), s.dial()
		wrong.Send("GET / HTTP/1.1\r\n\r\n")
		ends.Send("PROXY")
		ends.CloseWrite()
		wrong.ExpectClosed()
		ends.ExpectClosed()
		if proxied {
			s.wantRefused(engine.RefusedProxy, 2)
		} else {
			s.wantRefused(engine.RefusedHandshake, 2)
			b.checkNoError(exchangeTLS(s.dialTLS(), []byte("hello\n")))
			continue
		}
		if n := s.Counters()[engine.Accepted]; n != 0 {
			b.Errorf("%d are counted as accepted, want 0", n)
		}
	}
}

func testProxySource(b *testEnv) {
	s := b.startServer(lines(), b.withLayers(true, false), func(cfg *engine.Config) {
		cfg.Admission = engine.AdmissionRules{MaxPerSource: 1, SourcePrefix: 64, Deny: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}
	})
	header := func(ip string) string { return "PROXY TCP4 " + ip + " 192.0.2.99 1234 80\r\n" }
	for range 3 { // each round may use the slots of the previous one
		c, other := s.dial(), s.dial()
		c.sendAndExpect(header("192.0.2.1")+"hello\n", "hello\n")
		other.sendAndExpect(header("192.0.2.2")+"hello\n", "hello\n")
		second := s.dial()
		second.Send(header("192.0.2.1") + "hello\n")
		second.ExpectClosed()
		bad := s.dial()
		bad.Send(header("198.51.100.7"))
		bad.ExpectClosed()
		for _, c := range []*client{c, other, second, bad} {
			c.Close()
		}
		testkit.WaitFor(b, "they stay open", func() bool { return s.Counters()[engine.Open] == 0 })
	}
	if n := s.Counters(); n.RefusedBy(engine.RefusedSource) != 3 || n.RefusedBy(engine.RefusedDenied) != 3 {
		b.Errorf("counted %d for their source and %d as denied, want 3 and 3", n.RefusedBy(engine.RefusedSource), n.RefusedBy(engine.RefusedDenied))
	}
}

// patient is a layer whose handshake is done at the first ContinueHandshake after ready was closed. Until then it takes
// no input if full is set. It sends the connection's Ref to refs.
type patient struct {
	full  bool
	ready chan struct{}
	refs  chan engine.Ref
}

func (l *patient) isReady() bool {
	select {
	case <-l.ready:
		return true
	default:
		return false
	}
}

func (l *patient) ContinueHandshake(c *engine.Conn) error {
	if l.isReady() {
		c.OnHandshakeDone()
		return nil
	}
	select {
	case l.refs <- c.Ref():
	default:
	}
	return nil
}

func (l *patient) OnRead(*engine.Conn, []byte) error { return nil }

func (l *patient) Write(c *engine.Conn, p []byte) error {
	c.AppendToTransport(p)
	return nil
}

func (l *patient) InputFull() bool          { return l.full && !l.isReady() }
func (l *patient) Memory() (int, bool)      { return 0, false }
func (l *patient) OnEOF(*engine.Conn) error { return nil }
func (l *patient) SendClose(*engine.Conn)   {}
func (l *patient) OnClosed(*engine.Conn)    {}

// testEOFInHandshake sends data and EOF before the layer's handshake is done. The handler must hear of it afterwards,
// and the driver must not poll until then.
func testEOFInHandshake(b *testEnv) {
	for _, full := range []bool{false, true} {
		l := &patient{full: full, ready: make(chan struct{}), refs: make(chan engine.Ref, 1)}
		s := b.startServer(&Script{Ended: func(c *engine.Conn, _ []byte) { c.Write([]byte("goodbye")) }},
			func(cfg *engine.Config) { cfg.NewLayer = func(*engine.Conn) engine.Layer { return l } })
		c := s.dial()
		c.Send("x")
		c.CloseWrite()
		ref := testkit.Receive(b, l.refs, "the layer")
		time.Sleep(10 * time.Millisecond) // lets EOF arrive
		before := cpuTime(b)
		time.Sleep(100 * time.Millisecond)
		if used := cpuTime(b) - before; used > 60*time.Millisecond {
			b.Errorf("100 ms of waiting have cost %v of CPU", used)
		}
		if n := s.Counters(); n[engine.Handshaking] != 1 || n[engine.Accepted] != 0 {
			b.Errorf("counted %d greeting and %d accepted, want 1 and 0", n[engine.Handshaking], n[engine.Accepted])
		}
		close(l.ready)
		b.checkNoError(ref.ResumeLayer())
		c.ExpectEOF("goodbye")
		s.wantClosed(io.EOF)
	}
}

func testTLSClose(b *testEnv) {
	s := b.startServer(&Script{
		Received: func(c *engine.Conn, in []byte) int {
			n := answerLine(c, in)
			if bytes.HasPrefix(in, []byte("close")) {
				c.CloseWith(nil)
			}
			return n
		},
		Ended: func(c *engine.Conn, in []byte) { c.Write([]byte("that was all")) },
	}, b.withLayers(false, true))
	half := s.dialTLS()
	half.Write([]byte("a\nb\n"))
	half.CloseWrite() // close_notify, but the transport stays open
	if got, err := io.ReadAll(half); err != nil || string(got) != "a\nb\nthat was all" {
		b.Errorf("half-close: got %q, %v", got, err)
	}
	half.Close()
	s.wantClosed(io.EOF)

	cut := s.dial()
	t, err := cut.encrypt(clientTLS())
	b.requireNoError(err)
	b.requireNoError(exchangeTLS(t, []byte("c\n")))
	cut.CloseWrite() // without close_notify
	cut.ExpectClosed()
	s.wantClosed(io.EOF, io.ErrUnexpectedEOF)

	closed := s.dialTLS()
	closed.Write([]byte("close\n"))
	if got, err := io.ReadAll(closed); err != nil || string(got) != "close\n" {
		b.Errorf("closed by the server: got %q, %v; want close_notify", got, err)
	}
	closed.Close()
	s.wantClosed(io.EOF, io.ErrUnexpectedEOF, nil)
}

// testTLSBrokenRecord sends an unencrypted record, an invalid record, and the alert of a client
// that received one. The first comes together with data, which the handler answers.
func testTLSBrokenRecord(b *testEnv) {
	const record = "\x17\x03\x03\x00\x20not encrypted, and of 32 bytes..."
	s := b.startServer(lines(), b.withLayers(false, true))
	for i, p := range []string{record, "no record\n", ""} {
		c := s.dial()
		heard := &corruptingReader{Conn: c}
		t := tls.Client(heard, clientTLS())
		b.requireNoError(exchangeTLS(t, []byte("hello\n")))
		if i == 0 {
			heard.behind, p = p, ""
			t.Write([]byte("answered too late\n"))
		} else if p == "" {
			heard.instead = strings.NewReader(record)
			t.Read(make([]byte, 1))
		}
		c.Send(p)
		c.ExpectClosed()
		c.Close()
		reason := s.awaitClosed(i + 1)[i]
		var broken *engine.TLSError
		var op *net.OpError
		var header tls.RecordHeaderError
		if !errors.As(reason, &broken) || !errors.As(reason, &op) && !errors.As(reason, &header) {
			b.Fatalf("after %q closed for %v; want a TLSError with one of crypto/tls", p, reason)
		}
		testkit.WaitFor(b, "the closed are not counted as TLS's", func() bool { return s.Counters().ClosedBy(engine.ClosedTLS) == int64(i+1) })
	}
}

// corruptingReader corrupts what it reads, and appends to what it writes.
type corruptingReader struct {
	net.Conn
	instead io.Reader
	behind  string
}

func (m *corruptingReader) Write(p []byte) (int, error) {
	_, err := m.Conn.Write(append(bytes.Clone(p), m.behind...))
	return len(p), err
}

func (m *corruptingReader) Read(p []byte) (int, error) {
	if m.instead != nil {
		return m.instead.Read(p)
	}
	return m.Conn.Read(p)
}

func testTLSBehindProxyHeader(b *testEnv) {
	type seen struct {
		peer  netip.AddrPort
		state *tls.ConnectionState
	}
	opened := make(chan seen, 1)
	s := b.startServer(&Script{Received: answerLine, Opened: func(c *engine.Conn) {
		opened <- seen{c.Peer(), layers.TLSStateAfterHandshake(c)}
	}}, b.withLayers(true, true))
	raw := s.dial()
	raw.Send("PROXY TCP4 192.0.2.1 192.0.2.2 1234 443\r\n")
	cfg := clientTLS()
	cfg.Certificates = []tls.Certificate{cert()}
	c, err := raw.encrypt(cfg)
	b.requireNoError(err)
	b.requireNoError(exchangeTLS(c, []byte("hello\n")))
	got := testkit.Receive(b, opened, "Opened")
	if want := netip.MustParseAddrPort("192.0.2.1:1234"); got.peer != want {
		b.Errorf("Peer is %v, want %v", got.peer, want)
	}
	if st := got.state; st == nil || st.ServerName != "site.test" || st.NegotiatedProtocol != "lines" || len(st.PeerCertificates) != 1 {
		b.Errorf("the state in Opened is %+v", st)
	}
	c.Close()
	s.wantClosed(io.EOF)
}

func testTLSStop(b *testEnv) {
	s := b.startServer(lines(), b.withLayers(false, true))
	ready := s.dialTLS()
	s.wantOpened(1)
	var stalled []*client
	for range 10 {
		c := s.dial()
		c.Send("\x16\x03\x01\x02\x00\x01")
		stalled = append(stalled, c)
	}
	testkit.WaitFor(b, "they do not greet", func() bool { return s.Counters()[engine.Handshaking] == 10 })
	wantStopped := s.stopMeanwhile(b)
	for _, c := range stalled {
		c.ExpectClosed()
		c.Close()
	}
	if got, err := io.ReadAll(ready); err != nil || len(got) > 0 {
		b.Errorf("the one that was ready: %q, %v; want close_notify", got, err)
	}
	ready.Close()
	wantStopped()
	s.wantClosed(engine.ErrServerClosed)
}

// testTLSQuickEnd has more clients than the limit for handshakes, which send all data and EOF as early as possible.
// HighWater is below the size of the handshake: Writable must not be called before Opened.
func testTLSQuickEnd(b *testEnv) {
	const n = 5 * handshakes
	s := b.startServer(lines(), b.withLayers(false, true), limited(func(l *engine.Limits) { l.HighWater, l.LowWater = 10, 1 }),
		func(cfg *engine.Config) {
			cfg.Drained = func(c *engine.Conn) {
				if layers.TLSStateAfterHandshake(c) == nil {
					b.Error("Writable before Opened")
				}
			}
		})
	talk := func() (got []byte, err error) {
		raw, err := tryDial(b, s.Addr().String())
		if err != nil {
			return nil, err
		}
		defer raw.Close()
		c, err := raw.encrypt(clientTLS())
		if err != nil {
			return nil, err
		}
		c.Write([]byte("only this, which is longer than HighWater\n"))
		c.CloseWrite()
		raw.CloseWrite()
		return io.ReadAll(c)
	}
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			got, err := talk()
			for range 10 {
				if err == nil || s.Counters().RefusedBy(engine.RefusedHandshake) == 0 {
					break
				}
				got, err = talk() // its handshake may have been refused
			}
			if err != nil || string(got) != "only this, which is longer than HighWater\n" {
				b.Errorf("client %d: got %q, %v", i, got, err)
			}
		})
	}
	all.Wait()
	s.wantClosed(slices.Repeat([]error{io.EOF}, n)...)
}

// testTLSPartialRecord sends part of a record, whose memory must be counted.
func testTLSPartialRecord(b *testEnv) {
	s := b.startServer(newEchoScript(), b.withLayers(false, true))
	raw, c := s.sendPartialRecord(b)
	testkit.WaitFor(b, "what is kept of a record is not counted", func() bool { return s.Counters()[engine.Buffered] >= recordPart })
	raw.Close()
	_, _ = io.ReadAll(c) // ends with EOF or an error
	testkit.WaitFor(b, "what was kept is still counted", func() bool { return s.Counters()[engine.Buffered] == 0 })
}

// recordPart is the number of bytes that sendPartialRecord sends.
const recordPart = 10 << 10

// sendPartialRecord makes a TLS client send part of a record.
func (s *server) sendPartialRecord(b *testEnv) (raw *client, c *tls.Conn) {
	raw = s.dial()
	c, err := raw.encrypt(clientTLS())
	b.requireNoError(err)
	b.requireNoError(exchangeTLS(c, []byte("hello\n")))
	const size = 16 << 10
	header := []byte{23, 3, 3, size >> 8, size & 0xff}
	if _, err := raw.Write(append(header, testPattern(recordPart)...)); err != nil {
		b.Fatal(err)
	}
	return raw, c
}

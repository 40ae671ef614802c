package load

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/myriad-go/myriad/internal/testkit"
)

func isNear(got, want, share float64) bool { return math.Abs(got-want) <= share*want }

// answerLinesWith returns a handler that answers each line with a text, which contains the line's number.
func answerLinesWith(text string) handler {
	return serveLines(func(c net.Conn, _ string, _, k int) error { return writeText(c, fmt.Sprintf(text, k)) })
}

// TestExchange exchanges messages with correct servers, in every mode: all messages are sent and answered.
func TestExchange(t *testing.T) {
	socket := &WebSocket{Path: "/chat?x=1", Header: http.Header{"Authorization": {"me"}}}
	cases := loadCases{
		"lines":        cleanCase(serverStarter(echo), Config{Size: 2, Pipeline: 3, Messages: 7}, "bytes_sent==280 bytes_received==280"),
		"text":         cleanCase(serverStarter(echo), Config{Message: "ping", Pipeline: 1024, Messages: 3000}, "bytes_sent==240000"),
		"large":        cleanCase(serverStarter(echo), Config{Size: 300_001, Pipeline: 3, Messages: 6, Connections: 2}, "bytes_received==3600012"),
		"hold":         cleanCase(serverStarter(echo), Config{Messages: 5, HoldBefore: time.Millisecond, HoldAfter: time.Millisecond}, "sent==100"),
		"delimiter":    cleanCase(serverStarter(answerLinesWith("it is %d\r\n")), matchConfig("delimiter:\\r\\n"), "answered==80"),
		"marker":       cleanCase(serverStarter(answerLinesWith("some %d text END and")), matchConfig("marker:END"), "answered==80"),
		"bytes":        cleanCase(serverStarter(answerLinesWith("%08d")), matchConfig("bytes:8"), "answered==80"),
		"length":       cleanCase(serverStarter(answerLinesWith("\x06%06d")), matchConfig("length:1"), "answered==80"),
		"WebSocket":    cleanCase(webSocketServerStarter(doNothing), Config{Pipeline: 2, Messages: 30, WebSocket: socket}, "answered==600"),
		"70,000 bytes": cleanCase(webSocketServerStarter(doNothing), Config{Size: 70_000, Messages: 5, WebSocket: socket, Connections: 3}, "sent==15"),
		"frames":       cleanCase(webSocketServerStarter(doNothing), Config{Match: matchFrames, Message: `\{seq} \{random 7}`, Messages: 9, WebSocket: socket}, "sent==180"),
		"template":     cleanCase(webSocketServerStarter(doNothing), Config{Message: `\{uuid} \{seq}`, First: "hello", Pipeline: 3, Messages: 9, WebSocket: socket}, "sent==180"),
		"HTTP":         cleanCase(startHTTPServer(nil), httpConfig(20), "answered==400 reconnected==0 bytes_received>=64M"),
		"a window": {serverStarter(echo), Config{Pipeline: 4, Loops: 2, Warmup: 20 * time.Millisecond, Duration: 50 * time.Millisecond},
			"answered>0", "connected==20 p50>0s", "", checkWindow},
	}
	for name, rate := range map[string]Rate{
		"all":          {PerSecond: 1000},
		"all, ramp":    {PerSecond: 500, To: 1500},
		"each Poisson": {PerSecond: 50, Each: true, Poisson: true},
	} {
		cases["open loop, "+name] = loadCase{serverStarter(echo), Config{Rate: rate, Duration: 200 * time.Millisecond}, "", "unsent==0", "", checkOpenLoop}
	}
	for name, c := range map[string]loadCase{
		"small":  cleanCase(nil, Config{Size: 2, Pipeline: 300, Messages: 900, Loops: 3}, "sent==18000"),
		"large":  cleanCase(nil, Config{Size: 300_001, Pipeline: 3, Messages: 6, Connections: 2}, "sent==12"),
		"held":   cleanCase(nil, Config{Messages: 5, HoldBefore: time.Millisecond, Graceful: true}, "sent==100"),
		"HTTP":   cleanCase(startHTTPServer(newServerTLS()), httpConfig(20), "answered==400 reconnected==0"),
		"window": {cfg: Config{Duration: 50 * time.Millisecond}, enough: "answered>0", want: "connected==20"},
	} {
		if c.server == nil {
			c.server = serverStarter(withTLS(newServerTLS(), echo))
		}
		c.cfg.TLS = newClientTLS()
		c.check = func(t *testing.T, r *Result, _ *eventLog) {
			if !strings.HasPrefix(r.TLS, "TLS 1.3, ") {
				t.Errorf("agreed on %q, want TLS 1.3", r.TLS)
			}
		}
		cases["TLS, "+name] = c
	}
	cases["open loop, WebSocket"] = loadCase{webSocketServerStarter(doNothing), Config{Rate: Rate{PerSecond: 1000}, Duration: 200 * time.Millisecond, WebSocket: &WebSocket{}}, "", "unsent==0", "", checkOpenLoop}
	cases.run(t)
}

func cleanCase(server func(*testing.T) string, cfg Config, want string) loadCase {
	return loadCase{server: server, cfg: cfg, want: want}
}

func faultyCase(server func(*testing.T) string, cfg Config, want, says string) loadCase {
	return loadCase{server: server, cfg: cfg, want: want, wantError: says}
}

func matchConfig(match string) Config {
	return Config{Message: "ask\n", Match: match, Connections: 4, Messages: 20, Pipeline: 3}
}

// startHTTPServer returns a function that starts a server of net/http, which sends large responses in chunks.
func startHTTPServer(cfg *tls.Config) func(*testing.T) string {
	return func(t *testing.T) string {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, 160_000))
		}))
		if s.TLS = cfg; cfg == nil {
			s.Start()
		} else {
			s.StartTLS()
		}
		t.Cleanup(s.Close)
		return s.Listener.Addr().String()
	}
}

func checkWindow(t *testing.T, r *Result, told *eventLog) {
	if r.Window < 50*time.Millisecond || r.Latency.Count != r.Answered || r.Latency.Min > r.Latency.P50 || r.Latency.P50 > r.Latency.Max {
		t.Errorf("a window of %v, latency %+v of %d answers", r.Window, r.Latency, r.Answered)
	}
	if r.BytesSent != 64*r.Sent || r.BytesReceived == 0 || told.intervals.Generator.CPU() == 0 {
		t.Errorf("%d bytes in %d messages, %d received, %+v", r.BytesSent, r.Sent, r.BytesReceived, told.intervals.Generator)
	}
	if want := fmt.Sprint([]Phase{Began, Connected, Measuring, Measured, Done}); fmt.Sprint(told.phasesWithoutProgress()) != want {
		t.Errorf("phases %v, want %v", told.phasesWithoutProgress(), want)
	}
}

// checkOpenLoop checks for an average of 1,000 messages a second in 200 ms.
func checkOpenLoop(t *testing.T, r *Result, _ *eventLog) {
	if d := r.Intended - 200; (d < -20 || d > 20) && !r.Schedule.Poisson { // which is random; see TestTruth
		t.Errorf("%d messages planned, want 200", r.Intended)
	}
	if !r.Corrected || r.Service.Count != r.Intended || r.Latency.P50 < r.Service.P50 {
		t.Errorf("%d planned, %d services; from the planned times %v, from the real ones %v", r.Intended, r.Service.Count, r.Latency.P50, r.Service.P50)
	}
}

// TestFaults uses servers with all kinds of faults: each is counted with its cause, and ends no more than it must.
func TestFaults(t *testing.T) {
	short, tooOld := 30*time.Millisecond, newServerTLS()
	tooOld.MinVersion, tooOld.MaxVersion = tls.VersionTLS11, tls.VersionTLS11
	hello := func(c net.Conn, n int) { _ = writeText(c, "hello, I am a line\n"); discardInput(c, n) }
	handshake := func(handle handler, cfg *TLS, says string) loadCase {
		return loadCase{serverStarter(handle), Config{TLS: cfg}, "", "failed==20", says, checkHandshakeErrors}
	}
	held := func(begin func(context.Context, *websocket.Conn) error, enough, says string) loadCase {
		cfg := Config{Connections: 5, WebSocket: &WebSocket{}, Hold: true, Broadcast: "hear ye\n", Duration: 50 * time.Millisecond}
		return loadCase{webSocketServerStarter(begin), cfg, enough, "", says, nil}
	}
	silent := func(cfg Config, want string) loadCase {
		cfg.Connections, cfg.Pipeline, cfg.Drain = 2, 4, short
		return loadCase{serverStarter(discardInput), cfg, "unanswered==8", "answered==0 lost==0 " + want, "without an answer: 8", nil}
	}
	loadCases{
		"handshake, nobody trusted":  handshake(withTLS(newServerTLS(), echo), &TLS{}, "certificate"),
		"handshake, not TLS":         handshake(hello, newClientTLS(), "first record does not look like a TLS handshake"),
		"handshake, an alert":        handshake(withTLS(tooOld, failHandshake), newClientTLS(), "version"),
		"handshake, a reset":         handshake(resetAfterRead, newClientTLS(), "connection closed"),
		"held WebSocket, stray line": held(writeMessages("hear ye", "and me"), "unexpected==5", `first: "and me"`),
		"held WebSocket, full line":  held(writeMessages("hear ye", strings.Repeat("x", MaxLine)), "unexpected==5", "5 unexpected lines"),
		"held WebSocket, long line":  held(writeMessages(strings.Repeat("x", MaxLine+1)), "lost==5", "5 × line longer than 4096 bytes"),
		"held WebSocket, fragments":  held(writeFragmentedMessage, "lost==5", "5 × "+errFragment.Error()),
		"held WebSocket, close":      held(echoThenClose(0), "lost==5", "5 × "+errClosedFrame.Error()),
		"silent":                     silent(Config{Messages: 4}, "unsent==0"),
		"silent, a window":           silent(Config{Duration: short}, "unsent==0"),
		"no room":                    silent(Config{Rate: Rate{PerSecond: 500}, Duration: short}, "unsent>0"),
		"no room, each":              silent(Config{Rate: Rate{PerSecond: 500, Each: true}, Duration: short}, "unsent>0"),
		"a wrong byte": faultyCase(serverStarter(corruptThirdAnswer), Config{Connections: 5, Messages: 10},
			"mismatched==1 lost==0 answered==42 unanswered==1", `message 2, byte 40: got "\xff`),
		"too much": faultyCase(serverStarter(answerLinesWith("pingping%.0d")), Config{Message: "ping\n", Answer: "ping", Messages: 1, HoldAfter: time.Minute},
			"mismatched==20", `got "ping"`),
		"some lost": faultyCase(serverStarter(breakThreeConns), Config{Connections: 10, Messages: 100},
			"lost==3 mismatched==0 answered==703 unanswered==3", "3 × closed by the server"),
		"all lost": faultyCase(serverStarter(func(c net.Conn, _ int) { echoMessages(c, 0) }), Config{Duration: time.Hour},
			"lost==20 window<30m", "closed by the server"),
		"nobody": faultyCase(unusedAddr, Config{Connections: 30},
			"connected==0 failed==30", "30 × connection refused"),
		"more answers": faultyCase(serverStarter(answerLinesWith("%d\n\n")), Config{Message: "ask\n", Match: "delimiter:\\n", Connections: 1, Messages: 20},
			"mismatched==1", `received an answer while no message was unanswered; got "\n"`),
		"a status": faultyCase(serverStarter(answerLinesWith("HTTP/1.1 503 Busy\r\nX-Number: %d\r\nContent-Length: 0\r\n\r\n")), Config{Message: "GET\n", Match: matchHTTP, Messages: 5},
			"answered==100", "HTTP status 503"),
		"a WebSocket closed": faultyCase(webSocketServerStarter(echoThenClose(7)), Config{Messages: 30, WebSocket: &WebSocket{}},
			"lost==20 answered==140", errClosedFrame.Error()),
		"no WebSocket": faultyCase(serverStarter(func(c net.Conn, _ int) { _ = writeText(c, "HTTP/1.1 404 Not Found\r\n\r\n") }), Config{WebSocket: &WebSocket{}},
			"connected==0", "404 Not Found"),
		"TLS closed": faultyCase(serverStarter(withTLS(newServerTLS(), func(c net.Conn, _ int) { echoMessages(c, 0) })), Config{TLS: newClientTLS(), Messages: 1},
			"lost==20", "20 × closed by the server"),
		"TLS cut off": faultyCase(serverStarter(withTLS(newServerTLS(), closeWithoutTLSAlert)), Config{TLS: newClientTLS(), Messages: 1},
			"lost==20", "20 × cut off by the server"),
		"TLS, silence": faultyCase(serverStarter(discardInput), Config{TLS: newClientTLS(), ConnectTimeout: 50 * time.Millisecond},
			"failed==20", "not "),
		"TLS for two of three": faultyCase(serverStarter(rejectEveryThird), Config{TLS: newClientTLS(), Connections: 30, Messages: 2},
			"connected==20 failed==10 answered==40", "TLS handshake: closed by the server:10"),
		"HTTP, a request outstanding": faultyCase(serverStarter(closeOnSecondRequest), httpConfig(5),
			"lost==20 reconnected==0", "closed by the server"),
		"HTTP, in a response": faultyCase(serverStarter(respondAndClose(strings.TrimSuffix(responseKept, "i"))), httpConfig(5),
			"lost==20 reconnected==0", "closed by the server"),
		"keep-alive, announced": faultyCase(serverStarter(respondAndClose(responseClosed)), noReconnectConfig(),
			"lost==20 reconnected==0 answered==20 unanswered==20", errKeepAlive.Error()),
	}.run(t)
}

func failHandshake(c net.Conn, n int) {
	_ = c.(*tls.Conn).Handshake()
	discardInput(c.(*tls.Conn).NetConn(), n)
}

func corruptThirdAnswer(c net.Conn, n int) {
	message := make([]byte, 64)
	for k := 0; ; k++ {
		if _, err := io.ReadFull(c, message); err != nil {
			return
		}
		if n == 0 && k == 2 {
			message[40] = 0xff
		}
		if _, err := c.Write(message); err != nil {
			return
		}
	}
}

func breakThreeConns(c net.Conn, n int) {
	if n >= 3 {
		echo(c, n)
		return
	}
	echoMessages(c, 1)
}

func echoThenClose(messages int) func(context.Context, *websocket.Conn) error {
	return func(ctx context.Context, c *websocket.Conn) error {
		for range messages {
			kind, message, err := c.Read(ctx)
			if err == nil {
				err = c.Write(ctx, kind, message)
			}
			if err != nil {
				return err
			}
		}
		return c.Close(websocket.StatusNormalClosure, "enough")
	}
}

func writeMessages(texts ...string) func(context.Context, *websocket.Conn) error {
	return func(ctx context.Context, c *websocket.Conn) (err error) {
		for _, text := range texts {
			if err == nil {
				err = c.Write(ctx, websocket.MessageText, []byte(text))
			}
		}
		return err
	}
}

func writeFragmentedMessage(ctx context.Context, c *websocket.Conn) error {
	return writeFragments(ctx, c, websocket.MessageText, []byte("hear"))
}

func closeWithoutTLSAlert(c net.Conn, _ int) {
	_, _ = io.ReadFull(c, make([]byte, 64))
	c.(*tls.Conn).NetConn().Close()
}

func resetAfterRead(c net.Conn, _ int) {
	_, _ = c.Read(make([]byte, 1))
	_ = c.(*net.TCPConn).SetLinger(0)
}

func rejectEveryThird(c net.Conn, n int) {
	if n%3 == 0 {
		_, _ = c.Read(make([]byte, 16<<10))
		return
	}
	withTLS(newServerTLS(), echo)(c, n)
}

// checkHandshakeErrors checks that all errors are failed handshakes, with at most two causes.
func checkHandshakeErrors(t *testing.T, r *Result, _ *eventLog) {
	for cause := range r.ConnectErrors {
		if !strings.HasPrefix(cause, "TLS handshake: ") || len(r.ConnectErrors) > 2 {
			t.Errorf("causes %v", r.ConnectErrors)
		}
	}
}

// TestUntil interrupts endless loads when they have shown enough.
func TestUntil(t *testing.T) {
	t.Parallel()
	const conns, think, lifetime = 10, 50 * time.Millisecond, 100 * time.Millisecond
	hello := func(c net.Conn, n int) { _ = writeText(c, "hello"); discardInput(c, n) }
	short := func(c net.Conn, _ int) { echoMessages(c, 1) }
	for name, test := range map[string]struct {
		handle handler
		cfg    Config
		enough func(s *eventLog, e Event) bool
		ok     func(r *Result, s *eventLog) bool
	}{
		"flood a silent one": {discardInput, Config{Flood: true}, func(_ *eventLog, e Event) bool { return e.Snapshot.Sent >= 10_000 },
			func(r *Result, _ *eventLog) bool {
				return r.Bytes.Sent >= 640_000 && r.Bytes.Sent%64 == 0 && r.Answered+r.Unanswered+r.Bytes.Received == 0
			}},
		"flood one that answers": {echo, Config{Flood: true}, func(s *eventLog, _ Event) bool { return s.intervals.BytesReceived >= 10_000 },
			func(r *Result, _ *eventLog) bool { return r.Bytes.Sent > 0 && r.Answered+r.Unanswered == 0 }},
		"think": {echo, Config{Think: think, Pipeline: 2}, func(_ *eventLog, e Event) bool { return e.Snapshot.Sent >= 60 },
			func(r *Result, _ *eventLog) bool {
				return r.Sent >= 60 && r.Sent <= conns*2*(2+int64(r.Window/think))
			}},
		"lifetime": {echo, Config{Lifetime: lifetime}, func(s *eventLog, _ Event) bool { return s.intervals.Closed >= 2*conns }, livedFor(lifetime)},
		"lifetime, gracefully": {echo, Config{Lifetime: lifetime, Graceful: true},
			func(s *eventLog, _ Event) bool { return s.intervals.Closed >= 2*conns }, livedFor(lifetime)},
		"lifetime, and a server that closes": {
			func(c net.Conn, n int) {
				if n%2 == 0 {
					respondAndClose(slices.Repeat([]string{responseKept}, 10_000)...)(c, n)
				} else {
					respondAndClose(responseKept, responseClosed)(c, n)
				}
			},
			Config{Match: matchHTTP, Lifetime: lifetime, Think: 5 * time.Millisecond},
			func(s *eventLog, _ Event) bool { return s.intervals.Reconnected > 10 && s.intervals.Closed > 3 },
			func(r *Result, _ *eventLog) bool { return r.Unanswered == 0 && len(r.Lost) == 0 }},
		"hold": {hello, Config{Hold: true}, func(s *eventLog, _ Event) bool { return s.intervals.BytesReceived >= 5*conns },
			func(r *Result, _ *eventLog) bool {
				return r.Sent == 0 && r.Bytes.Received == 5*conns && r.Mode == "hold" && r.NoReply
			}},
		"replace those that are lost": {short, Config{Lifetime: time.Hour}, func(s *eventLog, _ Event) bool { return s.intervals.Opened >= 3*conns },
			func(r *Result, _ *eventLog) bool { return len(r.Lost) > 0 && r.Closed == 0 }},
		"try again where nobody is": {nil, Config{Lifetime: time.Hour}, func(_ *eventLog, e Event) bool { return e.Snapshot.Failed >= 2*conns },
			func(r *Result, _ *eventLog) bool {
				n := r.ConnectErrors["connection refused"] // conns at once, and conns each 100 ms
				return n >= 2*conns && n <= conns*(1+int64(r.Took/dialRetryInterval))
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testEachModel(t, func(t *testing.T, model string) {
				cfg := test.cfg
				if name == "flood one that answers" && model == "goroutine" {
					return // reads and writes in turn; see Config.Flood
				}
				cfg.Model, cfg.Connections = model, conns
				testkit.AcquireDescriptorsOrSkip(t, 2*conns+20)
				if cfg.Target = unusedAddr(t); test.handle != nil {
					cfg.Target = startTestServer(t, test.handle).addr()
				}
				if r, told := runUntil(t, cfg, test.enough); !test.ok(r, told) {
					t.Errorf("%+v\n%+v", r, told.intervals)
				}
			})
		})
	}
}

// livedFor returns a function that checks that connections are closed at the end of their lifetime,
// not before, and replaced.
func livedFor(lifetime time.Duration) func(*Result, *eventLog) bool {
	return func(r *Result, s *eventLog) bool {
		conns := int64(r.Connections)
		return r.Closed >= 2*conns && r.Closed <= conns*int64(s.intervals.To/lifetime) && r.Bytes.InFlight == 0 && len(r.Lost) == 0 &&
			int64(r.Connected) >= r.Closed && int64(r.Connected) <= r.Closed+conns && r.Connect.Count == int64(r.Connected) && r.FirstByte.Count > 0
	}
}

// TestAhead sends a part of the next message with each message: the server receives the same bytes
// as otherwise, and never the end of a message as the last byte.
func TestAhead(t *testing.T) {
	t.Parallel()
	const size, ahead, conns = 1000, 10, 3
	plain := string(newConstantOrRandomPayloads(&Config{Size: size}).block.bytes)
	messages := 2 * len(plain) / size // more than lie in memory
	for _, pipeline := range []int{1, 3} {
		ended := make(chan string, conns)
		s := startTestServer(t, func(c net.Conn, _ int) {
			var got []byte
			for piece, whole := make([]byte, 4096), 0; ; {
				n, err := c.Read(piece)
				got = append(got, piece[:n]...)
				if rest := len(got) % size; n > 0 && rest != ahead && pipeline == 1 {
					t.Errorf("%d bytes of a message are there, want %d", rest, ahead)
				}
				_, _ = c.Write(got[whole : len(got)/size*size])
				whole = len(got) / size * size
				if err != nil {
					break
				}
			}
			ended <- string(got)
		})
		r := runToEnd(t, Config{Target: s.addr(), Connections: conns, Pipeline: pipeline, Size: size, Messages: int64(messages), Ahead: ahead})
		testkit.ExpectNoError(t, r.Err())
		for range conns {
			got := testkit.Receive(t, ended, "the end of a connection")
			if i := strings.Index(plain, got[:size]); len(got) != messages*size+ahead || i < 0 ||
				!strings.HasPrefix(strings.Repeat(plain[i:]+plain[:i], 3), got) {
				t.Errorf("%d bytes were sent, want %d, those of the messages", len(got), messages*size+ahead)
			}
		}
	}
}

// TestSeed checks that equal seeds send equal bytes on the same connections, and other seeds others.
func TestSeed(t *testing.T) {
	t.Parallel()
	const conns = 12
	said := func(seed uint64) map[string]bool {
		ended := make(chan string, conns)
		s := startTestServer(t, func(c net.Conn, _ int) {
			var all bytes.Buffer
			_, _ = io.Copy(onlyWriter{c}, io.TeeReader(onlyReader{c}, &all))
			ended <- all.String()
		})
		runToEnd(t, Config{Target: s.addr(), Connections: conns, Seed: seed, Messages: 5, Graceful: true,
			Message: `\{connection.uid} \{seq} \{hex 7} \{random 5}` + "\n", First: "hello \\{connection.uid}\n"})
		heard := map[string]bool{}
		for range conns {
			text := testkit.Receive(t, ended, "the end of a connection")
			heard[text] = true
			if lines := strings.SplitAfter(text, "\n"); len(lines) != 6 || !strings.HasPrefix(lines[0], "hello ") || !strings.Contains(lines[1], " 1 ") {
				t.Errorf("said %q", text)
			}
		}
		return heard
	}
	a, b, other := said(7), said(7), said(8)
	if fmt.Sprint(a) != fmt.Sprint(b) || len(a) != conns || fmt.Sprint(a) == fmt.Sprint(other) {
		t.Errorf("seed 7 said\n%v\nand\n%v\nseed 8\n%v", a, b, other)
	}
}

// TestUnprompted answers a server's heartbeats, also while other connections are still being established, expects none
// at the end, and detects a wrong one.
func TestUnprompted(t *testing.T) {
	t.Parallel()
	base := Config{Unprompted: true, Message: "pong\n", Answer: "ping\n", Connections: 5, Drain: time.Hour}
	var answers atomic.Int64
	cfg := base
	cfg.Messages = 20
	cfg.Target = startTestServer(t, serveLines(func(c net.Conn, line string, _, _ int) error {
		if answers.Add(1) == 40 {
			return writeText(c, "pang\nping\n")
		}
		return writeText(c, "ping\n")
	})).addr()
	r := runToEnd(t, cfg)
	if r.Mismatched != 1 || !strings.HasPrefix(r.FirstMismatch.Got, `"ang\n`) || r.Bytes.Answered < 400 || r.Unanswered != 0 || len(r.Lost) != 0 {
		t.Errorf("got %+v, first %v", r, r.FirstMismatch)
	}
	// Heartbeats are answered while other connections are still being established.
	answered := make(chan struct{}, 2)
	late := base
	late.Connections, late.ConnectRate, late.Duration = 2, 2, time.Millisecond
	late.Target = startTestServer(t, serveLines(func(c net.Conn, _ string, _, k int) error {
		if k == 0 {
			return writeText(c, "ping\n")
		}
		answered <- struct{}{}
		return nil
	})).addr()
	late.Observe = func(e Event) {
		if e.Phase == Connected && len(answered) == 0 {
			t.Error("when the last connection was there, no heartbeat had been answered")
		}
	}
	if r := runToEnd(t, late); r.Err() != nil {
		t.Errorf("%v: got %+v", r.Err(), r)
	}
	// Without a heartbeat, each connection sends a message; messages after the window are not checked.
	for times := range growingFactors(t) {
		over := make(chan struct{})
		quiet := base
		quiet.Duration, quiet.HoldAfter = times*50*time.Millisecond, 50*time.Millisecond
		quiet.Target = startTestServer(t, func(c net.Conn, n int) {
			<-over
			_ = writeText(c, "ping\nping\npang\n")
			discardInput(c, n)
		}).addr()
		quiet.Observe = func(e Event) {
			if e.Phase == Measured {
				close(over)
			}
		}
		if r = runToEnd(t, quiet); r.Err() != nil || r.Bytes.Sent > 25 || r.Answered != 0 {
			t.Errorf("without a heartbeat: %v, got %+v", r.Err(), r)
		}
		if r.Bytes.Sent == 25 {
			break
		}
	}
}

// TestCancel cancels the context in each phase.
func TestCancel(t *testing.T) {
	t.Parallel()
	at := func(p Phase) func(*eventLog, Event) bool {
		return func(_ *eventLog, e Event) bool { return e.Phase == p }
	}
	for name, test := range map[string]struct {
		when func(*eventLog, Event) bool
		cfg  Config
	}{
		"connecting": {func(_ *eventLog, e Event) bool { return e.Snapshot.Open > 0 }, Config{ConnectRate: 1, Connections: 100}},
		"hold":       {at(Connected), Config{HoldBefore: time.Hour}},
		"warm-up":    {func(_ *eventLog, e Event) bool { return e.Snapshot.Sent > 0 }, Config{Warmup: time.Hour}},
		"window":     {at(Measuring), Config{Duration: time.Hour}},
		"messages":   {at(Measuring), Config{Messages: 1 << 30}},
		"hold after": {at(Measured), Config{Messages: 1, HoldAfter: time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range growingFactors(t) {
				cfg := test.cfg
				cfg.Target = startTestServer(t, echo).addr()
				if r, _ := runUntil(t, cfg, test.when); r.Connected == 0 || len(r.Lost) != 0 {
					t.Errorf("result %+v", r)
				} else if r.Unanswered == 0 { // answers had no more than a second
					break
				}
			}
		})
	}
	t.Run("without answers", func(t *testing.T) {
		t.Parallel()
		cfg := Config{Target: startTestServer(t, discardInput).addr(), Connections: 2, Drain: 20 * time.Millisecond}
		if r, _ := runUntil(t, cfg, func(_ *eventLog, e Event) bool { return e.Snapshot.Sent == 2 }); r.Unanswered != 2 {
			t.Errorf("got %+v", r)
		}
	})
}

package load

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

const (
	responseKept   = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
	responseClosed = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
	responseToEnd  = "HTTP/1.1 200 OK\r\n\r\nhi, until the end"
)

// respondAndClose returns a handler that sends one response to each request and closes the connection after the last.
func respondAndClose(responses ...string) handler {
	return func(c net.Conn, _ int) {
		in := bufio.NewReader(c)
		for _, response := range responses {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			if writeText(c, response) != nil {
				return
			}
		}
		// Read further requests, or the kernel would reset the connection.
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
		_, _ = io.Copy(io.Discard, in)
	}
}

func closeOnSecondRequest(c net.Conn, _ int) {
	in := bufio.NewReader(c)
	_, _ = http.ReadRequest(in)
	_ = writeText(c, responseKept)
	_, _ = http.ReadRequest(in)
}

func httpConfig(messages int64) Config { return Config{Loops: 2, Match: matchHTTP, Messages: messages} }

func noReconnectConfig() Config {
	cfg := httpConfig(5)
	cfg.NoReconnect, cfg.Pipeline = true, 2
	return cfg
}

// TestReconnect uses servers that close cleanly. No message is lost.
func TestReconnect(t *testing.T) {
	cases := loadCases{}
	add := func(name string, handle handler, cfg Config, want string) {
		cases[name] = loadCase{serverStarter(handle), cfg, "", want + " lost==0 unanswered==0", "", checkReconnect}
	}
	each := func(change func(*Config)) Config {
		cfg := httpConfig(9)
		change(&cfg)
		return cfg
	}
	add("announced", respondAndClose(responseKept, responseKept, responseClosed), httpConfig(9), "reconnected>=40 resent==0")
	add("each", respondAndClose(responseClosed), httpConfig(9), "reconnected>=160 resent==0")
	add("to the end", respondAndClose(responseKept, responseToEnd), httpConfig(9), "reconnected>=70 resent==0")
	add("idle", respondAndClose(responseKept), each(func(c *Config) { c.Messages, c.Think = 2, 100*time.Millisecond }), "reconnected>=20 resent==0")
	add("pipeline", respondAndClose(responseKept, responseKept, responseClosed), each(func(c *Config) { c.Pipeline = 8 }), "reconnected>=40 resent>0")
	add("gracefully", respondAndClose(responseKept, responseClosed), each(func(c *Config) { c.Graceful, c.Pipeline = true, 2 }), "reconnected>=70")
	add("TLS", withTLS(newServerTLS(), respondAndClose(responseKept, responseClosed)), each(func(c *Config) { c.TLS = newClientTLS() }), "reconnected>=70")
	const many = 2 * maxHalfOpen // more at once than may be dialed at once
	add("many", respondAndClose(responseClosed), each(func(c *Config) { c.Messages, c.Connections = 2, many }), fmt.Sprintf("reconnected>=%d", many))
	cases.run(t)
}

func checkReconnect(t *testing.T, r *Result, _ *eventLog) {
	if r.Connected != r.Connections || r.Connect.Count != int64(r.Connections)+r.Reconnected || r.Bytes.InFlight != 0 {
		t.Errorf("%d connected, reconnected %d times; %d times to connect; %+v", r.Connected, r.Reconnected, r.Connect.Count, r.Bytes)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "times, when the server ended keep-alive") {
		t.Errorf("%v; the text does not name it:\n%s", err, &text)
	}
}

// TestReconnectTarget reconnects to the target that has closed, including a unix socket.
func TestReconnectTarget(t *testing.T) {
	t.Parallel()
	one, two := startTestServer(t, respondAndClose(responseClosed)), startTestServer(t, respondAndClose(slices.Repeat([]string{responseKept}, 100)...))
	three := startTestServerAt(t, "unix", filepath.Join(t.TempDir(), "s"), respondAndClose(responseClosed))
	cfg := httpConfig(10)
	cfg.Target, cfg.Also, cfg.Connections = one.addr(), []string{two.addr(), "unix:" + three.addr()}, 6
	r := runToEnd(t, cfg)
	if r.Err() != nil || r.Reconnected < 36 || two.accepted() != 2 || one.accepted() < 20 || three.accepted() < 20 {
		t.Errorf("%v; reconnected %d times; the servers saw %d, %d and %d connections",
			r.Err(), r.Reconnected, one.accepted(), two.accepted(), three.accepted())
	}
}

// TestReconnectOpenLoop checks that a plan continues while a connection is replaced: each message
// is answered, and its latency counts from its planned time.
func TestReconnectOpenLoop(t *testing.T) {
	t.Parallel()
	for _, each := range []bool{false, true} {
		const wait = 50
		behind := make(chan struct{})
		catchUp := sync.OnceFunc(func() { close(behind) })
		defer catchUp()
		s := startTestServer(t, func(c net.Conn, n int) {
			if n == 2 {
				<-behind
			}
			respondAndClose(responseKept, responseKept, responseClosed)(c, n)
		})
		r := runToEnd(t, Config{
			Target: s.addr(), Connections: 1, Pipeline: 4, Match: matchHTTP,
			Rate: Rate{PerSecond: 500, Each: each}, Duration: 300 * time.Millisecond, ProgressEvery: 20 * time.Millisecond,
			Observe: func(e Event) {
				if e.Interval != nil && e.Interval.Waiting >= wait {
					catchUp()
				}
			},
		})
		if r.Err() != nil || r.Intended != 150 || r.Latency.Count != 150 || r.Service.Count != 150 || r.Reconnected < 49 {
			t.Errorf("each %v: %v; %d intended, %d measured and %d, reconnected %d times", each, r.Err(), r.Intended, r.Latency.Count, r.Service.Count, r.Reconnected)
		}
		if least := wait / 2 * time.Second / 500; r.Latency.P90 < least {
			t.Errorf("each %v: 90%% of the latencies are up to %v, want at least %v", each, r.Latency.P90, least)
		}
	}
}

// TestReconnectFails checks the limit of attempts to replace a connection, which is then lost.
func TestReconnectFails(t *testing.T) {
	t.Parallel()
	all := make(chan struct{})
	s := startTestServer(t, func(c net.Conn, n int) {
		<-all
		respondAndClose(responseClosed)(c, n)
	})
	cfg := httpConfig(5)
	cfg.Target, cfg.Connections = s.addr(), 6
	cfg.Observe = func(e Event) {
		if e.Phase == Connected {
			testkit.WaitFor(t, "all connections to be accepted", func() bool { return s.accepted() == 6 })
			s.ln.Close()
			close(all)
		}
	}
	r := runToEnd(t, cfg)
	const cause = "reconnecting: connection refused"
	if r.Lost[cause] != 6 || len(r.ConnectErrors) > 0 || r.Answered != 6 || r.Reconnected != 0 || r.Took < (maxReconnects-1)*dialRetryInterval {
		t.Errorf("lost %v, failed %v, %d answers, reconnected %d times, in %v; want 6 %q, of %d attempts each",
			r.Lost, r.ConnectErrors, r.Answered, r.Reconnected, r.Took, cause, maxReconnects)
	}
}

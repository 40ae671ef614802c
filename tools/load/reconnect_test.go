package load

import (
	"bufio"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

const (
	responseKept   = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
	responseClosed = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
	responseToEnd  = "HTTP/1.1 200 OK\r\n\r\nhi, until the end"
)

// byRequest serves a connection with these responses, one to each request, and closes it
// behind the last.
func byRequest(responses ...string) func(net.Conn) {
	return func(c net.Conn) {
		in := bufio.NewReader(c)
		for _, response := range responses {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			if _, err := io.WriteString(c, response); err != nil {
				return
			}
		}
		// What else has been sent would make the kernel reset the connection.
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
		_, _ = io.Copy(io.Discard, in)
	}
}

// requests is a Config that exchanges HTTP requests with a server.
func requests(addr, model string, messages int64) Config {
	return Config{Target: addr, Model: model, Connections: 6, Loops: 2, Match: matchHTTP, Messages: messages}
}

// TestReconnect has servers that end keep-alive in order. No message is lost.
func TestReconnect(t *testing.T) {
	t.Parallel()
	const messages = 20
	for name, test := range map[string]struct {
		responses []string
		pipeline  int
		think     time.Duration
		messages  int64
	}{
		"announced":           {responses: []string{responseKept, responseKept, responseClosed}},
		"each":                {responses: []string{responseClosed}},
		"announced, pipeline": {responses: []string{responseKept, responseKept, responseClosed}, pipeline: 8},
		"to the end":          {responses: []string{responseKept, responseToEnd}},
		"idle":                {responses: []string{responseKept}, think: time.Second / 2, messages: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachModel(t, func(t *testing.T, model string) {
				s := serve(t, byRequest(test.responses...))
				cfg := requests(s.addr(), model, max(test.messages, messages-messages*min(test.messages, 1)))
				cfg.Pipeline, cfg.Think = test.pipeline, test.think
				r := check(t, cfg)
				all := 6 * cfg.Messages
				times := all/int64(len(test.responses)) - 6
				if err := r.Err(); err != nil || r.Answered != all || r.Unanswered != 0 || r.Connected != 6 {
					t.Errorf("%v; %d of %d answered, %d not, %d connected", err, r.Answered, all, r.Unanswered, r.Connected)
				}
				if r.Reconnected < times || r.Connect.Count != 6+r.Reconnected {
					t.Errorf("reconnected %d times, want at least %d; %d times to connect; the server saw %d", r.Reconnected, times, r.Connect.Count, s.accepted())
				}
				if test.pipeline > 1 == (r.Resent == 0) || r.Latency.Count != all {
					t.Errorf("%d messages sent again; %d latencies of %d", r.Resent, r.Latency.Count, all)
				}
				if b := r.Bytes; b.Sent != b.Answered+b.CutOff || b.InFlight != 0 {
					t.Errorf("bytes do not add up: %+v", b)
				}
				var text strings.Builder
				if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "times, when the server ended keep-alive") {
					t.Errorf("%v; the text does not name it:\n%s", err, &text)
				}
			})
		})
	}
}

// TestReconnectGracefully ends each socket by a FIN.
func TestReconnectGracefully(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		cfg := requests(serve(t, byRequest(responseKept, responseClosed)).addr(), model, 9)
		cfg.Graceful, cfg.Pipeline = true, 2
		if r := check(t, cfg); r.Err() != nil || r.Answered != 6*9 || r.Reconnected < 6*4 {
			t.Errorf("%v; %d answers, reconnected %d times", r.Err(), r.Answered, r.Reconnected)
		}
	})
}

// TestReconnectTLS reconnects with another handshake.
func TestReconnectTLS(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") }))
		s.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that the run's end breaks off
		s.StartTLS()
		defer s.Close()
		cfg := requests(s.Listener.Addr().String(), model, 4)
		cfg.TLS = &TLS{Insecure: true}
		if r := check(t, cfg); r.Err() != nil || r.Answered != 6*4 || r.Reconnected < 6*3 {
			t.Errorf("%v; %d answers, reconnected %d times", r.Err(), r.Answered, r.Reconnected)
		}
	})
}

// TestReconnectTarget goes back to the target that has closed, a unix socket too.
func TestReconnectTarget(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		one, two := serve(t, byRequest(responseClosed)), serve(t, byRequest(repeat(responseKept, 100)...))
		three := serveAt(t, "unix", filepath.Join(t.TempDir(), "s"), byRequest(responseClosed))
		cfg := requests(one.addr(), model, 10)
		cfg.Also = []string{two.addr(), "unix:" + three.addr()}
		r := check(t, cfg)
		if r.Err() != nil || r.Answered != 60 || r.Reconnected < 36 || two.accepted() != 2 || one.accepted() < 20 || three.accepted() < 20 {
			t.Errorf("%v; %d answers, reconnected %d times; the servers saw %d, %d and %d connections", r.Err(), r.Answered, r.Reconnected, one.accepted(), two.accepted(), three.accepted())
		}
	})
}

func repeat(text string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = text
	}
	return all
}

// TestReconnectOpenLoop has a plan go on while a connection is replaced: each message is
// answered, and its latency counts from when it was to be sent.
func TestReconnectOpenLoop(t *testing.T) {
	t.Parallel()
	for _, each := range []bool{false, true} {
		eachModel(t, func(t *testing.T, model string) {
			const wait = 50
			behind := make(chan struct{})
			var once sync.Once
			catchUp := func() { once.Do(func() { close(behind) }) }
			defer catchUp()
			var conns atomic.Int64
			s := serve(t, func(c net.Conn) {
				if conns.Add(1) == 3 {
					<-behind
				}
				byRequest(responseKept, responseKept, responseClosed)(c)
			})
			r := check(t, Config{
				Target: s.addr(), Model: model, Connections: 1, Pipeline: 4, Match: matchHTTP,
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
		})
	}
}

// TestReconnectLifetime has connections whose servers close often, and whose lifetime ends.
func TestReconnectLifetime(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		var conns atomic.Int64
		s := serve(t, func(c net.Conn) {
			if conns.Add(1)%2 == 0 {
				byRequest(responseKept, responseClosed)(c)
			} else {
				byRequest(slices.Repeat([]string{responseKept}, 10_000)...)(c)
			}
		})
		cfg := requests(s.addr(), model, 0)
		cfg.Lifetime, cfg.Think = 100*time.Millisecond, 5*time.Millisecond
		reconnected, closed := int64(0), int64(0)
		r := runUntil(t, cfg, func(e Event) bool {
			if e.Interval != nil {
				reconnected += e.Interval.Reconnected
				closed += e.Interval.Closed
			}
			return reconnected > 20 && closed > 5
		})
		if r.Unanswered != 0 || len(r.Lost) > 0 {
			t.Errorf("%d unanswered, lost %v", r.Unanswered, r.Lost)
		}
	})
}

// TestNotInOrder has servers close in ways that are losses: with a request outstanding,
// and before any response.
func TestNotInOrder(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]func(net.Conn){
		"a request is outstanding": func(c net.Conn) {
			in := bufio.NewReader(c)
			_, _ = http.ReadRequest(in)
			_, _ = io.WriteString(c, responseKept)
			_, _ = http.ReadRequest(in)
		},
		"in a response": func(c net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, strings.TrimSuffix(responseKept, "i"))
		},
		"no response": func(net.Conn) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachModel(t, func(t *testing.T, model string) {
				s := serve(t, handle)
				r := check(t, requests(s.addr(), model, 5))
				if n := sumCauses(r.Lost); n != 6 || r.Reconnected != 0 || s.accepted() != 6 {
					t.Errorf("lost %v, reconnected %d times, the server saw %d connections; want 6 lost", r.Lost, r.Reconnected, s.accepted())
				}
			})
		})
	}
}

// TestNoReconnect names keep-alive as the cause.
func TestNoReconnect(t *testing.T) {
	t.Parallel()
	for _, response := range []string{responseClosed, responseToEnd} {
		eachModel(t, func(t *testing.T, model string) {
			s := serve(t, byRequest(response))
			cfg := requests(s.addr(), model, 5)
			cfg.NoReconnect, cfg.Pipeline = true, 2
			r := check(t, cfg)
			if r.Lost[errKeepAlive.Error()] != 6 || r.Reconnected != 0 || r.Answered != 6 || r.Unanswered != 6 || s.accepted() != 6 {
				t.Errorf("lost %v, reconnected %d times, %d answers, %d missing, the server saw %d connections", r.Lost, r.Reconnected, r.Answered, r.Unanswered, s.accepted())
			}
			if err := r.Err(); err == nil || !strings.Contains(err.Error(), "keep-alive") {
				t.Errorf("error %v; expected it to name keep-alive", err)
			}
		})
	}
}

// TestReconnectFails bounds the attempts to replace a connection, and counts it as lost.
func TestReconnectFails(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		all := make(chan struct{})
		s := serve(t, func(c net.Conn) {
			<-all
			byRequest(responseClosed)(c)
		})
		cfg := requests(s.addr(), model, 5)
		cfg.Observe = func(e Event) {
			if e.Phase == Connected {
				testkit.WaitFor(t, "all connections to be accepted", func() bool { return s.accepted() == 6 })
				s.ln.Close()
				close(all)
			}
		}
		r := check(t, cfg)
		const cause = "reconnecting: connection refused"
		if r.Lost[cause] != 6 || len(r.ConnectErrors) > 0 || r.Answered != 6 || r.Reconnected != 0 {
			t.Errorf("lost %v, failed %v, %d answers, reconnected %d times; want 6 %q", r.Lost, r.ConnectErrors, r.Answered, r.Reconnected, cause)
		}
		if r.Took < (maxReconnects-1)*retryEvery {
			t.Errorf("gave up after %v, want %d attempts, %v apart", r.Took, maxReconnects, retryEvery)
		}
	})
}

// TestReconnectMany has more connections close at once than are dialled at a time.
func TestReconnectMany(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		const conns = 2 * halfOpen
		testkit.ReserveDescriptors(t, 2*conns+100)
		cfg := requests(serve(t, byRequest(responseClosed)).addr(), model, 2)
		cfg.Connections = conns
		r := check(t, cfg)
		if r.Err() != nil || r.Answered != 2*conns || r.Reconnected < conns {
			t.Errorf("%v; %d answers, reconnected %d times", r.Err(), r.Answered, r.Reconnected)
		}
	})
}

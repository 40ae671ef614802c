package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/myriad-go/myriad/internal/testkit"
)

// TestFlood sends without waiting for answers, which come all the same.
func TestFlood(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		for name, handle := range map[string]func(net.Conn){"silent": silent, "echo": echo} {
			if name == "echo" && model == "goroutine" {
				continue // reads and writes in turn; see Config.Flood
			}
			s := serve(t, handle)
			enough := func(e Event) bool { return e.Snapshot.Sent >= 10_000 }
			r := runUntil(t, Config{Target: s.addr(), Connections: 5, Model: model, Flood: true}, enough)
			if b := r.Bytes; b.Sent < 10_000*64 || b.Sent%64 != 0 || r.Answered != 0 || r.Unanswered != 0 {
				t.Errorf("%s: %+v, %d answers, %d missing", name, b, r.Answered, r.Unanswered)
			}
			if name == "silent" && r.Bytes.Received != 0 {
				t.Errorf("received %d bytes", r.Bytes.Received)
			}
		}
	})
	t.Run("echo", func(t *testing.T) {
		s := serve(t, echo)
		received := int64(0)
		runUntil(t, Config{Target: s.addr(), Connections: 5, Flood: true}, func(e Event) bool {
			if e.Interval != nil {
				received += e.Interval.BytesReceived
			}
			return received > 10_000
		})
	})
}

// TestAhead has each message sent with a part of the next one, which completes it: the server gets
// the same bytes as ever, and never stands at the end of a message when it has answered.
func TestAhead(t *testing.T) {
	t.Parallel()
	const ahead, messages, conns = 10, 5000, 3 // more than lie in memory
	eachModel(t, func(t *testing.T, model string) {
		for _, pipeline := range []int{1, 3} {
			var mu sync.Mutex
			var all []string
			s := serve(t, func(c net.Conn) {
				var got []byte
				in, piece := bufio.NewReader(c), make([]byte, 4096)
				for {
					n, err := in.Read(piece)
					whole := bytes.Count(got, []byte("\n"))
					got = append(got, piece[:n]...)
					if rest := len(got) % 64; n > 0 && rest != ahead && pipeline == 1 {
						t.Errorf("%d bytes of a message are there, want %d", rest, ahead)
					}
					now := bytes.Count(got, []byte("\n"))
					_, _ = c.Write(got[whole*64 : now*64])
					if err != nil {
						break
					}
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, string(got))
			})
			r := check(t, Config{Target: s.addr(), Connections: conns, Model: model, Pipeline: pipeline, Messages: messages, Ahead: ahead})
			if r.Answered != conns*messages || r.Unanswered != 0 {
				t.Errorf("%d answered, %d not; want %d", r.Answered, r.Unanswered, conns*messages)
			}
			s.ln.Close()
			s.wait.Wait()
			plain := newRing(&Config{Size: 64})
			for _, got := range all {
				if len(got) != messages*64+ahead {
					t.Errorf("%d bytes were sent, want %d", len(got), messages*64+ahead)
				}
				if i := strings.Index(string(plain.text.bytes), got[:64]); i < 0 || !strings.HasPrefix(strings.Repeat(string(plain.text.bytes[i:])+string(plain.text.bytes[:i]), messages/1024+1), got) {
					t.Error("the bytes are not those of the messages")
				}
			}
		}
	})
}

// runUntil runs until what the run tells is enough.
func runUntil(t *testing.T, cfg Config, enough func(Event) bool) *Result {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cfg.Duration, cfg.ProgressEvery = time.Minute, 10*time.Millisecond
	cfg.Observe = func(e Event) {
		if enough(e) {
			cancel(why)
		}
	}
	r, err := Run(ctx, cfg)
	if !errors.Is(err, why) || r.Err() != nil {
		t.Fatalf("%v, %v; want it to be enough", err, r.Err())
	}
	return r
}

// TestThink waits between an answer and the next message.
func TestThink(t *testing.T) {
	t.Parallel()
	const think = 50 * time.Millisecond
	eachModel(t, func(t *testing.T, model string) {
		s := serve(t, echo)
		cfg := Config{Target: s.addr(), Connections: 10, Model: model, Think: think, Pipeline: 2}
		r := runUntil(t, cfg, func(e Event) bool { return e.Snapshot.Sent >= 100 })
		if most := 10 * 2 * (2 + int64(r.Window/think)); r.Sent < 100 || r.Sent > most {
			t.Errorf("%d messages in %v, want 100 to %d", r.Sent, r.Window, most)
		}
	})
}

// TestLifetime closes connections in their traffic and opens others.
func TestLifetime(t *testing.T) {
	t.Parallel()
	const conns, lifetime = 20, 100 * time.Millisecond
	for _, graceful := range []bool{false, true} {
		eachModel(t, func(t *testing.T, model string) {
			s := serve(t, echo)
			closed, end := int64(0), time.Duration(0)
			r := runUntil(t, Config{Target: s.addr(), Connections: conns, Model: model, Graceful: graceful, Lifetime: lifetime}, func(e Event) bool {
				if e.Interval != nil {
					closed += e.Interval.Closed
					end = e.Interval.To
				}
				return closed >= 3*conns
			})
			if most := conns * int64(end/lifetime); r.Closed != closed || r.Closed < 3*conns || r.Closed > most {
				t.Errorf("%d closed, %d in the intervals, want %d to %d in %v", r.Closed, closed, 3*conns, most, end)
			}
			if r.Connected < int(r.Closed) || r.Connected > int(r.Closed)+conns || r.Answered == 0 {
				t.Errorf("%d connected, %d closed, %d answered", r.Connected, r.Closed, r.Answered)
			}
			if r.Connect.Count != int64(r.Connected) || r.FirstByte.Count == 0 {
				t.Errorf("connect times of %d, first bytes of %d, connected %d", r.Connect.Count, r.FirstByte.Count, r.Connected)
			}
			if b := r.Bytes; b.Sent != b.Answered+b.InFlight+b.CutOff || b.InFlight != 0 {
				t.Errorf("bytes %+v", b)
			}
		})
	}
}

// TestRamp opens connections little by little, with traffic on those that are
// there: never more than there should be by then.
func TestRamp(t *testing.T) {
	t.Parallel()
	s := serve(t, echo)
	ramp := Ramp{From: 10, To: 110, Over: 500 * time.Millisecond}
	was := int64(0)
	r := runUntil(t, Config{Target: s.addr(), Ramp: ramp}, func(e Event) bool {
		if e.Interval == nil || e.Interval.Stage == "close" {
			return false
		}
		i := e.Interval
		most := ramp.From + int(float64(ramp.To-ramp.From)*float64(i.To)/float64(ramp.Over))
		if i.Open < was || i.Open > int64(min(most, ramp.To)) {
			t.Errorf("%d open after %v, want %d to %d", i.Open, i.To, was, min(most, ramp.To))
		}
		was = i.Open
		return i.Open == int64(ramp.To) && e.Snapshot.Answered > 0
	})
	if r.Connected != ramp.To || r.Answered == 0 {
		t.Errorf("%d connected, %d answered", r.Connected, r.Answered)
	}
}

// TestHold sends nothing and counts what the server says.
func TestHold(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		s := serve(t, func(c net.Conn) {
			_, _ = c.Write([]byte("hello"))
			silent(c)
		})
		received := int64(0)
		r := runUntil(t, Config{Target: s.addr(), Connections: 50, Model: model, Hold: true}, func(e Event) bool {
			if e.Interval != nil {
				received += e.Interval.BytesReceived
			}
			return received >= 250
		})
		if r.Connected != 50 || r.Sent != 0 || r.Bytes.Received != 250 || r.Mode != "hold" || !r.NoReply {
			t.Errorf("%+v", r)
		}
	})
}

// recorder answers lines with themselves and keeps what each connection said.
type recorder struct {
	mu    sync.Mutex
	heard map[string]int // all that a connection said, and how often
}

func (r *recorder) serve(c net.Conn) {
	var all bytes.Buffer
	_, _ = io.Copy(onlyWriter{c}, io.TeeReader(onlyReader{c}, &all))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.heard == nil {
		r.heard = map[string]int{}
	}
	r.heard[all.String()]++
}

func (r *recorder) connections() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.heard {
		n += k
	}
	return n
}

// TestSeed sends the same bytes on the same connections from the same seed, others
// from another, on every model.
func TestSeed(t *testing.T) {
	t.Parallel()
	const conns = 12
	say := func(t *testing.T, model string, seed uint64, ws bool) map[string]int {
		var rec recorder
		s := serve(t, rec.serve)
		cfg := Config{Target: s.addr(), Connections: conns, Model: model, Seed: seed, Messages: 5, Graceful: true,
			Message: `\{connection.uid} \{seq} \{hex 7} \{random 5}` + "\n", First: "hello \\{connection.uid}\n"}
		check(t, cfg)
		testkit.WaitForFunc(t, func() bool { return rec.connections() >= conns }, func() string {
			return fmt.Sprintf("%d connections ended, want %d", rec.connections(), conns)
		})
		return rec.heard
	}
	eachModel(t, func(t *testing.T, model string) {
		a, b, other := say(t, model, 7, false), say(t, model, 7, false), say(t, model, 8, false)
		if fmt.Sprint(a) != fmt.Sprint(b) || len(a) != conns {
			t.Errorf("the same seed said\n%v\nand\n%v", a, b)
		}
		if fmt.Sprint(a) == fmt.Sprint(other) {
			t.Error("another seed said the same")
		}
		for text := range a {
			lines := strings.SplitAfter(text, "\n")
			if len(lines) != 6 || !strings.HasPrefix(lines[0], "hello ") || !strings.Contains(lines[1], " 1 ") {
				t.Errorf("said %q", text)
			}
		}
	})
}

// TestMatch tells answers apart whose content is not known.
func TestMatch(t *testing.T) {
	answering := func(answer string) func(net.Conn) {
		return func(c net.Conn) {
			lines := bufio.NewScanner(c)
			for k := 0; lines.Scan(); k++ {
				_, _ = fmt.Fprintf(c, answer, k)
			}
		}
	}
	for _, test := range []struct{ match, answer string }{
		{"delimiter:\\r\\n", "it is %d\r\n"},
		{"marker:END", "some %d text END and"},
		{"bytes:8", "%08d"},
		{"length:1", "\x06%06d"},
		{"http", "HTTP/1.1 200 OK\r\nX-Number: %d\r\nContent-Length: 2\r\n\r\nhi"},
	} {
		t.Run(test.match, func(t *testing.T) {
			t.Parallel()
			eachModel(t, func(t *testing.T, model string) {
				s := serve(t, answering(test.answer))
				r := check(t, Config{Target: s.addr(), Connections: 4, Model: model, Message: "ask\n", Match: test.match, Messages: 20, Pipeline: 3})
				if r.Answered != 80 {
					t.Errorf("%d answers, want 80", r.Answered)
				}
			})
		})
	}
	t.Run("too many", func(t *testing.T) {
		s := serve(t, answering("%d\n\n"))
		r, err := Run(t.Context(), Config{Target: s.addr(), Connections: 1, Message: "ask\n", Match: "delimiter:\\n", Messages: 20})
		if err != nil || r.Mismatched != 1 || r.Err() == nil || !strings.Contains(r.Err().Error(), "more answers than messages") {
			t.Errorf("%v, %v", err, r.Err())
		}
	})
	t.Run("status", func(t *testing.T) {
		s := serve(t, answering("HTTP/1.1 503 Busy\r\nX-Number: %d\r\nContent-Length: 0\r\n\r\n"))
		r, err := Run(t.Context(), Config{Target: s.addr(), Connections: 2, Message: "GET\n", Match: "http", Messages: 5})
		if err != nil || r.BadStatus["HTTP status 503"] != 10 || r.Answered != 10 || r.Err() == nil {
			t.Errorf("%v, %v, %d answers, %v", err, r.BadStatus, r.Answered, r.Err())
		}
	})
}

// webSocketServer sends messages back by another library, in fragments, with a ping now
// and then, and closes a connection after so many of them, 0 for never.
func webSocketServer(t *testing.T, closeAfter int) (addr string) {
	ctx, cancel := context.WithCancel(context.Background())
	var conns, pings sync.WaitGroup
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conns.Add(1)
		defer conns.Done()
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return // the client has been told
		}
		defer c.CloseNow()
		c.SetReadLimit(MaxMessage)
		for n := 1; ; n++ {
			kind, message, err := c.Read(ctx)
			if err != nil {
				return
			}
			if n%20 == 0 {
				pings.Go(func() { _ = c.Ping(ctx) })
			}
			out, err := c.Writer(ctx, kind)
			if err != nil {
				return
			}
			for piece := range slices.Chunk(message, 1000) {
				if _, err := out.Write(piece); err != nil {
					return
				}
			}
			if out.Close() != nil {
				return
			}
			if n == closeAfter {
				_ = c.Close(websocket.StatusNormalClosure, "enough")
				return
			}
		}
	}))
	t.Cleanup(func() {
		cancel()
		s.Close()
		conns.Wait()
		pings.Wait()
	})
	return s.Listener.Addr().String()
}

// TestWebSocket exchanges messages with a server of another library.
func TestWebSocket(t *testing.T) {
	for name, cfg := range map[string]Config{
		"echo":      {Pipeline: 2},
		"125 bytes": {Size: 125},
		"126 bytes": {Size: 126},
		"large":     {Size: 70_000},
		"frames":    {Match: matchFrames, Message: `\{seq} \{random 7}`},
		"template":  {Message: `\{uuid} \{seq}`, First: "hello", Pipeline: 3},
		"open loop": {Rate: Rate{PerSecond: 500}, Duration: 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachModel(t, func(t *testing.T, model string) {
				cfg := cfg
				cfg.Target, cfg.Model, cfg.Connections = webSocketServer(t, 0), model, 5
				if cfg.WebSocket == nil {
					cfg.WebSocket = &WebSocket{Path: "/chat?x=1", Header: http.Header{"Authorization": {"me"}}}
				}
				if cfg.Duration == 0 {
					cfg.Messages = 30
				}
				r := check(t, cfg)
				if want := max(5*cfg.Messages, r.Intended); r.Latency.Count != want || want < 100 || r.Connected != 5 || r.Err() != nil {
					t.Errorf("%v; %d answers, want %d: %+v", r.Err(), r.Latency.Count, want, r)
				}
			})
		})
	}
	t.Run("closed", func(t *testing.T) {
		r := check(t, Config{Target: webSocketServer(t, 7), Connections: 3, Messages: 30, WebSocket: &WebSocket{}})
		if r.Lost[errClosedFrame.Error()] != 3 || r.Answered != 21 {
			t.Errorf("lost %v, %d answers", r.Lost, r.Answered)
		}
	})
	t.Run("not a WebSocket", func(t *testing.T) {
		s := serve(t, func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 404 Not Found\r\n\r\n")) })
		r, err := Run(t.Context(), Config{Target: s.addr(), Connections: 3, WebSocket: &WebSocket{}})
		if err != nil || r.Connected != 0 || len(r.ConnectErrors) != 1 || !strings.Contains(fmt.Sprint(r.ConnectErrors), "404 Not Found") {
			t.Errorf("%v, %v", err, r.ConnectErrors)
		}
	})
}

// TestIntervals adds up to the result, to the byte.
func TestIntervals(t *testing.T) {
	t.Parallel()
	s := serve(t, echo)
	var sum Interval
	var was, cpu time.Duration
	var last Snapshot
	cfg := Config{Target: s.addr(), Connections: 5, Pipeline: 3, Duration: 300 * time.Millisecond, ProgressEvery: 50 * time.Millisecond}
	cfg.Observe = func(e Event) {
		last = e.Snapshot
		if e.Phase != Progress {
			return
		}
		i := e.Interval
		if i.From != was || i.To <= i.From || i.Stage == "" {
			t.Errorf("an interval from %v to %v, %q, after one to %v", i.From, i.To, i.Stage, was)
		}
		was = i.To
		cpu += i.Generator.CPU()
		sum.Opened += i.Opened
		sum.Sent += i.Sent
		sum.Answered += i.Answered
		sum.BytesSent += i.BytesSent
		sum.BytesReceived += i.BytesReceived
		sum.Latency.Count += i.Latency.Count
		sum.Connect.Count += i.Connect.Count
	}
	r, err := Run(context.Background(), cfg)
	if err != nil || r.Err() != nil {
		t.Fatal(err, r.Err())
	}
	want := Interval{
		Opened: 5, Counts: Counts{Sent: last.Sent, Answered: last.Sent, BytesSent: r.Bytes.Sent, BytesReceived: r.Bytes.Received},
		Latency: Latency{Count: last.Sent}, Connect: Latency{Count: r.Connect.Count},
	}
	if !reflect.DeepEqual(sum, want) || r.Bytes.Sent != 64*sum.Sent || r.Bytes.Answered != r.Bytes.Sent || sum.Answered < r.Answered {
		t.Errorf("intervals have %+v, want %+v; the result %+v", sum, want, r)
	}
	if cpu == 0 {
		t.Error("no processor time in any interval")
	}
}

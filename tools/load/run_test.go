package load

import (
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// check runs a load and fails the test at an error of Run itself. Where a test does not
// say otherwise it has patience, for a machine that has much else to do.
func check(t *testing.T, cfg Config) *Result {
	t.Helper()
	setDefault(&cfg.ConnectTimeout, time.Minute)
	setDefault(&cfg.Drain, time.Minute)
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	return r
}

// slower is by how much the times of a run are longer: not at all at first, and then
// twice as long each time that a test goes on because it has come to nothing within
// them. How much that takes depends on what else the machine has to do. A test that
// never breaks off has failed.
func slower(t *testing.T) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		t.Helper()
		for times := time.Duration(1); times <= 128; times *= 2 {
			if !yield(times) {
				return
			}
		}
		t.Error("128 times the time was not enough")
	}
}

func TestDuration(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		for times := range slower(t) {
			s := serve(t, echo)
			window := times * 100 * time.Millisecond
			r := check(t, Config{
				Target: s.addr(), Model: model, Loops: 2, Connections: 100, Pipeline: 4,
				Warmup: 20 * time.Millisecond, Duration: window,
			})
			if n := s.accepted(); n != 100 || r.Connected != 100 || r.Window != window {
				t.Errorf("connected %d, server saw %d connections, window is %v of %v", r.Connected, n, r.Window, window)
			}
			if err := r.Err(); err != nil {
				t.Error(err)
			}
			if r.Answered > 0 {
				checkDuration(t, r)
				break
			}
		}
	})
}

func checkDuration(t *testing.T, r *Result) {
	t.Helper()
	if r.Unanswered != 0 {
		t.Errorf("answered %d, unanswered %d", r.Answered, r.Unanswered)
	}
	if r.Latency.Count != r.Answered || r.Latency.Min > r.Latency.P50 || r.Latency.P50 > r.Latency.Max || r.Latency.Max == 0 {
		t.Errorf("latency %+v of %d answers", r.Latency, r.Answered)
	}
	if r.BytesSent != 64*r.Sent || r.BytesReceived == 0 {
		t.Errorf("%d bytes sent in %d messages, %d received", r.BytesSent, r.Sent, r.BytesReceived)
	}
}

func TestMessages(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"lines":      {Size: 2, Pipeline: 3, Messages: 7},
		"one":        {Messages: 1},
		"few":        {Messages: 2, Pipeline: 100},
		"text":       {Message: "ping", Pipeline: 1024, Messages: 3000},
		"large":      {Size: 300_001, Pipeline: 3, Messages: 6, Connections: 2},
		"hold":       {Messages: 5, HoldBefore: time.Millisecond, HoldAfter: time.Millisecond},
		"gracefully": {Messages: 5, Graceful: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachModel(t, func(t *testing.T, model string) {
				cfg := cfg
				cfg.Target, cfg.Model = serve(t, echo).addr(), model
				setDefault(&cfg.Connections, 20)
				r := check(t, cfg)
				if err := r.Err(); err != nil {
					t.Error(err)
				}
				want := int64(cfg.Connections) * cfg.Messages
				bytes := want * int64(cfg.filled().messageSize())
				if r.Sent != want || r.Answered != want || r.Latency.Count != want || r.BytesSent != bytes || r.BytesReceived != bytes {
					t.Errorf("%d messages of %d bytes in all: got %+v", want, bytes, r)
				}
			})
		})
	}
}

func TestEvents(t *testing.T) {
	s := serve(t, echo)
	var got []Phase
	var last Event
	cfg := Config{Target: s.addr(), Connections: 3, Messages: 2, Observe: func(e Event) {
		if e.Phase != Progress {
			got, last = append(got, e.Phase), e
		}
	}}
	r := check(t, cfg)
	if want := []Phase{Began, Connected, Measuring, Exchanged, Measured, Done}; !slices.Equal(got, want) {
		t.Errorf("phases %v, want %v", got, want)
	}
	if last.Result != r || last.Snapshot != (Snapshot{Sent: 6, Answered: 6}) {
		t.Errorf("last event %+v", last)
	}
}

// TestWrongByte has a server that changes one byte of one answer.
func TestWrongByte(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		var one atomic.Bool
		s := serve(t, func(c net.Conn) {
			message := make([]byte, 64)
			for n := 0; ; n++ {
				if _, err := io.ReadFull(c, message); err != nil {
					return
				}
				if n == 2 && one.CompareAndSwap(false, true) {
					message[40] = 0xff
				}
				if _, err := c.Write(message); err != nil {
					return
				}
			}
		})
		r := check(t, Config{Target: s.addr(), Model: model, Connections: 5, Messages: 10})
		if r.Mismatched != 1 || len(r.Lost) != 0 || r.FirstMismatch == nil {
			t.Fatalf("got %+v", r)
		}
		m := *r.FirstMismatch
		if m.Message != 2 || m.Byte != 40 || !strings.HasPrefix(m.Got, `"\xff`) || len(m.Want) < 20 {
			t.Errorf("got %+v", m)
		}
		if r.Answered != 4*10+2 || r.Unanswered != 1 {
			t.Errorf("%d answered, %d unanswered", r.Answered, r.Unanswered)
		}
		if err := r.Err(); err == nil || !strings.Contains(err.Error(), `message 2, byte 40: got "\xff`) {
			t.Errorf("Err: %v", err)
		}
	})
}

// TestTooMuch has a server that answers twice.
func TestTooMuch(t *testing.T) {
	s := serve(t, func(c net.Conn) {
		message := make([]byte, 4)
		_, _ = io.ReadFull(c, message)
		_, _ = c.Write([]byte("pingping"))
		silent(c)
	})
	r := check(t, Config{Target: s.addr(), Message: "ping", Connections: 1, Messages: 1, HoldAfter: time.Minute})
	if r.Mismatched != 1 || r.FirstMismatch.Want != `""` || r.FirstMismatch.Got != `"ping"` {
		t.Errorf("got %+v, first %v", r, r.FirstMismatch)
	}
}

// TestLost has a server that closes some connections in the middle of it.
func TestLost(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		var n atomic.Int64
		s := serve(t, func(c net.Conn) {
			if n.Add(1) > 3 {
				echo(c)
				return
			}
			message := make([]byte, 64)
			_, _ = io.ReadFull(c, message)
			_, _ = c.Write(message)
			_, _ = io.ReadFull(c, message) // so that closing sends no reset
		})
		r := check(t, Config{Target: s.addr(), Model: model, Connections: 10, Messages: 100})
		if len(r.Lost) != 1 || r.Lost["closed by the server"] != 3 || r.Mismatched != 0 {
			t.Errorf("got %+v", r)
		}
		if r.Answered != 7*100+3 || r.Unanswered != 3 {
			t.Errorf("%d answered, %d unanswered", r.Answered, r.Unanswered)
		}
		if err := r.Err(); err == nil || !strings.Contains(err.Error(), "3 × closed by the server") {
			t.Errorf("Err: %v", err)
		}
	})
}

// TestAllLost ends the window early when the last connection is gone.
func TestAllLost(t *testing.T) {
	s := serve(t, func(c net.Conn) { _, _ = io.ReadFull(c, make([]byte, 64)) })
	r := check(t, Config{Target: s.addr(), Connections: 4, Duration: time.Hour})
	if r.Lost["closed by the server"] != 4 || r.Window >= time.Hour {
		t.Errorf("got %+v", r)
	}
}

func TestRefused(t *testing.T) {
	eachModel(t, func(t *testing.T, model string) {
		r := check(t, Config{Target: refusing(t), Model: model, Connections: 30})
		if r.Connected != 0 || len(r.ConnectErrors) != 1 || r.ConnectErrors["connection refused"] != 30 {
			t.Errorf("got %+v", r)
		}
		if err := r.Err(); err == nil || !strings.Contains(err.Error(), "30 × connection refused") {
			t.Errorf("Err: %v", err)
		}
	})
}

// TestUnanswered gives up the answers of a server that gives none, once it has had
// the time to ask for them.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"messages": {Messages: 2, Pipeline: 2},
		"duration": {Duration: 50 * time.Millisecond, Pipeline: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for times := range slower(t) {
				cfg := cfg
				cfg.Target, cfg.Connections, cfg.Duration, cfg.Drain = serve(t, silent).addr(), 3, times*cfg.Duration, times*30*time.Millisecond
				r := check(t, cfg)
				if r.Answered != 0 || r.Unanswered%2 != 0 || r.Unanswered > 6 || len(r.Lost) != 0 {
					t.Errorf("got %+v", r)
				}
				if r.Unanswered == 6 {
					if r.Err() == nil {
						t.Error("no error")
					}
					break
				}
			}
		})
	}
}

// TestUnprompted answers a server's heartbeats, waits for none at the end, and
// sees one that is wrong.
func TestUnprompted(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		var answers atomic.Int64
		s := serve(t, func(c net.Conn) {
			for message := make([]byte, 5); ; {
				if _, err := io.ReadFull(c, message); err != nil || string(message) != "pong\n" {
					return
				}
				if answers.Add(1) == 40 {
					_, _ = io.WriteString(c, "pang\n")
				}
				time.Sleep(time.Millisecond)
				_, _ = io.WriteString(c, "ping\n")
			}
		})
		cfg := Config{
			Target: s.addr(), Model: model, Connections: 5, Unprompted: true, Messages: 20,
			Message: "pong\n", Answer: "ping\n",
		}
		r := check(t, cfg)
		if r.Mismatched != 1 || !strings.HasPrefix(r.FirstMismatch.Got, `"ang\n`) || r.Bytes.Answered < 400 || r.Unanswered != 0 || len(r.Lost) != 0 {
			t.Errorf("got %+v, first %v", r, r.FirstMismatch)
		}
		cfg.Messages, cfg.Drain = 0, time.Hour
		cfg.Target = serve(t, silent).addr()
		for times := range slower(t) {
			cfg.Duration = times * 200 * time.Millisecond
			if r = check(t, cfg); r.Err() != nil || r.Bytes.Sent > 25 || r.Answered != 0 {
				t.Errorf("without a heartbeat: %v, got %+v", r.Err(), r)
			}
			if r.Bytes.Sent == 25 {
				break
			}
		}
		// A heartbeat is answered while others are still to be connected.
		answered := make(chan struct{}, 1)
		late := cfg
		late.Connections, late.ConnectRate, late.Duration = 2, 1, time.Millisecond
		late.Target = serve(t, func(c net.Conn) {
			message := make([]byte, 5)
			_, _ = io.ReadFull(c, message)
			_, _ = io.WriteString(c, "ping\n")
			if _, err := io.ReadFull(c, message); err == nil {
				select {
				case answered <- struct{}{}:
				default:
				}
			}
			silent(c)
		}).addr()
		early := false
		late.Observe = func(e Event) {
			if e.Phase == Connected {
				early = len(answered) > 0
			}
		}
		if r := check(t, late); r.Err() != nil || !early {
			t.Errorf("a second before the last connection: %v, answered %v, got %+v", r.Err(), early, r)
		}
		// What comes behind the window is not looked at.
		over := make(chan struct{})
		cfg.Target = serve(t, func(c net.Conn) {
			<-over
			_, _ = io.WriteString(c, "ping\nping\npang\n")
			silent(c)
		}).addr()
		cfg.HoldAfter, cfg.Observe = 200*time.Millisecond, func(e Event) {
			if e.Phase == Measured {
				close(over)
			}
		}
		if r := check(t, cfg); r.Err() != nil || r.Answered != 0 {
			t.Errorf("behind the window: %v, got %+v", r.Err(), r)
		}
	})
}

// TestCancel ends the context in each phase.
func TestCancel(t *testing.T) {
	t.Parallel()
	cause := errors.New("enough")
	at := func(p Phase) func(Event) bool { return func(e Event) bool { return e.Phase == p } }
	for name, test := range map[string]struct {
		when func(Event) bool
		cfg  Config
	}{
		"connecting": {func(e Event) bool { return e.Snapshot.Open > 0 }, Config{ConnectRate: 1, Connections: 100}},
		"hold":       {at(Connected), Config{HoldBefore: time.Hour}},
		"warm-up":    {func(e Event) bool { return e.Snapshot.Sent > 0 }, Config{Warmup: time.Hour}},
		"window":     {at(Measuring), Config{Duration: time.Hour}},
		"messages":   {at(Measuring), Config{Messages: 1 << 30}},
		"hold after": {at(Measured), Config{Messages: 1, HoldAfter: time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachModel(t, func(t *testing.T, model string) {
				for range slower(t) {
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					cfg := test.cfg
					cfg.Target, cfg.Model = serve(t, echo).addr(), model
					setDefault(&cfg.Connections, 10)
					cfg.ProgressEvery = 10 * time.Millisecond
					var done bool
					cfg.Observe = func(e Event) {
						if test.when(e) {
							cancel(cause)
						}
						done = e.Phase == Done && e.Result != nil
					}
					r, err := Run(ctx, cfg)
					if !errors.Is(err, cause) || r == nil || !r.Interrupted {
						t.Fatalf("got %+v, %v, want a result and %v", r, err, cause)
					}
					if !done || r.Connected == 0 || len(r.Lost) != 0 {
						t.Errorf("done is %v, result %+v", done, r)
					}
					if r.Unanswered == 0 { // answers had no more than a second
						break
					}
				}
			})
		})
	}
}

// TestCancelWithoutAnswers does not wait long for the answers of a server that
// gives none.
func TestCancelWithoutAnswers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := Run(ctx, Config{
		Target: serve(t, silent).addr(), Connections: 2, Duration: time.Hour, Drain: 20 * time.Millisecond,
		ProgressEvery: 10 * time.Millisecond,
		Observe: func(e Event) {
			if e.Phase == Progress && e.Snapshot.Sent == 2 {
				cancel()
			}
		},
	})
	if !errors.Is(err, context.Canceled) || r.Unanswered != 2 {
		t.Errorf("got %+v, %v", r, err)
	}
}

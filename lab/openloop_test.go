package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/myriad-go/myriad/internal/offer"
)

// answering serves until the test ends: answer is called with each line, its number
// on its connection, and gives the answer; "" is none, and an error ends the
// connection.
func answering(t *testing.T, answer func(line string, n int) (string, error)) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wait.Go(func() {
				defer conn.Close()
				lines := bufio.NewScanner(conn)
				for n := 0; lines.Scan(); n++ {
					text, err := answer(lines.Text(), n)
					if err != nil {
						return
					}
					if text != "" {
						fmt.Fprintln(conn, text)
					}
				}
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wait.Wait() })
	return ln.Addr().String()
}

// offered runs an open loop of 1,000 lines in 100 ms.
func runOpenLoop(t *testing.T, l *openLoop) offer.Result {
	t.Helper()
	l.rate, l.duration = 10_000, 100*time.Millisecond
	if l.drain == 0 {
		l.drain = 20 * time.Second
	}
	if l.deadline == 0 {
		l.deadline = time.Minute
	}
	if err := l.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var r offer.Result
	l.result(&r)
	if r.Offered+r.Missed != 1000 || r.Offered != r.Accepted+r.Rejected || r.Accepted != r.Finished+r.Unfinished {
		t.Errorf("the books are wrong: %+v", r)
	}
	return r
}

func TestOpenLoop(t *testing.T) {
	addr := answering(t, func(line string, n int) (string, error) {
		if n%4 == 3 {
			return busyAnswer, nil
		}
		return line, nil
	})
	l := &openLoop{addr: addr, conns: 10, depth: 1000}
	r := runOpenLoop(t, l)
	// 100 lines on each connection.
	if r.Offered != 1000 || r.Rejected != 250 || r.Finished != 750 || r.Good != 750 || l.wrong != 0 || l.lost.Load() != 0 {
		t.Errorf("got %+v, %d wrong (%v), %d lost", r, l.wrong, l.first, l.lost.Load())
	}
	if r.P50 <= 0 || r.P99 < r.P50 || r.Max < r.P99 || r.Elapsed < 100*time.Millisecond {
		t.Errorf("latencies: got %+v", r)
	}
}

// The time until an answer counts from when its line was due.
func TestOpenLoopDeadline(t *testing.T) {
	const wait = 20 * time.Millisecond
	addr := answering(t, func(line string, _ int) (string, error) { time.Sleep(wait); return line, nil })
	// 20 lines on each of 50 connections, due 5 ms apart, take 20 ms each: the
	// last one has waited for the others.
	r := runOpenLoop(t, &openLoop{addr: addr, conns: 50, depth: 1000, deadline: 100 * time.Millisecond})
	if r.Finished != 1000 || r.Good > 600 || r.Max < 20*(wait-5*time.Millisecond) || r.P50 < 5*wait {
		t.Errorf("got %+v, want the wait in the latencies", r)
	}
}

// An answer is good until its line's deadline, and not later.
func TestOpenLoopGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &openLoop{began: time.Now(), deadline: 100 * time.Millisecond, latency: hdrhistogram.New(1, maxOpenLatency.Microseconds(), 3)}
		time.Sleep(time.Second)
		for due, good := range map[time.Duration]uint64{900 * time.Millisecond: 1, 900*time.Millisecond - 1: 0} {
			l.ok, l.good = 0, 0
			if l.answer("job", "job", due); l.ok != 1 || l.good != good {
				t.Errorf("due at %v, answered after a second: %d right, %d good, want 1 and %d", due, l.ok, l.good, good)
			}
		}
	})
}

// A server that does not answer gets no more than the bound, and is waited for no
// longer than said.
func TestOpenLoopSilence(t *testing.T) {
	addr := answering(t, func(string, int) (string, error) { return "", nil })
	began := time.Now()
	r := runOpenLoop(t, &openLoop{addr: addr, conns: 7, depth: 16, drain: 250 * time.Millisecond})
	if r.Offered != 7*16 || r.Missed != 1000-7*16 || r.Unfinished != 7*16 || r.Finished != 0 {
		t.Errorf("got %+v, want 16 lines on each of 7 connections, without an answer", r)
	}
	if took := time.Since(began); took < 350*time.Millisecond || took > time.Minute {
		t.Errorf("took %v, want 350 ms", took)
	}
}

// Answers that are wrong, too many or of another line are seen.
func TestOpenLoopWrong(t *testing.T) {
	for name, answer := range map[string]func(line string, n int) (string, error){
		"another":   func(line string, n int) (string, error) { return fmt.Sprint(line[:len(line)-1], "x"), nil },
		"too early": func(line string, n int) (string, error) { return line + "\n" + line, nil },
		"busier":    func(string, int) (string, error) { return "busy!", nil },
	} {
		l := &openLoop{addr: answering(t, answer), conns: 1, depth: 1000}
		r := runOpenLoop(t, l)
		run := RunRecord{Overload: &OverloadRun{}}
		l.marks(&run)
		if l.wrong == 0 || r.Good > r.Finished-l.failed || len(run.Marks) == 0 || run.Marks[0].Rule != RuleMismatch || !strings.Contains(run.Marks[0].Detail, "first: got ") {
			t.Errorf("%s: got %+v, %d wrong, marks %v", name, r, l.wrong, run.Marks)
		}
	}
}

// A server that ends connections is not waited for.
func TestOpenLoopLost(t *testing.T) {
	addr := answering(t, func(line string, n int) (string, error) {
		if n == 5 {
			return "", errors.New("enough")
		}
		return line, nil
	})
	l := &openLoop{addr: addr, conns: 3, depth: 1000, drain: time.Hour}
	r := runOpenLoop(t, l)
	run := RunRecord{Overload: &OverloadRun{}}
	l.marks(&run)
	if l.lost.Load() != 3 || r.Finished != 15 || r.Missed == 0 || len(run.Marks) != 1 || run.Marks[0].Rule != RuleLost {
		t.Errorf("got %+v, %d lost, marks %v, want 5 answers on each of 3 connections", r, l.lost.Load(), run.Marks)
	}
}

func TestOpenLoopEnds(t *testing.T) {
	nobody, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	if err := (&openLoop{addr: nobody, conns: 3, depth: 1, rate: 1, duration: time.Hour}).run(t.Context()); err == nil || !strings.Contains(err.Error(), "connection 1 of 3") {
		t.Errorf("got %v, want that nobody is there", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	addr := answering(t, func(line string, _ int) (string, error) { cancel(errors.New("enough")); return line, nil })
	l := &openLoop{addr: addr, conns: 3, depth: 1, rate: 1, duration: time.Hour, drain: time.Hour}
	if err := l.run(ctx); err == nil || err.Error() != "enough" {
		t.Errorf("got %v, want the cause", err)
	}
	if l.sent.Load()+l.missed.Load() != 3600 {
		t.Errorf("%d sent, %d not, want 3600 together", l.sent.Load(), l.missed.Load())
	}
}

// A warm-up waits for all its answers, longer than the run that counts does, and
// counts nothing.
func TestOpenLoopWarm(t *testing.T) {
	var answered atomic.Uint64
	addr := answering(t, func(line string, n int) (string, error) {
		if n == 0 {
			time.Sleep(300 * time.Millisecond) // a server that is behind
		}
		answered.Add(1)
		return line, nil
	})
	l := &openLoop{addr: addr, conns: 10, depth: 1000, rate: 10_000, duration: time.Hour, drain: time.Millisecond}
	if err := l.warm(t.Context(), 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if n := answered.Load(); n != 1000 || l.sent.Load() != 0 || len(l.open) != 0 {
		t.Errorf("got %d answers, %d lines counted, %d connections; want 1000 answers and nothing else", n, l.sent.Load(), len(l.open))
	}
}

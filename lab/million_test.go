package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
)

func TestMillionOptions(t *testing.T) {
	var wrong ScenarioError
	for want, o := range map[string]MillionOptions{
		"-1 rounds":                           {Options: Options{Rounds: -1}},
		"-5 connections; expected 1 to":       {Connections: -5},
		"67108865 connections":                {Connections: 64<<20 + 1},
		"a hold of 1ms; expected 100ms to":    {Hold: time.Millisecond},
		"a hold of 25h0m0s":                   {Hold: 25 * time.Hour},
		"a heartbeat each 3s; expected":       {Hold: 2 * time.Second, Heartbeat: 3 * time.Second},
		"a heartbeat each 1ms":                {Heartbeat: time.Millisecond},
		"-1 loops; expected 0":                {Loops: -1},
		"1025 loops of the generator":         {LoadLoops: 1025},
		"-1 checks in flight; expected 1 to":  {InFlight: -1},
		"-1 bytes to stay free; expected 1":   {KeepFree: -1},
		`subject "none"; expected some of`:    {Names: []string{"none"}},
		`"^x$" matches no run; expected to`:   {Options: Options{Only: regexp.MustCompile("^x$")}},
		`"uring" matches no run; expected to`: {Options: Options{Only: regexp.MustCompile("uring")}, Names: []string{"epoll"}},
	} {
		r, err := Million(t.Context(), o)
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) || r != nil {
			t.Errorf("got %v, %v, want a ScenarioError with %q and no report", r, err, want)
		}
	}
	o, err := MillionOptions{}.filled()
	if err != nil || o.Rounds != 1 || o.Connections != 1_000_000 || o.Hold != 2*time.Minute || o.Heartbeat != time.Minute ||
		o.InFlight != 1000 || o.KeepFree < 1<<30 {
		t.Errorf("defaults: %+v, %v", o, err)
	}
	if took, err := MillionTakes(MillionOptions{}); err != nil || took < 6*time.Minute || took > 30*time.Minute {
		t.Errorf("it takes %v, %v, want 6 to 30 minutes", took, err)
	}
}

// Connections are held for so long that each gets its heartbeats, and all that is to
// happen meanwhile has its time.
func TestMillionTimes(t *testing.T) {
	for _, c := range []struct {
		hold, beat time.Duration
		beats      int
		held       time.Duration
	}{
		{2 * time.Minute, time.Minute, 2, 142500 * time.Millisecond},
		{time.Second, time.Second, 1, 1800 * time.Millisecond},
		{time.Second, 300 * time.Millisecond, 3, 2500 * time.Millisecond},
	} {
		o, err := MillionOptions{Hold: c.hold, Heartbeat: c.beat}.filled()
		if err != nil || o.beats() != c.beats || o.held() != c.held {
			t.Errorf("%v, %v: got %d, %v, %v, want %d, %v", c.hold, c.beat, o.beats(), o.held(), err, c.beats, c.held)
		}
		if o.idle()+4*o.every() > o.held()/2 {
			t.Errorf("%v, %v: idle for %v, looked at each %v, want both within half of %v", c.hold, c.beat, o.idle(), o.every(), o.held())
		}
	}
}

// A server has room for what it is to hold, and a worker process for its part of it,
// wherever chance puts connections.
func TestMillionCommands(t *testing.T) {
	for _, s := range millionSubjects {
		for _, n := range []int{1, 2000, 100_000, 1_000_000} {
			o, err := MillionOptions{Connections: n, Loops: 3}.filled()
			if err != nil {
				t.Fatal(err)
			}
			words := s.command(&o, "self", "addr", "admin")
			allowed, _ := strconv.Atoi(words[slices.Index(words, "--max-conns")+1])
			if allowed < n+spare/10 {
				t.Errorf("%s, %d connections: at most %d are allowed", s.name, n, allowed)
			}
			processes, _ := s.processes(n)
			if (processes > 0) != slices.Contains(words, "--processes") || s.prefork != (processes >= 2) {
				t.Errorf("%s, %d connections: %d processes, %q", s.name, n, processes, words)
			}
			if n := 64 << 20; s.prefork {
				if processes, allowed := s.processes(n); processes > maxWorkerProcesses || allowed != processes*share(n, processes) {
					t.Errorf("%d connections: %d processes, at most %d connections", n, processes, allowed)
				}
			}
			if room := sock.MaxConns(); s.prefork && allowed > processes*room {
				t.Errorf("%s: %d connections of %d processes with room for %d", s.name, allowed, processes, room)
			}
			if !slices.Contains(words, "3") || words[0] != "self" {
				t.Errorf("%s: %q, want 3 loops", s.name, words)
			}
		}
	}
}

// A server that is asked for its counters and does not answer is asked again, for as long
// as there is time.
func TestServerStatsAwait(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked%2 == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, `{"Model": "epoll", "Open": %d}`, asked)
	}))
	defer s.Close()
	stats := newServerStats(s.Listener.Addr().String())
	defer stats.close()
	if c, err := stats.await(t.Context(), time.Minute, func(c *MillionCounts) bool { return c.Open == 4 }); err != nil || c.Open != 4 || asked != 4 {
		t.Errorf("got %+v, %v after %d questions, want the fourth answer", c, err, asked)
	}
	if _, err := stats.await(t.Context(), 0, func(*MillionCounts) bool { return true }); err == nil || !strings.Contains(err.Error(), "status 503") {
		t.Errorf("without time: got %v, want the server's refusal", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := stats.await(ctx, time.Minute, func(*MillionCounts) bool { return true }); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: got %v", err)
	}
}

// TestMillionServerEnds says why nothing was held.
func TestMillionServerEnds(t *testing.T) {
	o := children(t) // which have no part "serve"
	o.Out = filepath.Join(t.TempDir(), "r.json")
	r, err := Million(t.Context(), MillionOptions{Options: o, Connections: 10, Names: []string{"prefork", "epoll"}})
	if err != nil || len(r.Runs) != 2 || r.Failed() != 2 {
		t.Fatalf("got %+v, %v, want two runs that failed", r, err)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"epoll, round 1", "prefork, round 1", "FAILED: the server ended: exit status 3", "holds 10 connections: not measured"} {
		if !strings.Contains(b.String(), word) {
			t.Errorf("the report does not say %q:\n%s", word, b.String())
		}
	}
	if text, err := os.ReadFile(o.Out); err != nil || !strings.Contains(string(text), `"subject": "prefork"`) {
		t.Errorf("the file says %s, %v", text, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o.Out = ""
	if r, err = Million(ctx, MillionOptions{Options: o, Connections: 10}); !errors.Is(err, context.Canceled) || r == nil || len(r.Runs) != 0 {
		t.Errorf("got %+v, %v, want an empty report and the end of the context", r, err)
	}
}

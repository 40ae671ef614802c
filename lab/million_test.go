package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/internal/sock"
)

func TestMillionChecks(t *testing.T) {
	for want, change := range map[string]func(w *Workload){
		"-5 connections; expected 1 to":      func(w *Workload) { w.Connections = -5 },
		"67108865 connections":               func(w *Workload) { w.Connections = 64<<20 + 1 },
		"a hold of 1ms; expected 100ms to":   func(w *Workload) { w.Hold = time.Millisecond },
		"a hold of 25h0m0s":                  func(w *Workload) { w.Hold = 25 * time.Hour },
		"a heartbeat each 3m0s; expected":    func(w *Workload) { w.Interval = 3 * time.Minute },
		"a heartbeat each 1ms":               func(w *Workload) { w.Interval = time.Millisecond },
		"-1 loops of the generator":          func(w *Workload) { w.Million.LoadLoops = -1 },
		"1025 loops of the generator":        func(w *Workload) { w.Million.LoadLoops = 1025 },
		"-1 checks in flight; expected 1 to": func(w *Workload) { w.Million.InFlight = -1 },
		"1048577 checks in flight":           func(w *Workload) { w.Million.InFlight = 1<<20 + 1 },
		"-1 bytes to stay free; expected 1":  func(w *Workload) { w.Million.KeepFree = -1 },
	} {
		s := builtIn(t, "million")
		change(&s.Workloads[0])
		var wrong ScenarioError
		if r, err := Run(t.Context(), s, Options{}); !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) || r != nil {
			t.Errorf("got %v, %v, want a ScenarioError with %q and no report", r, err, want)
		}
	}
	s := builtIn(t, "million")
	if w := s.Workloads[0]; s.Rounds != 1 || w.Connections != 1_000_000 || w.Hold != 2*time.Minute || w.Interval != time.Minute || w.million().InFlight != 1000 || w.million().KeepFree < 1<<30 {
		t.Errorf("defaults: %+v", w)
	}
	if took := s.Workloads[0].estimate(); took < 2*time.Minute || took > 10*time.Minute {
		t.Errorf("a run takes %v, want 2 to 10 minutes", took)
	}
	if w := (Workload{Kind: Holding}); w.million() != (MillionLoad{}).filled() {
		t.Errorf("without settings: got %+v, want the defaults", w.million())
	}
}

// Of the subjects those stay that were asked for, and of those with models the models; the
// scenario stays as it is.
func TestScenarioKeep(t *testing.T) {
	was := builtIn(t, "million")
	for asked, want := range map[string]string{"prefork": "prefork[]", "uring": "{model}[uring]", "prefork epoll": "{model}[epoll] prefork[]", "": "{model}[epoll uring] prefork[]"} {
		s, err := was.Keep(strings.Fields(asked)...)
		var got []string
		for _, x := range s.Subjects {
			got = append(got, x.Name+fmt.Sprint(x.Models))
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: got %q, %v, want %q", asked, got, err, want)
		}
	}
	var wrong ScenarioError
	if _, err := was.Keep("prefork", "none"); !errors.As(err, &wrong) || !strings.Contains(err.Error(), `subject "none"; expected some of [epoll uring prefork]`) {
		t.Errorf("got %v, want a ScenarioError with the names", err)
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
		w := Workload{Hold: c.hold, Interval: c.beat}
		if w.due() != c.beats || w.held() != c.held {
			t.Errorf("%v, %v: got %d, %v, want %d, %v", c.hold, c.beat, w.due(), w.held(), c.beats, c.held)
		}
		if w.alone()+4*w.every() > w.held()/2 {
			t.Errorf("%v, %v: alone for %v, looked at each %v, want both within half of %v", c.hold, c.beat, w.alone(), w.every(), w.held())
		}
		for _, hold := range []time.Duration{c.hold / 4, c.hold * 3} {
			short := w
			if short.heldFor(hold); short.Hold != hold || short.due() != c.beats && short.Interval != minHeartbeat {
				t.Errorf("%v, %v: held for %v it has %d heartbeats, want %d", c.hold, c.beat, short.Hold, short.due(), c.beats)
			}
		}
	}
}

// A server has room for what it is to hold, and a worker process for its part of it,
// wherever chance puts connections.
func TestMillionCommands(t *testing.T) {
	scenario, err := builtIn(t, "million").With(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenario.Subjects {
		prefork := s.Name == "prefork"
		for _, n := range []int{1, 2000, 100_000, 1_000_000} {
			w := heldWorkload(n)
			m := newMillionRunner(&runner{self: "self"}, step{workload: w, subject: s}, &RunRecord{})
			at, err := m.place()
			if err != nil {
				t.Fatal(err)
			}
			words := s.fill(at)
			allowed, _ := strconv.Atoi(words[slices.Index(words, "--max-conns")+1])
			if allowed < n+spare/10 {
				t.Errorf("%s, %d connections: at most %d are allowed", s.Name, n, allowed)
			}
			processes, _ := s.spread(n)
			if (processes > 0) != slices.Contains(words, "--processes") || prefork != (processes >= 2) {
				t.Errorf("%s, %d connections: %d processes, %q", s.Name, n, processes, words)
			}
			if n := 64 << 20; prefork {
				if processes, allowed := s.spread(n); processes > maxWorkerProcesses || allowed != processes*share(n, processes) {
					t.Errorf("%d connections: %d processes, at most %d connections", n, processes, allowed)
				}
			}
			if room := sock.MaxConns(); prefork && allowed > processes*room {
				t.Errorf("%s: %d connections of %d processes with room for %d", s.Name, allowed, processes, room)
			}
			if i := slices.Index(words, "--heartbeat-message"); i < 0 || words[i+1] != Heartbeat || words[0] != "self" || at.admin == "" || at.admin == at.addr {
				t.Errorf("%s: %q, want the lab's heartbeat and an address of its own for figures", s.Name, words)
			}
			if model := s.model(); model != s.Name && !(prefork && model == "epoll") {
				t.Errorf("%s: model %q", s.Name, model)
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
	o.Dir = filepath.Join(t.TempDir(), "r")
	if len(myriad.Models()) < 2 {
		t.Skip("no model here has loops")
	}
	s, err := builtIn(t, "million").Keep("prefork", "epoll")
	if err != nil {
		t.Fatal(err)
	}
	s.Workloads[0].Connections = 10
	r, err := Run(t.Context(), s, o)
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
	if text, err := os.ReadFile(filepath.Join(o.Dir, "report.json")); err != nil || !strings.Contains(string(text), `"subject": "prefork"`) {
		t.Errorf("the file says %s, %v", text, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o.Dir = ""
	if r, err = Run(ctx, s, o); !errors.Is(err, context.Canceled) || r == nil || len(r.Runs) != 0 {
		t.Errorf("got %+v, %v, want an empty report and the end of the context", r, err)
	}
}

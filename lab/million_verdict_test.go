package lab

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/load"
)

// heldRun is a run in which everything is as claimed, of 100,000 connections, with two
// heartbeats on each.
func heldRun() *millionJudge {
	const n = 100_000
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(second int, c MillionCounts, user, kernel int64) MillionSample {
		return MillionSample{
			At: start.Add(time.Duration(second) * time.Second), Counts: c, Slab: 100e6 + kernel, Free: 20e9 - user - kernel,
			Busy:   time.Duration(second) * time.Second * 8 / 10, // 5 % of a CPU are others'
			Server: MillionSide{CPU: time.Duration(second) * time.Second / 2, RSS: 10e6 + user, PSS: 9e6 + user, Anonymous: 3e6 + user, Processes: 1, Threads: 8},
			Load:   MillionSide{CPU: time.Duration(second) * time.Second / 4, RSS: 20e6 + user, PSS: 19e6 + user, Anonymous: 4e6 + user, Processes: 1, Threads: 9},
		}
	}
	r := &millionJudge{MillionRun: &MillionRun{Before: at(0, MillionCounts{Accepted: 1, Messages: 10}, 0, 0)}}
	add := func(name string, second int, count int64, c MillionCounts) {
		c.Accepted, c.Open = n+1, n
		if name == phaseClose {
			c.Open = 0
		}
		p := MillionPhase{Name: name, Took: 4 * time.Second, Sampled: 4 * time.Second, End: at(second, c, 9_500_000, 840_000_000)}
		p.count(count)
		p.ServerCPU, p.LoadCPU = 2*time.Second, time.Second
		r.Phases = append(r.Phases, p)
	}
	add(phaseConnect, 4, n, MillionCounts{Messages: 10})
	add(phaseCheck, 8, n, MillionCounts{Messages: 10 + n})
	add(phaseIdle, 12, 0, MillionCounts{Messages: 10 + n})
	add(phaseBroadcast, 16, n, MillionCounts{Messages: 11 + n})
	add(phaseHeartbeats, 20, 2*n, MillionCounts{Messages: 11 + 3*n, Heartbeats: 2 * n})
	add(phaseAgain, 24, n, MillionCounts{Messages: 11 + 4*n, Heartbeats: 2 * n})
	add(phaseClose, 28, n, MillionCounts{Messages: 11 + 4*n, Heartbeats: 2 * n})
	call := load.Verification{Open: n, Asked: n, Checked: n}
	r.Result = &load.Result{
		Verifications: []load.Verification{call, call}, Heartbeats: 2 * n,
		Broadcast: &load.Broadcast{Open: n, Heard: n, Time: time.Second},
	}
	r.Caller = &MillionCaller{Messages: 1}
	r.Left = &MillionLeft{Most: 840_000_000, Kernel: 1e6, Waited: time.Second}
	return r
}

// judged is a run with its findings.
func judged(r *millionJudge) *millionJudge {
	r.judge(heldWorkload(100_000))
	return r
}

// heldWorkload holds so many connections as the built-in scenario does.
func heldWorkload(n int) Workload {
	return Workload{Name: "million", Kind: Holding, App: Lines, Connections: n, Hold: 2 * time.Minute, Interval: time.Minute}
}

func TestMillionVerdict(t *testing.T) {
	if r := judged(heldRun()); r.missed(true) {
		t.Fatalf("got %v, want that all is met", r.Findings)
	}
	for name, c := range map[string]struct {
		breaks func(r *millionJudge)
		claim  string // the one that is not met
		fails  bool   // without Strict too
		says   string
	}{
		"some were never there": {func(r *millionJudge) {
			r.phase(phaseConnect).End.Counts.Open = 90_000
			r.Result.Verifications[0].Open, r.Result.Verifications[0].Checked = 90_000, 90_000
			r.Result.Verifications[1], r.Result.Broadcast.Heard = r.Result.Verifications[0], 90_000
			r.Result.ConnectErrors = map[string]int64{"connection refused": 10_000}
			r.Result.Limits = []load.Limit{{Wall: "ports", Evidence: "none was free"}}
		}, "holds 100,000", true, "the server counted 90,000; 10,000 attempts failed (connection refused: 10000); ports: none was free"},
		"a wrong answer": {func(r *millionJudge) {
			r.Result.Verifications[1].Checked--
			r.Result.Verifications[1].Wrong++
			r.Result.FirstMismatch = &load.Mismatch{Want: `"a"`, Got: `"b"`}
		}, "every connection answered", true, `1 wrong, 0 lost, 0 unanswered; first wrong: connection 0, message 0, byte 0: got "b", want "a"`},
		"one check only": {func(r *millionJudge) {
			r.Result.Verifications = r.Result.Verifications[:1]
			r.phase(phaseAgain).End.Counts.Messages -= 100_000
		}, "every connection answered", true, "100,000 lines sent"},
		"a connection lost": {func(r *millionJudge) { r.Result.Lost = map[string]int64{"reset": 1} }, "every connection answered", true, "1 connections ended early (reset: 1)"},
		"a strange line":    {func(r *millionJudge) { r.Result.Unexpected, r.Result.FirstUnexpected = 1, `"?"` }, "every connection answered", true, `1 unexpected lines, first: "?"`},
		"large":             {func(r *millionJudge) { r.phase(phaseIdle).End.Server.Anonymous += 1e6 }, "at most 100 bytes", false, "105"},
		"large in kernel":   {func(r *millionJudge) { r.phase(phaseIdle).End.Tables += 1e8 }, "at most 9,000 bytes", false, "9,400"},
		"slow":              {func(r *millionJudge) { r.phase(phaseConnect).Rate = 19_999 }, "at least 20,000", false, "19,999"},
		"a heartbeat missed": {func(r *millionJudge) {
			r.phase(phaseAgain).End.Counts.Messages--
			r.phase(phaseClose).End.Counts.Messages--
		}, "no heartbeat lost", true, "200,000 sent, 199,999 answered, 1 missed"},
		"one missed in a long check": {func(r *millionJudge) {
			underWay(r)
			r.Result.Heartbeats = 199_999
		}, "no heartbeat lost", true, "the generator got 199,999, of 200,500 in all"},
		"more than were sent": {func(r *millionJudge) { r.Result.Heartbeats++ }, "no heartbeat lost", true, "the generator got 200,001, of 200,000 in all"},
		"given up":            {func(r *millionJudge) { r.phase(phaseClose).End.Counts.Unanswered++ }, "no heartbeat lost", true, "1 connections were given up"},
		"too few heartbeats": {func(r *millionJudge) {
			r.phase(phaseAgain).End.Counts.Messages--
			r.phase(phaseAgain).End.Counts.Heartbeats--
		}, "as many heartbeats as one each 1m0s", false, "199,999 sent, at least 200,000 were due"},
		"not heard":           {func(r *millionJudge) { r.Result.Broadcast.Heard-- }, "no broadcast lost", true, "99,999 of 100,000"},
		"heard twice":         {func(r *millionJudge) { r.Result.Broadcast.Again++ }, "no broadcast lost", true, "1 had it again"},
		"dropped":             {func(r *millionJudge) { r.phase(phaseClose).End.Counts.Dropped = 7 }, "no broadcast lost", true, "the server has dropped 7"},
		"not heard by caller": {func(r *millionJudge) { r.Caller.Error = "reset" }, "no broadcast lost", true, "who asked for it: reset"},
		"left open":           {func(r *millionJudge) { r.phase(phaseClose).End.Counts.Open = 3 }, "a clean end", true, "3 connections left"},
		"refused":             {func(r *millionJudge) { r.phase(phaseClose).End.Counts.Refused = 3 }, "a clean end", true, "3 refused"},
		"a worker died":       {func(r *millionJudge) { r.phase(phaseClose).End.Counts.Restarts = 1 }, "a clean end", true, "1 worker processes started again"},
		"memory left":         {func(r *millionJudge) { r.Left.Kernel = 70e6 }, "sockets, descriptors and memory", true, "70.0 MB of the kernel (840.0 MB at most)"},
		"sockets left":        {func(r *millionJudge) { r.Left.Sockets = 201 }, "sockets, descriptors and memory", true, "201 sockets"},
	} {
		r := heldRun()
		c.breaks(r)
		judged(r)
		for _, f := range r.Findings {
			if not := strings.HasPrefix(f.Claim, c.claim); not != (f.Outcome == NotMet) || not && !strings.Contains(f.Detail, c.says) {
				t.Errorf("%s: %v, want that only %q is not met, and %q", name, f, c.claim, c.says)
			}
		}
		if r.missed(false) != c.fails || !r.missed(true) {
			t.Errorf("%s: failed is %v, and %v with Strict; want %v and true", name, r.missed(false), r.missed(true), c.fails)
		}
	}
}

// Where memory ran low, fewer connections are no failure, but for Strict.
func TestMillionVerdictStopped(t *testing.T) {
	r := heldRun()
	r.Stopped = &MillionStop{Wall: "memory", At: 100_000, Free: 1, Keep: 2}
	r.judge(heldWorkload(200_000))
	if f := r.Findings[0]; r.missed(false) || !r.missed(true) || !strings.Contains(f.String(), "holds 200,000 connections: NOT MET: the server counted 100,000; memory: stopped at 100,000 connections") {
		t.Errorf("got %v, failed %v and %v", f, r.missed(false), r.missed(true))
	}
}

// underWay is a check so long that heartbeats are under way at all times: 500 are sent
// while connections close, and none is answered then.
func underWay(r *millionJudge) {
	r.phase(phaseAgain).Took = 2 * time.Minute
	r.phase(phaseAgain).End.Counts.Messages -= 300
	r.phase(phaseClose).End.Counts.Messages -= 300
	r.phase(phaseClose).End.Counts.Heartbeats += 500
}

// A run that did not come far has findings without an outcome, not wrong ones, and fails
// although it has come to its end.
func TestMillionVerdictUnmeasured(t *testing.T) {
	for n := range 3 {
		r := heldRun()
		r.Phases, r.Result, r.Caller, r.Left = r.Phases[:n], nil, nil, nil
		judged(r)
		measured := 0
		for _, f := range r.Findings {
			if f.Outcome == NotMet {
				t.Errorf("with %d phases: %v", n, f)
			}
			if f.Outcome != NotMeasured {
				measured++
			}
		}
		if want := []int{0, 2, 2}[n]; measured != want || !r.missed(false) {
			t.Errorf("with %d phases: got %v, failed %v, want %d that are measured, and that it failed", n, r.Findings, r.missed(false), want)
		}
	}
	r := heldRun()
	for i := range r.Phases {
		r.Phases[i].End.Counts.Open = 2000
	}
	judged(r)
	if f := r.Findings[2]; f.Outcome != NotMeasured || !strings.Contains(f.Detail, "of too few connections to tell") {
		t.Errorf("got %v, want nothing of 2,000 connections", f)
	}
}

// What was asked for and has nothing to show fails a run, each for itself.
func TestMillionVerdictNothingToShow(t *testing.T) {
	remove := func(r *millionJudge, name string) {
		r.Phases = slices.DeleteFunc(r.Phases, func(p MillionPhase) bool { return p.Name == name })
	}
	for claim, without := range map[string]func(r *millionJudge){
		"no heartbeat lost: not measured":                                           func(r *millionJudge) { remove(r, phaseAgain) },
		"no broadcast lost, and none twice: not measured: nobody has asked for one": func(r *millionJudge) { r.Caller = nil },
		"no broadcast lost, and none twice: not measured":                           func(r *millionJudge) { r.Result.Broadcast = nil },
		"a clean end: not measured":                                                 func(r *millionJudge) { remove(r, phaseClose) },
		"sockets, descriptors and memory are back: not measured":                    func(r *millionJudge) { r.Left = nil },
	} {
		r := heldRun()
		without(r)
		judged(r)
		if !slices.ContainsFunc(r.Findings, func(f MillionFinding) bool { return f.String() == claim }) || !r.missed(false) {
			t.Errorf("got %v, failed %v; want %q, and that it failed", r.Findings, r.missed(false), claim)
		}
	}
}

// Where heartbeats are under way at all times, the last counts of both sides decide.
func TestMillionVerdictUnderWay(t *testing.T) {
	for name, c := range map[string]struct {
		got     int64 // by the generator
		answers int64 // that came while connections closed
		outcome string
	}{
		"all came, and were answered":    {200_500, 800, Met},
		"all came":                       {200_500, 0, Met},
		"some were sent to closing ones": {200_499, 0, NotMeasured},
		"fewer than before the end":      {199_999, 0, NotMet},
	} {
		r := heldRun()
		underWay(r)
		r.Result.Heartbeats = c.got
		r.phase(phaseClose).End.Counts.Messages += c.answers
		judged(r)
		if f := r.Findings[5]; f.Outcome != c.outcome || r.missed(false) != (c.outcome != Met) {
			t.Errorf("%s: got %v, failed %v, want %s", name, f, r.missed(false), c.outcome)
		}
	}
}

// What is left can't be told where others do much, and of few connections it fails a run
// only with Strict.
func TestMillionVerdictLeft(t *testing.T) {
	busy := func(r *millionJudge) { r.phase(phaseClose).End.Busy += 2 * time.Second } // of 28
	few := func(r *millionJudge) {
		for i := range r.Phases {
			r.Phases[i].End.Counts.Open = 2000
		}
	}
	for name, c := range map[string]struct {
		given   func(*millionJudge)
		sockets int64
		outcome string
		strict  bool
	}{
		"others":             {busy, 201, NotMeasured, true},
		"others, none left":  {busy, 200, Met, true},
		"few":                {few, 201, NotMet, true},
		"many, and no other": {func(*millionJudge) {}, 201, NotMet, false},
	} {
		r := heldRun()
		c.given(r)
		r.Left.Sockets = c.sockets
		judged(r)
		f := r.Findings[9]
		if f.Outcome != c.outcome || f.Strict != c.strict || (c.outcome == NotMeasured) != strings.Contains(f.Detail, "something else took 12 % of a CPU") {
			t.Errorf("%s: got %v, strict %v; want %s, strict %v", name, f, f.Strict, c.outcome, c.strict)
		}
	}
}

func TestMillionText(t *testing.T) {
	run := judged(heldRun()).MillionRun
	r := &Report{
		Scenario: Scenario{Subjects: []Subject{{Name: "epoll"}}, Workloads: []Workload{heldWorkload(100_000)}},
		Runs:     []RunRecord{{Workload: "million", Subject: "epoll", Round: 1, Took: 20 * time.Second, Million: run}},
	}
	run.Doctor = []string{"all is well"}
	run.Phases[0].Latency = load.Latency{Count: 3, P50: time.Millisecond, P99: 2 * time.Second, Max: 3 * time.Second}
	run.Stopped = &MillionStop{Wall: "memory", At: 100_000, Free: 1e9, Keep: 2e9}
	r.note("A note.")
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"    A note.\n", "epoll, round 1: 20s\n", "  doctor: all is well\n", "Asked are 100,000 connections, held for 2m0s, a heartbeat each 1m0s",
		"phase        took  connections    count  rate/s      p50     p99     max  server CPU  load CPU\n",
		"connect      4.0s      100,000  100,000  25,000  1.00 ms  2.00 s  3.00 s        0.50      0.25\n",
		"idle         4.0s      100,000        -       -        -       -       -        0.50      0.25\n",
		"close        4.0s            0  100,000  25,000        -       -       -        0.50      0.25\n",
		"(before)             3.0           -      4.0           -          -           -  20000.0\n",
		"idle                12.5          95     13.5          95      840.0       8,400  19150.5\n",
		"close               12.5           -     13.5           -      840.0           -  19150.5\n",
		"a connection, idle after an exchange: server 95 bytes, generator 95, kernel 8,400 for both ends; the machine has 8,495 less free\n",
		"server: processes 1, threads 8; RSS 19.5 MB, PSS 18.5 MB, anonymous 12.5 MB, 3.0 MB before the first connection\n",
		"memory: stopped at 100,000 connections: 1,000 MB are free", "a clean end: met: 0 connections left",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the text does not say %q:\n%s", want, b.String())
		}
	}
	if got, want := run.Phases[0].String(), "connect: 4.0s, 100,000 connections; 100,000, 25,000/s; p50 1.00 ms, p99 2.00 s, max 3.00 s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

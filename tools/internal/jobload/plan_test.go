package jobload

import (
	"errors"
	"flag"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// TestPlanErrors reaches every bound: each says what was wrong and what was expected.
func TestPlanErrors(t *testing.T) {
	for says, change := range map[string]func(p *Plan){
		`--pool is "nix"; expected one of channel, naive, ours, published, server, server-nethttp, server-off`: func(p *Plan) { p.Pool = "nix" },
		`--work is "nix"; expected one of cpu, limited, mixed, published, short-cpu, steps`:                    func(p *Plan) { p.Work = "nix" },
		"--rate is -1; expected 0 (a closed loop) to 100000000":                                                func(p *Plan) { p.Rate = -1 },
		"--rate is NaN":                                                            func(p *Plan) { p.Rate = math.NaN() },
		"at least one job":                                                         func(p *Plan) { p.Rate = 0.5 },
		"--burst is -1; expected 0 to 1000":                                        func(p *Plan) { p.Burst = -1 },
		"--burst is 5 with a --rate of 0":                                          func(p *Plan) { p.Burst, p.Rate = 5, 0 },
		"--inflight is 1 with a --rate of 10":                                      func(p *Plan) { p.Inflight = 1 },
		"--warmup is -1ns; expected 0s to 1h":                                      func(p *Plan) { p.Warmup = -1 },
		"--duration is 0s; expected 1ms to 1h":                                     func(p *Plan) { p.Duration = 0 },
		"--drain is -1ns; expected 0s to 1h":                                       func(p *Plan) { p.Drain = -1 },
		"--deadline is 0s; expected 1ns to 1h":                                     func(p *Plan) { p.Deadline = 0 },
		"--connections is 20000; expected 0 to 16000":                              func(p *Plan) { p.Connections = 20_000 },
		"--sources is 10; expected 0 to 9":                                         func(p *Plan) { p.Connections, p.Sources = 100, 10 },
		"--workers is 0; expected 1 to 1000000":                                    func(p *Plan) { p.Workers = 0 },
		"--queue is -1; expected 0 to 16777216":                                    func(p *Plan) { p.Queue = -1 },
		"--memory is 1; expected 0 (no limit), or 16777216 to":                     func(p *Plan) { p.Memory = 1 },
		"--iterations is 1125899906842624; expected 0 (measured) to 1099511627776": func(p *Plan) { p.Iterations = 1 << 50 },
	} {
		p := newTestPlan(10, time.Second)
		p.Pool = "naive"
		if err := p.Validate(BuiltInContenders()); err != nil {
			t.Fatalf("the plan that is changed is wrong already: %v", err)
		}
		change(&p)
		err := Run(t.Context(), p, BuiltInContenders(), io.Discard)
		if _, ok := errors.AsType[PlanError](err); !ok || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want a PlanError with %q", err, says)
		}
	}
}

func TestFlags(t *testing.T) {
	var p Plan
	f := flag.NewFlagSet("", flag.ContinueOnError)
	p.AddFlags(f, BuiltInContenders())
	testkit.RequireNoError(t, f.Parse(strings.Fields("--pool ours --rate 5 --memory 20000000")))
	want := Plan{
		Pool: "ours", Work: Published, Rate: 5, Burst: 1, Duration: 10 * time.Second, Drain: 5 * time.Second, Deadline: time.Second,
		Workers: 5000, Queue: 100_000, Memory: 20_000_000, Connections: 2000,
	}
	if err := p.Validate(BuiltInContenders()); err != nil || p != want {
		t.Errorf("got %+v, %v; want %+v", p, err, want)
	}
}

func TestParseLine(t *testing.T) {
	for text, ok := range map[string]bool{
		`{"result":{"offered":1}}`:     true,
		`{"warming":{}}`:               true,
		`{}`:                           false,
		`{"result":{},"progress":{}}`:  false,
		`{"result":{},"other":1}`:      false,
		`{"result":{}} {"result":{}}`:  false,
		`{"result":{"offered":"one"}}`: false,
	} {
		if _, err := ParseOutputLine([]byte(text)); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestMixed has the tasks of mixed jobs in their proportions.
func TestMixed(t *testing.T) {
	const jobs = 100_000
	found := map[jobTask]int{}
	for i := range uint64(jobs) {
		found[pickTaskForJob(Mixed, i)]++
	}
	for _, s := range shapes[Mixed] {
		if n, want := found[s.jobTask], jobs/100*int(s.percent); n < want*9/10 || n > want*11/10 {
			t.Errorf("%d of %d jobs are %+v, want some %d", n, jobs, s.jobTask, want)
		}
	}
}

// TestIterations counts more in a millisecond than any machine's clock is off by.
func TestIterations(t *testing.T) {
	if n := MeasureSpinsPerMillisecond(); n < 1000 {
		t.Errorf("%d iterations are a millisecond", n)
	}
}

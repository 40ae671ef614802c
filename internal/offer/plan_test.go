package offer

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// TestPlanErrors has each say what was wrong and what was expected.
func TestPlanErrors(t *testing.T) {
	for _, c := range []struct {
		change func(p *Plan)
		says   string
	}{
		{func(p *Plan) { p.Pool = "nix" }, `--pool is "nix"; expected one of channel, naive, ours`},
		{func(p *Plan) { p.Work = "nix" }, `--work is "nix"; expected one of published, cpu, mixed`},
		{func(p *Plan) { p.Rate = -1 }, "--rate is -1; expected 0 (a closed loop) to 100000000"},
		{func(p *Plan) { p.Rate = math.NaN() }, "--rate is NaN"},
		{func(p *Plan) { p.Rate = 0.5 }, "at least one job"},
		{func(p *Plan) { p.Rate, p.Inflight = 0, -1 }, "--inflight is -1; expected 0"},
		{func(p *Plan) { p.Inflight = 1 }, "--inflight is 1 with a --rate of 10"},
		{func(p *Plan) { p.Warmup = -1 }, "--warmup is -1ns; expected 0s to 1h"},
		{func(p *Plan) { p.Warmup = 2 * time.Hour }, "--warmup is 2h"},
		{func(p *Plan) { p.Duration = 0 }, "--duration is 0s; expected 1ms to 1h"},
		{func(p *Plan) { p.Drain = -1 }, "--drain is -1ns; expected 0s to 1h"},
		{func(p *Plan) { p.Deadline = 0 }, "--deadline is 0s; expected more than 0s"},
		{func(p *Plan) { p.Workers = 0 }, "--workers is 0; expected 1 to 1000000"},
		{func(p *Plan) { p.Queue = -1 }, "--queue is -1; expected 0 (none) to 16777216"},
		{func(p *Plan) { p.Memory = 1 }, "--memory is 1; expected 0 (no limit), or 16777216 to"},
		{func(p *Plan) { p.Off = "shedding,nix" }, `--off has "nix"; expected some of adapting, newest, shedding`},
		{func(p *Plan) { p.Work = Mixed }, "--wait, --cpu or --bytes with --work mixed"},
		{func(p *Plan) { p.Wait = 2 * time.Hour }, "--wait is 2h"},
		{func(p *Plan) { p.CPU = 2 * time.Hour }, "--cpu is 2h"},
		{func(p *Plan) { p.Bytes = 1<<30 + 1 }, "--bytes is 1073741825; expected up to 1073741824"},
		{func(p *Plan) { p.Iterations = 1 << 50 }, "--iterations is 1125899906842624; expected 0 (measured)"},
	} {
		p := plan(10, time.Second, 0)
		p.Pool = "naive"
		if err := p.Check(Own()); err != nil {
			t.Fatalf("the plan that is changed is wrong already: %v", err)
		}
		c.change(&p)
		err := Run(t.Context(), p, Own(), io.Discard)
		if _, ok := errors.AsType[PlanError](err); !ok || !strings.Contains(err.Error(), c.says) {
			t.Errorf("got %v, want a PlanError with %q", err, c.says)
		}
	}
}

// TestFlags has a flag for each field, and defaults that make sense.
func TestFlags(t *testing.T) {
	var p Plan
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	p.AddFlags(flags, Own())
	if err := flags.Parse([]string{"--pool", "ours"}); err != nil {
		t.Fatal(err)
	}
	if err := p.Check(Own()); err != nil {
		t.Errorf("the defaults are wrong: %v", err)
	}
	args := strings.Fields("--pool ours --work mixed --rate 2.5 --inflight 3 --duration 4s --drain 5s --deadline 6s --workers 7 --queue 8 " +
		"--memory 9 --off newest,adapting --seed 10 --wait 11s --cpu 12s --bytes 13 --iterations 14 --warmup 15s")
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	want := Plan{
		Pool: "ours", Work: Mixed, Rate: 2.5, Inflight: 3, Duration: 4 * time.Second, Drain: 5 * time.Second, Deadline: 6 * time.Second,
		Workers: 7, Queue: 8, Memory: 9, Off: "newest,adapting", Seed: 10, Wait: 11 * time.Second, CPU: 12 * time.Second, Bytes: 13, Iterations: 14, Warmup: 15 * time.Second,
	}
	if p != want {
		t.Errorf("got %+v, want %+v", p, want)
	}
	if reflect.TypeFor[Plan]().NumField() != len(args)/2 {
		t.Errorf("%d flags tested of %d fields", len(args)/2, reflect.TypeFor[Plan]().NumField())
	}
	if off, err := p.rules(); off != pool.NewestFirst|pool.Adapting || err != nil {
		t.Errorf("rules %b, %v", off, err)
	}
}

// TestResultJSON writes and reads each field.
func TestResultJSON(t *testing.T) {
	r := &Result{Pool: "a", Work: "b", Rate: 1.5, Causes: map[string]uint64{"full": 1}, Overran: "c"}
	v := reflect.ValueOf(r).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case f.CanUint():
			f.SetUint(uint64(i) + 100)
		case f.CanInt():
			f.SetInt(int64(i) + 100)
		}
		if v.Field(i).IsZero() {
			t.Fatalf("the test leaves out %s", v.Type().Field(i).Name)
		}
	}
	for _, l := range []Line{{Result: r}, {Progress: r}, {Warming: r}} {
		var b bytes.Buffer
		if err := l.Write(&b); err != nil {
			t.Fatal(err)
		}
		got, err := ParseLine(b.Bytes())
		if err != nil || !reflect.DeepEqual(got, l) || bytes.Count(b.Bytes(), []byte("\n")) != 1 {
			t.Errorf("%s: read %+v, %v, want the same", b.Bytes(), got, err)
		}
	}
	both, _ := json.Marshal(Line{Progress: r, Result: r})
	other, _ := json.Marshal(Line{Progress: r, Warming: r})
	for _, text := range []string{"", "{}", "myriad: hello", `{"result":{"pool":1}}`, `{"result":{"polo":"a"}}`, `{"result":{}}{}`, string(both), string(other)} {
		if l, err := ParseLine([]byte(text)); err == nil {
			t.Errorf("%q is read as %+v", text, l)
		}
	}
}

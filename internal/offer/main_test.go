package offer

import (
	"bytes"
	"cmp"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a side that does what try says.
type fake struct {
	try func(j *Job) Answer
}

func (f fake) Try(j *Job) Answer { return f.try(j) }
func (f fake) Workers() int      { return 0 }
func (f fake) Close()            {}

// plan is a plan of jobs that wait and do nothing else.
func plan(rate float64, duration, wait time.Duration) Plan {
	return Plan{
		Pool: "fake", Work: Published, Rate: rate, Duration: duration, Drain: 5 * time.Second, Deadline: time.Second,
		Workers: 1, Seed: 1, Wait: wait, CPU: -1, Bytes: 0, Iterations: 1,
	}
}

// runs runs a plan with a side of its own, and returns the lines of its output.
func runs(t *testing.T, ctx context.Context, p Plan, try func(j *Job) Answer) []Line {
	t.Helper()
	return runSides(t, ctx, p, Sides{p.Pool: func(Plan) (Side, error) { return fake{try}, nil }})
}

func runSides(t *testing.T, ctx context.Context, p Plan, sides Sides) (lines []Line) {
	t.Helper()
	var out bytes.Buffer
	if err := Run(ctx, p, sides, &out); err != nil {
		t.Fatal(err)
	}
	for text := range bytes.Lines(out.Bytes()) {
		l, err := ParseLine(text)
		if err != nil {
			t.Fatal(err)
		}
		wantSums(t, cmp.Or(l.Result, l.Progress, l.Warming))
		lines = append(lines, l)
	}
	if n := len(lines); n == 0 || lines[n-1].Result == nil {
		t.Fatalf("%q ends without a result", out.String())
	}
	return lines
}

// wantSums checks that each job is in exactly one place.
func wantSums(t *testing.T, r *Result) {
	t.Helper()
	var causes uint64
	for _, n := range r.Causes {
		causes += n
	}
	if r.Offered != r.Accepted+r.Rejected || r.Accepted != r.Finished+r.Expired+r.Shed+r.Unfinished ||
		r.Rejected != causes || r.Good > r.Finished || r.Panicked > r.Finished {
		t.Errorf("the sums are wrong: %+v", r)
	}
}

// last is the result of a run.
func last(lines []Line) *Result { return lines[len(lines)-1].Result }

// hold accepts jobs and keeps them.
type hold struct {
	n    atomic.Int64
	jobs []*Job
}

func (h *hold) try(j *Job) Answer {
	h.n.Add(1)
	h.jobs = append(h.jobs, j)
	return Accepted
}

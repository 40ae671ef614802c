package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// ParkedFigures are worked out of a run under a Parking workload.
type ParkedFigures struct {
	// Goroutines is how many there were.
	Goroutines int `json:"goroutines"`
	// Stack and Anonymous are bytes for each of them: of stacks (StackInuse),
	// and of the process's anonymous memory. Anonymous is 0 where /proc is not
	// available.
	Stack     float64 `json:"stack"`
	Anonymous float64 `json:"anonymous,omitempty"`
}

// park has a process of its own park goroutines. Its output is the samples.
func (r *runner) park(ctx context.Context, s step, rec *RunRecord) error {
	rec.Command = s.subject.fill(place{self: r.self, n: s.workload.Connections, processes: 1})
	p, err := r.launcher.stream(ctx, rec.Command, nil, func(_ *process, out io.Reader) error {
		return eachLine(out, "the process", func(line []byte) error {
			var sample Sample
			if err := json.Unmarshal(line, &sample); err != nil {
				return fmt.Errorf("the process said %.100q: %w; expected a sample", line, err)
			}
			rec.Samples = append(rec.Samples, sample)
			return nil
		})
	})
	if err != nil {
		return err
	}
	if p.err != nil || rec.goMemory(Ready) == nil || rec.goMemory(Parked) == nil {
		return p.failure("the process")
	}
	return nil
}

// goMemory is what Go said at a moment, nil if it was not asked.
func (r *RunRecord) goMemory(m Moment) *GoMemory {
	if s := r.sample(m); s != nil {
		return s.Go
	}
	return nil
}

func (r *RunRecord) parkedFigures(w Workload) *ParkedFigures {
	before, after := r.sample(Ready), r.sample(Parked)
	if before == nil || after == nil || before.Go == nil || after.Go == nil {
		return nil
	}
	n := float64(w.Connections)
	return &ParkedFigures{
		Goroutines: w.Connections,
		Stack:      float64(after.Go.StackInuse-before.Go.StackInuse) / n,
		Anonymous:  float64(after.Anonymous-before.Anonymous) / n,
	}
}

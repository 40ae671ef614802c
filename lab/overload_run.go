package lab

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/myriad-go/myriad/internal/offer"
)

// OverloadRun is what was seen in a run under an Offering workload.
type OverloadRun struct {
	// Shape is as in Offer, Load "unloaded", "1x", "10x" or so many a second.
	Shape string `json:"shape"`
	Load  string `json:"load"`
	// Rate is how many jobs a second were to be offered.
	Rate float64 `json:"rate"`
	// Warmup is for how long they were to be offered without being counted.
	Warmup time.Duration `json:"warmup"`
	// Window is for how long they were to be offered then, Deadline within what time
	// each had to end.
	Window   time.Duration `json:"window"`
	Deadline time.Duration `json:"deadline"`
	// Capacity is how many jobs of the shape a second the machine can do, 0 where it
	// could not be measured. Measured is set where that was done before this run.
	Capacity float64   `json:"capacity"`
	Measured *Capacity `json:"measured,omitempty"`
	// Ended is set when the watchdog has ended the process. Then Result is what
	// its last progress line had counted.
	Ended *OverloadEnd `json:"ended,omitempty"`
	// Result is what became of the jobs; nil when the process has not said.
	Result *offer.Result `json:"result,omitempty"`
	// Warming is what the last line of the warm-up had counted, of the jobs of
	// the warm-up.
	Warming *offer.Result `json:"warming,omitempty"`
	// PeakRSS is the most memory of the process, in bytes, that the watchdog or
	// the process has seen; 0 where the system does not tell.
	PeakRSS int64 `json:"peak_rss,omitempty"`
}

// offer runs a side's process to its end. What it takes longer than planned is
// bounded.
func (o *overload) offer(ctx context.Context, rec *RunRecord, command []string) {
	run := rec.Overload
	rec.Command = command
	bound := run.Warmup + run.Window + offerDrain + o.slack
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the side took longer than %v", bound))
	defer cancel()
	complete := false
	p, err := o.launcher.stream(ctx, command, nil, func(p *process, out io.Reader) error {
		stop := o.guard(rec, p)
		defer stop()
		line := o.follow(rec, p, "", 1)
		defer line.stop()
		return readOffer(out, func(l offer.Line) {
			if l.Warming != nil {
				run.Warming = l.Warming
				return
			}
			run.Result = l.Progress
			if l.Result != nil {
				run.Result, complete = l.Result, true
			}
		})
	})
	run.endedWarming()
	switch {
	case run.Ended != nil:
	case err != nil:
		rec.Error = err.Error()
	case !complete:
		rec.Error = p.failure("the side").Error() + "; expected a line with its result before"
	case p.err != nil:
		rec.Error = p.failure("the side").Error()
	}
	if run.Result != nil {
		run.PeakRSS = max(run.PeakRSS, run.Result.PeakRSS)
	}
}

// endedWarming notes that the watchdog has ended a process before its window began:
// all that is counted in that is nothing.
func (r *OverloadRun) endedWarming() {
	if r.Ended == nil || r.Result != nil || r.Warmup == 0 {
		return
	}
	r.Ended.Warming = true
	r.Result = &offer.Result{Work: r.Shape, Rate: r.Rate, Warmup: r.Warmup, Duration: r.Window}
	if w := r.Warming; w != nil {
		r.Result.PeakRSS, r.Result.PeakGoroutines, r.Result.PeakWorkers = w.PeakRSS, w.PeakGoroutines, w.PeakWorkers
	}
}

// readOffer reads what a side prints until it ends.
func readOffer(out io.Reader, at func(offer.Line)) error {
	return eachLine(out, "the side", func(text []byte) error {
		line, err := offer.ParseLine(text)
		if err != nil {
			return err
		}
		at(line)
		return nil
	})
}

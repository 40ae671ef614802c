package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/myriad-go/myriad/internal/offer"
	"github.com/myriad-go/myriad/internal/procfs"
)

// OverloadRun is one run, raw: one side under one load in one round.
type OverloadRun struct {
	// Workload is Shape and Load with a hyphen between.
	Workload string `json:"workload"`
	Shape    string `json:"shape"`
	Load     string `json:"load"`
	Side     string `json:"side"`
	// Round counts from 1.
	Round int `json:"round"`
	// Rate is how many jobs a second were to be offered.
	Rate float64 `json:"rate"`
	// Warmup is for how long they were to be offered without being counted.
	Warmup time.Duration `json:"warmup"`
	// Window is for how long they were to be offered then, Deadline within what time
	// each had to end.
	Window   time.Duration `json:"window"`
	Deadline time.Duration `json:"deadline"`
	// Started is when the process was started, Took how long it was there.
	Started time.Time     `json:"started"`
	Took    time.Duration `json:"took"`
	// Command is the command line of the side's process.
	Command []string `json:"command"`
	// Error says why the run failed, "" when it did not. The figures of a
	// failed run are not part of any median.
	Error string `json:"error,omitempty"`
	// Ended is set when the watchdog has ended the process. Then Result is what
	// its last progress line had counted.
	Ended *OverloadEnd `json:"ended,omitempty"`
	// Marks are the rules that the run broke.
	Marks []Mark `json:"marks,omitempty"`
	// Result is what became of the jobs; nil when the process has not said.
	Result *offer.Result `json:"result,omitempty"`
	// Warming is what the last line of the warm-up had counted, of the jobs of
	// the warm-up.
	Warming *offer.Result `json:"warming,omitempty"`
	// PeakRSS is the most memory of the process, in bytes, that the watchdog or
	// the process has seen; 0 where the system does not tell.
	PeakRSS int64 `json:"peak_rss,omitempty"`
	// Foreign is how many CPUs anything but the side's process and the lab's kept
	// busy. Negative where the system does not tell.
	Foreign float64 `json:"foreign"`
}

// offer runs a side's process to its end. What it takes longer than planned is
// bounded.
func (o *overload) offer(ctx context.Context, run *OverloadRun, command []string) {
	run.Command, run.Started = command, time.Now()
	bound := run.Warmup + run.Window + offerDrain + o.slack
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the side took longer than %v", bound))
	defer cancel()
	foreign := watchForeign()
	complete := false
	p, err := o.launcher.stream(ctx, command, nil, func(p *process, out io.Reader) error {
		stop := o.guard(run, p)
		defer stop()
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
	run.Took = time.Since(run.Started)
	if p != nil {
		run.Foreign = foreign(p)
	}
	switch {
	case run.Ended != nil:
	case err != nil:
		run.Error = err.Error()
	case !complete:
		run.Error = p.failure("the side").Error() + "; expected a line with its result before"
	case p.err != nil:
		run.Error = p.failure("the side").Error()
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
	r.Result = &offer.Result{Pool: r.Side, Work: r.Shape, Rate: r.Rate, Warmup: r.Warmup, Duration: r.Window}
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

// watchForeign begins to watch what else the machine does. The returned function
// says how many CPUs were busy with anything but this process and one that has
// ended.
func watchForeign() func(p *process) float64 {
	began := time.Now()
	before, err := busyOthers()
	return func(p *process) float64 {
		after, err2 := busyOthers()
		if errors.Join(err, err2) != nil {
			return -1
		}
		state := p.cmd.ProcessState
		return max(0, part(after-before-state.UserTime()-state.SystemTime(), time.Since(began)))
	}
}

// busyOthers is the processor time of all but this process.
func busyOthers() (time.Duration, error) {
	all, err := procfs.ReadCPUs()
	own, err2 := procfs.ReadStat(os.Getpid())
	return all.All.Busy + all.All.Stolen - own.CPU(), errors.Join(err, err2)
}

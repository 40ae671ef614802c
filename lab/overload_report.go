package lab

import (
	"slices"

	"github.com/myriad-go/myriad/internal/page"
)

// offered says whether a run has said what became of the jobs. One that the watchdog has
// ended counts with what it had counted.
func (r *RunRecord) offered() bool {
	return r.Error == "" && r.Overload != nil && r.Overload.Result != nil
}

// The figures of runs of kind Offering. Their latencies are p50 and p99.
var (
	offered        = Figure{"offered", "offered", page.Number, Neither, nil, of(overloadOf, func(r *OverloadRun) float64 { return float64(r.Result.Offered) })}
	finished       = Figure{"finished", "finished", page.Number, Higher, nil, of(overloadOf, func(r *OverloadRun) float64 { return float64(r.Result.Finished) })}
	rejected       = Figure{"rejected", "rejected", page.Number, Neither, nil, of(overloadOf, func(r *OverloadRun) float64 { return float64(r.Result.Rejected) })}
	expired        = Figure{"expired", "expired", page.Number, Neither, nil, of(overloadOf, func(r *OverloadRun) float64 { return float64(r.Result.Expired) })}
	shed           = Figure{"shed", "shed", page.Number, Neither, nil, of(overloadOf, func(r *OverloadRun) float64 { return float64(r.Result.Shed) })}
	goodput        = Figure{"goodput", "goodput/s", page.Number, Higher, nil, of(overloadOf, (*OverloadRun).goodput)}
	ofCapacity     = Figure{"of-capacity", "of capacity", page.Share, Higher, nil, of(overloadOf, func(r *OverloadRun) float64 { return r.ofCapacity(r.goodput()) })}
	offeredTimes   = Figure{"offered-times", "offered, of capacity", page.Number, Neither, twoDecimals, of(overloadOf, func(r *OverloadRun) float64 { return r.ofCapacity(r.Rate) })}
	jobP999        = Figure{"job-p999", "p99.9", page.Seconds, Lower, nil, of(overloadOf, func(r *OverloadRun) float64 { return ran(r.Result.P999) / 1e9 })}
	peakMemory     = Figure{"peak-memory", "peak memory", page.Bytes, Lower, func(v float64) string { return megabytes(int64(v)) }, known(of(overloadOf, func(r *OverloadRun) float64 { return float64(r.PeakRSS) }))}
	peakGoroutines = Figure{"peak-goroutines", "peak goroutines", page.Number, Lower, nil, known(of(overloadOf, func(r *OverloadRun) float64 { return float64(r.Result.PeakGoroutines) }))}
	peakWorkers    = Figure{"peak-workers", "peak workers", page.Number, Neither, nil, known(of(overloadOf, func(r *OverloadRun) float64 { return float64(r.Result.PeakWorkers) }))}
	coresUsed      = Figure{"cores", "CPUs busy", page.Number, Lower, twoDecimals, known(of(overloadOf, (*OverloadRun).cores))}
)

// ofCapacity is so many a second as a part of the capacity, 0 where that is not known.
func (r *OverloadRun) ofCapacity(rate float64) float64 {
	if r.Capacity <= 0 {
		return 0
	}
	return rate / r.Capacity
}

// The latencies of jobs, in nanoseconds.
func runP50(r *OverloadRun) float64 { return ran(r.Result.P50) }
func runP99(r *OverloadRun) float64 { return ran(r.Result.P99) }

// sideOf is how a subject is offered jobs.
func (r *Report) sideOf(subject string) Side {
	i := slices.IndexFunc(r.Scenario.Subjects, func(s Subject) bool { return s.Name == subject && s.Side != nil })
	if i < 0 {
		return Side{}
	}
	return *r.Scenario.Subjects[i].Side
}

// own finds the row of the pool of this repository, with all its rules; an empty one when
// it was not run.
func (r *Report) own(rows []row) row {
	for _, w := range rows {
		if side := r.sideOf(w.subject); side.Own && !side.Variant {
			return w
		}
	}
	return row{}
}

// peak is the most memory of all rounds, in bytes; 0 is not known.
func (w row) peak() (most int64) {
	for _, run := range w.runs {
		if run.Overload != nil {
			most = max(most, run.Overload.PeakRSS)
		}
	}
	return most
}

// ended are the runs that the watchdog has ended.
func (w row) ended() (runs []*RunRecord) {
	for _, run := range w.runs {
		if run.Overload != nil && run.Overload.Ended != nil {
			runs = append(runs, run)
		}
	}
	return runs
}

// goodput is how many jobs a second have ended within their deadline. Those that
// were submitted last may have ended up to a deadline after the time in which jobs
// were offered. After a warm-up they are those that ended in that time, whenever
// they were submitted, since others were under way when it began. Of a process that was ended the time is all that was planned.
func (r *OverloadRun) goodput() float64 {
	window := min(r.Result.Elapsed, r.Window+r.Deadline)
	good := r.Result.Good
	if r.Result.Warmup > 0 {
		good, window = r.Result.Steady, min(r.Result.Elapsed, r.Window)
	}
	if r.Ended != nil {
		window = r.Window
	}
	if window <= 0 {
		return 0
	}
	return float64(good) / window.Seconds()
}

// cores is how many CPUs the process kept busy.
func (r *OverloadRun) cores() float64 {
	return part(r.Result.CPUUser+r.Result.CPUSystem, r.Result.Elapsed)
}

package probe

import (
	"time"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/stats"
)

var jobsProbe = Probe{
	Figures: []Figure{
		{Name: "goodput", Heading: "goodput/s", Better: Higher, Main: true},
		{Name: "start-goodput", Heading: "goodput/s in the warm-up", Better: Higher},
		{Name: "of-capacity", Heading: "of capacity", Unit: page.Share, Better: Higher},
		{Name: "offered", Heading: "offered"},
		{Name: "finished", Heading: "finished", Better: Higher},
		{Name: "rejected", Heading: "rejected"},
		{Name: "expired", Heading: "expired"},
		{Name: "shed", Heading: "shed"},
		{Name: "offered-rate", Heading: "offered/s", Hidden: true},
		{Name: "job-p999", Heading: "p99.9", Unit: page.Seconds, Better: Lower},
		{Name: "reject-p50", Heading: "rejected in p50", Unit: page.Seconds, Better: Lower},
		{Name: "reject-p99", Heading: "rejected in p99", Unit: page.Seconds, Better: Lower},
		{Name: "shed-p50", Heading: "shed in p50", Unit: page.Seconds, Better: Lower},
		{Name: "shed-p99", Heading: "shed in p99", Unit: page.Seconds, Better: Lower},
		{Name: "gc-share", Heading: "GC", Unit: page.Share, Better: Lower},
		{Name: "switches", Heading: "switches/s", Better: Lower},
		{Name: "sched-p99", Heading: "scheduler p99", Unit: page.Seconds, Better: Lower},
		{Name: "peak-memory", Heading: "peak memory", Unit: page.Bytes, Better: Lower, CustomFormat: formatMegabytes},
		{Name: "peak-goroutines", Heading: "peak goroutines", Better: Lower},
		{Name: "peak-workers", Heading: "peak workers"},
		{Name: "recovery", Heading: "recovery", Unit: page.Seconds, Better: Lower},
		{Name: "others-kept", Heading: "share kept by light sources", Unit: page.Share, Better: Higher},
		{Name: "server-cores", Heading: "CPUs busy in the server", CustomFormat: formatTwoDecimals},
		{Name: "cores", Heading: "CPUs busy", Better: Lower, CustomFormat: formatTwoDecimals},
		{Name: "cores-system", Heading: "of them in the kernel", Better: Lower, CustomFormat: formatTwoDecimals},
	},
	Measure: func(in RunInput, set func(string, float64)) {
		j := in.Run.Jobs
		if j == nil || j.Result == nil {
			return
		}
		r := j.Result
		good := jobsPerSecondInDeadline(j)
		set("goodput", good)
		if r.Warmup > 0 {
			set("start-goodput", float64(r.Starting)/r.Warmup.Seconds())
		}
		set("offered", float64(r.Offered))
		set("finished", float64(r.Finished))
		set("rejected", float64(r.Rejected))
		set("expired", float64(r.Expired))
		set("shed", float64(r.Shed))
		set("offered-rate", j.Rate)
		if j.Capacity > 0 {
			set("of-capacity", good/j.Capacity)
		}
		setServerFigures(j, set)
		for name, d := range map[string]time.Duration{"p50": r.P50, "p99": r.P99, "job-p999": r.P999, "mean": r.Mean} {
			if d > 0 {
				set(name, d.Seconds())
			} else {
				set(name, stats.Never) // no job has run
			}
		}
		for name, v := range map[string]float64{
			"peak-memory": float64(j.PeakRSS), "peak-goroutines": float64(r.PeakGoroutines), "peak-workers": float64(r.PeakWorkers),
			"cores": ratioOrZero(r.CPU(), r.Elapsed), "cores-system": ratioOrZero(r.System, r.Elapsed),
			"switches": float64(r.Voluntary+r.Involuntary) / max(r.Elapsed.Seconds(), 1e-9), "gc-share": r.GCShare, "sched-p99": r.SchedP99.Seconds(),
			"reject-p50": r.RejectP50.Seconds(), "reject-p99": r.RejectP99.Seconds(), "shed-p50": r.ShedP50.Seconds(), "shed-p99": r.ShedP99.Seconds(),
		} {
			if v > 0 {
				set(name, v)
			}
		}
	},
}

// setServerFigures sets the figures of a contender that is a server. The figure "others-kept" states whether the server
// treats clients fairly. Ten in eleven jobs come from one address, and one in eleven comes from the further addresses
// (Plan.Sources). A fair server finishes the same number of jobs for each address, unless an address submits fewer.
// "others-kept" is the number of jobs that the server finished for the further addresses, divided by the number that a
// fair server would finish for them.
func setServerFigures(j *result.Jobs, set func(string, float64)) {
	s := j.Result.Server
	if s == nil {
		return
	}
	set("recovery", s.Recovery.Seconds())
	set("server-cores", ratioOrZero(s.CPU, j.Result.Elapsed))
	if sources := float64(j.Result.Sources); sources > 0 {
		fair := min(float64(j.Result.Offered)/11, float64(s.Finished)*sources/(sources+1))
		set("others-kept", float64(s.FinishedOfOthers)/max(fair, 1))
	}
}

func jobsPerSecondInDeadline(j *result.Jobs) float64 {
	window := min(j.Result.Elapsed, j.Window+j.Deadline)
	good := j.Result.Good
	if j.Result.Warmup > 0 {
		good, window = j.Result.Steady, min(j.Result.Elapsed, j.Window)
	}
	if j.Killed != nil {
		window = j.Window
	}
	if window <= 0 {
		return 0
	}
	return float64(good) / window.Seconds()
}

// Goodput returns the number of jobs per second that ended within their deadline, or 0 for a run without jobs.
func Goodput(r *result.Run) float64 {
	if r.Jobs == nil || r.Jobs.Result == nil {
		return 0
	}
	return jobsPerSecondInDeadline(r.Jobs)
}

package lab

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

const (
	// standardRepeats is how often a disturbed run is made again unless Options say
	// otherwise.
	standardRepeats = 2
	// repeatShare is the part of the planned time that all repeats together may take: a
	// machine that is never quiet is not waited for.
	repeatShare = 4
)

// repeater decides whether a run is made again.
type repeater struct {
	most    int           // attempts beside the first
	planned time.Duration // of all steps
	spent   time.Duration // by repeats
	refused int           // steps that were not run again for want of time
}

// wants says whether a step is to be run, after these attempts.
func (r *repeater) wants(attempts []RunRecord, takes time.Duration) bool {
	n := len(attempts)
	if n == 0 {
		return true
	}
	if n > r.most || !attempts[n-1].again() {
		return false
	}
	if r.spent+takes > r.planned/repeatShare {
		r.refused++
		return false
	}
	return true
}

// made counts attempts of one step, of which so many were counted before.
func (r *repeater) made(attempts []RunRecord, before int) {
	for i := max(before, 1); i < len(attempts); i++ {
		r.spent += attempts[i].Took
	}
}

// note notes what was not made again, if there is any.
func (r *repeater) note(b *Book) {
	if r.refused > 0 {
		b.note("Runs that something else on the machine disturbed were made again until that had taken a quarter of the planned time, %v; %d more were not.",
			(r.planned / repeatShare).Round(time.Second), r.refused)
	}
}

// supersede has one attempt of a step count: the first that nothing disturbed, or
// otherwise the one that the least disturbed, or otherwise the last. One that failed counts
// if all have.
func supersede(attempts []RunRecord) {
	counts := len(attempts) - 1
	for i := range attempts {
		a := &attempts[i]
		if a.Error == "" && !a.noisy() {
			counts = i
			break
		}
		if a.better(&attempts[counts]) {
			counts = i
		}
	}
	for i := range attempts {
		attempts[i].Superseded = i != counts
	}
}

// better says whether of two attempts that something disturbed this one counts.
func (r *RunRecord) better(than *RunRecord) bool {
	if r.Error != "" || than.Error != "" {
		return r.Error == "" && than.Error != ""
	}
	return r.foreign() < than.foreign()
}

// noisy says whether something else on the machine disturbed the run.
func (r *RunRecord) noisy() bool {
	return slices.ContainsFunc(r.Marks, func(m Mark) bool { return m.Rule == RuleNoise })
}

// again says whether something disturbed the run so that it is to be made again. Memory
// does not suffer from what others do: a run whose figures are of memory is only marked.
func (r *RunRecord) again() bool {
	return r.noisy() && r.Idle == nil && r.Parked == nil && r.Million == nil
}

// markNoise marks a run that something else on the machine disturbed. Under Soaking the
// clients live in the lab, and not the speed of anything is measured.
func (r *RunRecord) markNoise(kind Kind) {
	if f := r.foreign(); f > noiseTolerance && kind != Soaking {
		text := fmt.Sprintf("something else took %.0f %% of a CPU", f*100)
		if stolen := r.stolen(); stolen >= 0.005 {
			text += fmt.Sprintf(", of which the host took %.0f %%", stolen*100)
		}
		r.Marks = append(r.Marks, Mark{RuleNoise, text})
	}
}

// foreign is how many CPUs something else kept busy, as far as it is known: in the window,
// or in the whole run if there is none.
func (r *RunRecord) foreign() float64 {
	switch {
	case r.Throughput != nil && r.Throughput.Server != nil:
		return r.Throughput.Server.Foreign
	case r.Heartbeats != nil && r.Heartbeats.Server != nil:
		return r.Heartbeats.Server.Foreign
	case r.Flood != nil && r.Flood.Server != nil:
		return r.Flood.Server.Foreign
	}
	return r.Foreign
}

// stolen is how many CPUs of foreign the host of a virtual machine took.
func (r *RunRecord) stolen() float64 {
	if r.Throughput == nil && r.Heartbeats == nil && r.Flood == nil {
		return r.Stolen
	}
	from, to := r.sample(Measuring), r.sample(Measured)
	if from == nil || to == nil {
		return 0
	}
	return max(0, part(to.Stolen-from.Stolen, to.At.Sub(from.At)))
}

// foreignIn is how many CPUs anything but server, load and lab kept busy between two
// samples.
func (r *RunRecord) foreignIn(from, to *Sample) float64 {
	between := to.At.Sub(from.At)
	load := part(r.Result.UserCPU+r.Result.SystemCPU, r.Result.Window)
	return max(0, part(to.Busy-from.Busy-(to.CPU()-from.CPU())-(to.Lab-from.Lab), between)-load)
}

// watchForeign begins to watch what else the machine does. The returned function says how
// many CPUs were busy with anything but this process and those that it has started and
// waited for meanwhile, with theirs, and how many of them the host of a virtual machine took;
// 0 where the system does not tell. What one of them has started and left behind counts as
// something else.
func watchForeign() func() (foreign, stolen float64) {
	began := time.Now()
	before, stolenBefore, err := busyOthers()
	return func() (foreign, stolen float64) {
		after, stolenAfter, err2 := busyOthers()
		if errors.Join(err, err2) != nil {
			return 0, 0
		}
		took := time.Since(began)
		return max(0, part(after-before, took)), max(0, part(stolenAfter-stolenBefore, took))
	}
}

// busyOthers is the processor time of all but this process and what it has waited for, and
// what of it the host took.
func busyOthers() (others, stolen time.Duration, err error) {
	all, err := procfs.ReadCPUs()
	own, err2 := procfs.ReadStat(os.Getpid())
	return all.All.Busy + all.All.Stolen - own.CPU() - own.Waited, all.All.Stolen, errors.Join(err, err2)
}

package lab

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

// OverloadEnd says how the watchdog has ended a process.
type OverloadEnd struct {
	// After is how long the process had run.
	After time.Duration `json:"after"`
	// RSS is its memory then, Most what it was allowed, in bytes.
	RSS  int64 `json:"rss"`
	Most int64 `json:"most"`
	// Warming says that it was in the warm-up still.
	Warming bool `json:"warming,omitempty"`
}

func (e *OverloadEnd) String() string {
	warming := ""
	if e.Warming {
		warming = ", in the warm-up,"
	}
	return fmt.Sprintf("ended by the watchdog at %.1f s%s with %.2f GB (allowed: %.2f GB)",
		e.After.Seconds(), warming, float64(e.RSS)/1e9, float64(e.Most)/1e9)
}

// guard has a watchdog at a process until the returned function is called, which
// waits for it and notes what it has seen.
func (o *overload) guard(rec *RunRecord, p *process) (stop func()) {
	w := watchdog{process: p, most: o.load.Memory}
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() { w.watch(ctx) })
	return func() {
		cancel()
		wait.Wait()
		run := rec.Overload
		run.PeakRSS, run.Ended = max(run.PeakRSS, w.peak), w.ended
		if w.peak == 0 && w.err != nil {
			rec.Marks = append(rec.Marks, Mark{RuleUnguarded, fmt.Sprintf("the memory of the process is not known: %v", w.err)})
		}
	}
}

// watchdogEvery is the time between two looks of a watchdog.
const watchdogEvery = 20 * time.Millisecond

// watchdog ends a process that takes more memory than it may. Its fields but for
// the first two are valid when watch has returned.
type watchdog struct {
	process *process
	most    int64 // bytes
	peak    int64 // bytes
	ended   *OverloadEnd
	err     error // of the last look that failed
}

// watch looks at the process until it has ended or ctx has. It looks at the most that
// the process has ever had, so that nothing escapes between two looks, and ends it
// by its handle, which never means another one.
func (w *watchdog) watch(ctx context.Context) {
	began := time.Now()
	tick := time.NewTicker(watchdogEvery)
	defer tick.Stop()
	for {
		if m, err := procfs.ReadResident(w.process.pid()); err != nil {
			w.err = err // it has ended, or this system does not tell
		} else if w.peak = max(w.peak, m.Peak); w.peak > w.most {
			w.ended = &OverloadEnd{After: time.Since(began), RSS: w.peak, Most: w.most}
			_ = w.process.cmd.Process.Kill() // an error says that it has ended
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-w.process.done:
			return
		case <-tick.C:
		}
	}
}

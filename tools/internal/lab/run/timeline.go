package run

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/procfs"
	"github.com/myriad-go/myriad/tools/internal/sample"
	"github.com/myriad-go/myriad/tools/load"
)

const (
	firstTickInterval = time.Second
	// maxTicks limits the ticks of a run. At the limit, every other tick is dropped and the interval doubled.
	maxTicks         = 3600
	adminTickTimeout = 500 * time.Millisecond
)

// timelineRecorder records figures of a run at regular intervals. The methods of a nil recorder do nothing.
type timelineRecorder struct {
	record   *result.Run
	server   int // process group of the server
	admin    *adminClient
	workers  bool // several processes: the supervisor reports for all
	sampler  [2]sample.Sampler
	interval time.Duration
	ticks    []result.Tick
	cancel   context.CancelFunc
	wait     sync.WaitGroup

	generatorGroup, open, answered atomic.Int64 // process group and progress of the generator
	generatorUsage                 atomic.Pointer[load.Usage]
}

// startTimeline starts to record the figures of a run at regular intervals. The caller must call stopAndStoreTimeline.
func (r *runner) startTimeline(record *result.Run, server *process, admin *adminClient) (nilIfNotSampled *timelineRecorder) {
	if !r.sampled {
		return nil
	}
	ctx, stops := context.WithCancel(context.Background())
	t := &timelineRecorder{record: record, server: server.pid(), admin: admin, workers: record.Processes > 1, interval: firstTickInterval, cancel: stops}
	t.wait.Go(func() {
		t.sampleTickUnlessServerEnded(ctx)
		for sleepContext(ctx, t.interval) == nil {
			t.sampleTickUnlessServerEnded(ctx)
		}
	})
	return t
}

func (t *timelineRecorder) stopAndStoreTimeline() {
	if t == nil {
		return
	}
	t.cancel()
	t.wait.Wait()
	t.sampleTickUnlessServerEnded(context.Background())
	t.record.Timeline = t.ticks
}

func (t *timelineRecorder) sampleTickUnlessServerEnded(ctx context.Context) {
	tick := result.Tick{At: time.Since(t.record.Started)}
	generator := int(t.generatorGroup.Load())
	groups, err := procfs.PIDsByProcessGroup(t.server, generator)
	if err != nil || len(groups[t.server]) == 0 {
		return
	}
	const parts = sample.CPU | sample.Memory | sample.PSS | sample.Switches
	taken, err := t.sampler[0].TakeSampleThrottlingSlowParts(parts|sample.MachineMemory, groups[t.server]...)
	if err != nil {
		return
	}
	tick.Server, tick.Slab = totalUsage(&taken), taken.Machine.Slab
	if generator != 0 {
		taken, _ := t.sampler[1].TakeSampleThrottlingSlowParts(parts, groups[generator]...)
		tick.Load = totalUsage(&taken)
		tick.Open, tick.Answered = t.open.Load(), t.answered.Load()
		if used := t.generatorUsage.Load(); used != nil {
			tick.Load.Goroutines, tick.Load.GCs = used.Goroutines, used.GCs
		}
	}
	t.readServerRuntimeInto(ctx, &tick.Server)
	if len(t.ticks) >= maxTicks {
		t.dropAlternateTicksAndDoubleInterval()
	}
	t.ticks = append(t.ticks, tick)
}

func (t *timelineRecorder) readServerRuntimeInto(ctx context.Context, usage *load.Usage) {
	if t.admin == nil || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, adminTickTimeout)
	defer cancel()
	t.admin.readRuntimeUsageInto(ctx, t.workers, usage)
}

func (t *timelineRecorder) dropAlternateTicksAndDoubleInterval() {
	kept := t.ticks[:0]
	for i := 0; i < len(t.ticks); i += 2 {
		kept = append(kept, t.ticks[i])
	}
	t.ticks = kept
	t.interval *= 2
}

// switchGeneratorGroup sets the process group of the load generator that the timeline records. groupOrZero is 0 if no
// load generator runs.
func (t *timelineRecorder) switchGeneratorGroup(groupOrZero int) {
	if t == nil {
		return
	}
	t.open.Store(0)
	t.answered.Store(0)
	t.generatorUsage.Store(nil)
	t.generatorGroup.Store(int64(groupOrZero))
}

func (t *timelineRecorder) storeLatestFigures(e load.Event) {
	if t == nil {
		return
	}
	t.open.Store(e.Snapshot.Open)
	t.answered.Store(e.Snapshot.Answered)
	if e.Interval != nil {
		t.generatorUsage.Store(&e.Interval.Generator)
	}
}

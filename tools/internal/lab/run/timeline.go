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
	// firstTickInterval is the time between two ticks at the beginning of a run.
	firstTickInterval = time.Second
	// maxTicks is how many ticks a run keeps: at so many every second one is dropped, and
	// from then on there is twice the time between two.
	maxTicks = 3600
	// adminTickTimeout is how long a tick waits for what a server says of itself.
	adminTickTimeout = 500 * time.Millisecond
)

// timelineRecorder keeps the ticks of a run: one goroutine takes them from follow until stop, which
// waits for it. What the load generator says arrives on the run's goroutine meanwhile: that is
// a few atomics. A tick looks at /proc from outside, which takes the lab's time and not the
// server's. What the server says of itself is asked for over a connection to its admin
// address; that takes its time and memory, so that it is not asked where memory is what the
// run is about. All methods may be called on nil, which is the time line of a run without
// /proc.
type timelineRecorder struct {
	record   *result.Run
	server   int // process group
	admin    *adminClient
	workers  bool // the server has several processes, and one of them answers for all
	sampler  [2]sample.Sampler
	interval time.Duration
	ticks    []result.Tick
	cancel   context.CancelFunc
	wait     sync.WaitGroup

	generatorGroup, open, answered atomic.Int64 // of the generator
	generatorUsage                 atomic.Pointer[load.Usage]
}

// startTimeline begins the time line of a run whose server is ready. stop fills Run.Timeline in.
func (r *runner) startTimeline(record *result.Run, server *process, admin *adminClient) *timelineRecorder {
	if !r.sampled {
		return nil
	}
	ctx, stops := context.WithCancel(context.Background())
	t := &timelineRecorder{record: record, server: server.pid(), admin: admin, workers: record.Processes > 1, interval: firstTickInterval, cancel: stops}
	t.wait.Go(func() {
		t.addTick(ctx)
		for sleepContext(ctx, t.interval) == nil {
			t.addTick(ctx)
		}
	})
	return t
}

// stop ends it with a last tick.
func (t *timelineRecorder) stop() {
	if t == nil {
		return
	}
	t.cancel()
	t.wait.Wait()
	t.addTick(context.Background())
	t.record.Timeline = t.ticks
}

// addTick takes a tick. There is none once the server has ended. What can't be read stays 0.
func (t *timelineRecorder) addTick(ctx context.Context) {
	tick := result.Tick{At: time.Since(t.record.Started)}
	generator := int(t.generatorGroup.Load())
	groups, err := procfs.GroupProcesses(t.server, generator)
	if err != nil || len(groups[t.server]) == 0 {
		return
	}
	const parts = sample.CPU | sample.Memory | sample.PSS | sample.Switches
	taken, err := t.sampler[0].Take(parts|sample.MachineMemory, groups[t.server]...)
	if err != nil {
		return
	}
	tick.Server, tick.Slab = totalUsage(&taken), taken.Machine.Slab
	if generator != 0 {
		taken, _ := t.sampler[1].Take(parts, groups[generator]...)
		tick.Load = totalUsage(&taken)
		tick.Open, tick.Answered = t.open.Load(), t.answered.Load()
		if used := t.generatorUsage.Load(); used != nil {
			tick.Load.Goroutines, tick.Load.GCs = used.Goroutines, used.GCs
		}
	}
	t.addServerReport(ctx, &tick.Server)
	if len(t.ticks) >= maxTicks {
		t.dropEverySecondTick()
	}
	t.ticks = append(t.ticks, tick)
}

// addServerReport fills in what the server says in time.
func (t *timelineRecorder) addServerReport(ctx context.Context, usage *load.Usage) {
	if t.admin == nil || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, adminTickTimeout)
	defer cancel()
	t.admin.addRuntimeUsage(ctx, t.workers, usage)
}

// dropEverySecondTick drops every second tick, but not the first.
func (t *timelineRecorder) dropEverySecondTick() {
	kept := t.ticks[:0]
	for i := 0; i < len(t.ticks); i += 2 {
		kept = append(kept, t.ticks[i])
	}
	t.ticks = kept
	t.interval *= 2
}

// setGeneratorGroup says that a load generator has been started, or with 0 that it has ended.
func (t *timelineRecorder) setGeneratorGroup(group int) {
	if t == nil {
		return
	}
	t.open.Store(0)
	t.answered.Store(0)
	t.generatorUsage.Store(nil)
	t.generatorGroup.Store(int64(group))
}

// recordEvent takes an event of the load generator.
func (t *timelineRecorder) recordEvent(e load.Event) {
	if t == nil {
		return
	}
	t.open.Store(e.Snapshot.Open)
	t.answered.Store(e.Snapshot.Answered)
	if e.Interval != nil {
		t.generatorUsage.Store(&e.Interval.Generator)
	}
}

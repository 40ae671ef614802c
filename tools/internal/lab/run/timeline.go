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
	// tickEvery is the time between two ticks at the beginning of a run.
	tickEvery = time.Second
	// maxTicks is how many ticks a run keeps: at so many every second one is dropped, and
	// from then on there is twice the time between two.
	maxTicks = 3600
	// askBound is how long a tick waits for what a server says of itself.
	askBound = 500 * time.Millisecond
)

// timeline keeps the ticks of a run: one goroutine takes them from follow until stop, which
// waits for it. What the load generator says arrives on the run's goroutine meanwhile: that is
// a few atomics. A tick looks at /proc from outside, which takes the lab's time and not the
// server's. What the server says of itself is asked for over a connection to its admin
// address; that takes its time and memory, so that it is not asked where memory is what the
// run is about. All methods may be called on nil, which is the time line of a run without
// /proc.
type timeline struct {
	record  *result.Run
	server  int // process group
	admin   *admin
	workers bool // the server has several processes, and one of them answers for all
	sampler [2]sample.Sampler
	every   time.Duration
	ticks   []result.Tick
	stops   context.CancelFunc
	wait    sync.WaitGroup

	group, open, answered atomic.Int64 // of the generator
	used                  atomic.Pointer[load.Usage]
}

// follow begins the time line of a run whose server is ready. stop fills Run.Timeline in.
func (r *runner) follow(record *result.Run, server *process, admin *admin) *timeline {
	if !r.sampled {
		return nil
	}
	ctx, stops := context.WithCancel(context.Background())
	t := &timeline{record: record, server: server.pid(), admin: admin, workers: record.Processes > 1, every: tickEvery, stops: stops}
	t.wait.Go(func() {
		t.add(ctx)
		for pause(ctx, t.every) == nil {
			t.add(ctx)
		}
	})
	return t
}

// stop ends it with a last tick.
func (t *timeline) stop() {
	if t == nil {
		return
	}
	t.stops()
	t.wait.Wait()
	t.add(context.Background())
	t.record.Timeline = t.ticks
}

// add takes a tick. There is none once the server has ended. What can't be read stays 0.
func (t *timeline) add(ctx context.Context) {
	tick := result.Tick{At: time.Since(t.record.Started)}
	generator := int(t.group.Load())
	groups, err := procfs.Groups(t.server, generator)
	if err != nil || len(groups[t.server]) == 0 {
		return
	}
	const parts = sample.CPU | sample.Memory | sample.PSS | sample.Switches
	taken, err := t.sampler[0].Take(parts|sample.MachineMemory, groups[t.server]...)
	if err != nil {
		return
	}
	tick.Server, tick.Slab = sideOf(&taken), taken.Machine.Slab
	if generator != 0 {
		taken, _ := t.sampler[1].Take(parts, groups[generator]...)
		tick.Load = sideOf(&taken)
		tick.Open, tick.Answered = t.open.Load(), t.answered.Load()
		if used := t.used.Load(); used != nil {
			tick.Load.Goroutines, tick.Load.GCs = used.Goroutines, used.GCs
		}
	}
	t.ask(ctx, &tick.Server)
	if len(t.ticks) >= maxTicks {
		t.thin()
	}
	t.ticks = append(t.ticks, tick)
}

// ask fills in what the server says in time.
func (t *timeline) ask(ctx context.Context, to *load.Usage) {
	if t.admin == nil || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	t.admin.usage(ctx, t.workers, to)
}

// thin drops every second tick, but not the first.
func (t *timeline) thin() {
	kept := t.ticks[:0]
	for i := 0; i < len(t.ticks); i += 2 {
		kept = append(kept, t.ticks[i])
	}
	t.ticks = kept
	t.every *= 2
}

// generator says that a load generator has been started, or with 0 that it has ended.
func (t *timeline) generator(group int) {
	if t == nil {
		return
	}
	t.open.Store(0)
	t.answered.Store(0)
	t.used.Store(nil)
	t.group.Store(int64(group))
}

// observe takes an event of the load generator.
func (t *timeline) observe(e load.Event) {
	if t == nil {
		return
	}
	t.open.Store(e.Snapshot.Open)
	t.answered.Store(e.Snapshot.Answered)
	if e.Interval != nil {
		t.used.Store(&e.Interval.Generator)
	}
}

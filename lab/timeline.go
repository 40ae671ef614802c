package lab

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/load"
)

// Tick is one sample of a run's time line: both sides and the machine at one moment. A
// run has one a second at the most, but for the last, and a long run has fewer. Counters
// are since the process or the machine began, so that a reader can work out rates of any
// two ticks. What was not known is zero.
type Tick struct {
	// At is the time since RunRecord.Started.
	At     time.Duration `json:"at"`
	Server TickSide      `json:"server"`
	Load   TickSide      `json:"load"`
	// Slab is the kernel's memory of small objects, Free what nothing uses, in bytes.
	Slab int64 `json:"slab,omitempty"`
	Free int64 `json:"free,omitempty"`
	// Busy is the processor time of the whole machine, time stolen by a host included.
	Busy time.Duration `json:"busy,omitempty"`
	// Established, TimeWait and Orphans are TCP sockets of this network namespace, and
	// TCPMemory what their buffers take, in bytes.
	Established int64 `json:"established,omitempty"`
	TimeWait    int64 `json:"time_wait,omitempty"`
	Orphans     int64 `json:"orphans,omitempty"`
	TCPMemory   int64 `json:"tcp_memory,omitempty"`
	// Open is how many connections the load has, Answered how many messages have been
	// answered, as it said last.
	Open     int64 `json:"open,omitempty"`
	Answered int64 `json:"answered,omitempty"`
}

// TickSide is one side at a moment.
type TickSide struct {
	User   time.Duration `json:"user,omitempty"`
	System time.Duration `json:"system,omitempty"`
	// RSS, PSS and Anonymous are bytes.
	RSS       int64 `json:"rss,omitempty"`
	PSS       int64 `json:"pss,omitempty"`
	Anonymous int64 `json:"anonymous,omitempty"`
	Threads   int   `json:"threads,omitempty"`
	// Voluntary and Involuntary count context switches, of the threads that there are.
	Voluntary   int64 `json:"voluntary,omitempty"`
	Involuntary int64 `json:"involuntary,omitempty"`
	// Goroutines, GCs and GCPause are what Go's runtime says, where it can be asked, of
	// several processes their sum: how many collections there were, and how long they
	// stopped the world.
	Goroutines int64         `json:"goroutines,omitempty"`
	GCs        int64         `json:"gcs,omitempty"`
	GCPause    time.Duration `json:"gc_pause,omitempty"`
	// Lag is how long the turns of event loops have taken, and Turns how many there were:
	// the growth of both gives the mean.
	Lag   time.Duration `json:"lag,omitempty"`
	Turns int64         `json:"turns,omitempty"`
}

const (
	// tickEvery is the time between two ticks at the beginning of a run.
	tickEvery = time.Second
	// maxTicks is how many ticks a run keeps: at so many every second one is dropped,
	// and from then on there is twice the time between two.
	maxTicks = 3600
)

// timeline keeps the ticks of a run. A run takes the first one itself, when its server is
// ready; then one goroutine takes them, until the run stops it, waits, and takes the last.
// So one goroutine at a time looks, and the ticks need no lock. What the load generator
// says arrives on the run's goroutine meanwhile: that is a few atomics.
//
// A tick looks at /proc from outside, which takes the lab's time and not the server's,
// but for two figures that grow with the process: PSS, for which the kernel walks through
// its memory and lets it map none meanwhile, and context switches, which each thread has
// for itself. When one of them has taken more than slowLook it is left out for
// slowEvery. The Go figures of the generator come with its events. Those of the server
// are asked for over a connection that stays, which is there before the server's first
// sockets are counted; its answer takes the server's time, and some of its memory, so
// that it is not asked where memory is what the run is about.
//
// All methods may be called on nil, which is the time line of a run without /proc: it
// has no ticks.
type timeline struct {
	look  func() (Tick, bool)
	every time.Duration
	ticks []Tick
	rec   *RunRecord
	stops context.CancelFunc
	wait  sync.WaitGroup
	heard loadState
}

// loadState is what the load generator has said last.
type loadState struct {
	group                                          atomic.Int64 // its process group, 0 for none
	open, answered, goroutines, collections, pause atomic.Int64
}

// follow begins the time line of a run whose server is ready, with the first tick, and
// fills RunRecord.Timeline in when it is stopped; the caller stops it before it ends the
// server. admin is where the server shows metrics, "" for not to ask. processes is how
// many the server has.
func (r *runner) follow(rec *RunRecord, server *process, admin string, processes int) *timeline {
	if !r.sampled {
		return nil
	}
	ctx, stops := context.WithCancel(context.Background())
	t := &timeline{every: tickEvery, rec: rec, stops: stops}
	l := newLook(ctx, rec.Started, server.pid(), &t.heard, newAsker(ctx, admin, processes))
	t.look = l.tick
	t.add()
	t.wait.Go(func() {
		defer l.close()
		t.run(ctx)
	})
	return t
}

// run takes ticks until ctx ends.
func (t *timeline) run(ctx context.Context) {
	for pause(ctx, t.every) == nil {
		t.add()
	}
}

// add takes a tick. There is none once the server has ended.
func (t *timeline) add() {
	tick, ok := t.look()
	if !ok {
		return
	}
	if len(t.ticks) >= maxTicks {
		t.thin()
	}
	t.ticks = append(t.ticks, tick)
}

// thin drops every second tick, but not the first.
func (t *timeline) thin() {
	kept := 0
	for i := 0; i < len(t.ticks); i += 2 {
		t.ticks[kept] = t.ticks[i]
		kept++
	}
	t.ticks = t.ticks[:kept]
	t.every *= 2
}

// stop ends it with a last tick. It may be called again.
func (t *timeline) stop() {
	if t == nil || t.rec.Timeline != nil {
		return
	}
	t.stops()
	t.wait.Wait()
	t.add()
	t.rec.Timeline = t.ticks
}

// generator says that a load generator has been started, or with 0 that it has ended.
func (t *timeline) generator(group int) {
	if t == nil {
		return
	}
	h := &t.heard
	for _, v := range []*atomic.Int64{&h.open, &h.answered, &h.goroutines, &h.collections, &h.pause} {
		v.Store(0)
	}
	h.group.Store(int64(group))
}

// hear takes an event of the load generator.
func (t *timeline) hear(e load.Event) {
	if t == nil {
		return
	}
	h := &t.heard
	h.open.Store(e.Snapshot.Open)
	h.answered.Store(e.Snapshot.Answered)
	if e.Interval != nil {
		own := e.Interval.Generator
		h.goroutines.Store(int64(own.Goroutines))
		h.collections.Store(own.GCs)
		h.pause.Store(int64(own.GCPause))
	}
}

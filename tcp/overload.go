package tcp

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/cgroup"
	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/overload"
)

// Overload configures the overload manager of a Server, which is on by default.
//
// The manager measures
//   - the memory, which is the larger of two shares: the live heap as a share of GOMEMLIMIT or of the machine's memory,
//     and the memory of the control group as a share of its limit
//   - the lag, which is the duration of the event loops' iterations
//   - how long requests wait for workers
//   - the number of connections and the size of their buffers
//
// Depending on these values, the manager takes the following actions. Stats.Overload shows the actions that are on.
//   - At 85 % of the memory, or 95 % of Limits.MaxConns: Limits.IdleTimeout and IdleTimeout of package web shrink to an
//     eighth.
//   - At 85 % of the memory, or 60 % of Limits.MaxBuffered: the server stops reading from connections whose unsent
//     output exceeds their share of the buffers (at least 4 KiB).
//   - At 92 % of the memory: HTTP connections close after their response.
//   - At 95 % of the memory, or a lag of 100 ms: new connections wait in the kernel's queue. After 5 s, the server
//     instead accepts them and refuses them before their TLS handshake. If only the lag is high, it still admits one
//     new connection in 20.
//   - At 97 % of the memory: the connections with the largest buffers close with ErrOverBudget.
//   - At 97 % of the memory, or if the lag has exceeded 250 ms for a second: the server sheds (rejects) requests. It
//     also sheds requests if more and more of them wait for workers, or if they have waited for more than a second.
//     Package web answers shed requests with 503, and a ShedHandler rejects them. Other handlers can call
//     Conn.ShouldShed.
//
// Under overload, requests and new connections are shared fairly among their source addresses: a busy source does not
// take the share of others. An IPv6 prefix of 64 bits is one source. With TrustedProxies, the source is the address in
// the PROXY header.
//
// An action ends when its cause has stayed a tenth below the action's threshold for a second. On kernels that report
// CPU pressure (/proc/pressure/cpu), a lag counts only while tasks wait for a CPU. Otherwise, a handler that blocks its
// loop would count as overload.
type Overload struct {
	// Off turns the overload manager off.
	Off bool
	// SourceWeights sets weights for fair sharing under overload. Each address in a prefix has the weight of the
	// prefix. An address of weight n counts as n sources, for example because n clients share it behind a NAT. The
	// default is 1, the maximum 1,000,000. Addresses of weight 0, such as load balancers without a PROXY header, are
	// exempt from fair sharing. The longest matching prefix applies.
	SourceWeights map[netip.Prefix]int
}

// OverloadStats is the state of the overload manager.
type OverloadStats struct {
	// Each field is 1 while the overload action of the same name is on. With Server.Processes, each field is the number
	// of workers in which the action is on.
	ShortenIdle, PauseLargest, EndKeepAlive, PauseAccepts, RefuseConns, ShedRequests, CloseSlowest int64
	// ShedQueueDelay counts requests shed because requests waited too long for a worker, ShedLag because the event
	// loops lagged, and ShedMemory because the memory was nearly exhausted.
	ShedQueueDelay, ShedLag, ShedMemory int64
}

func toOverloadStats(n *engine.Counts) OverloadStats {
	active := func(a overload.Action) int64 { return n[engine.OverloadActions+engine.Counter(a)] }
	return OverloadStats{
		ShortenIdle: active(overload.ShortenIdle), PauseLargest: active(overload.PauseLargest), EndKeepAlive: active(overload.EndKeepAlive),
		PauseAccepts: active(overload.PauseAccepts), RefuseConns: active(overload.RefuseConns),
		ShedRequests: active(overload.ShedRequests), CloseSlowest: active(overload.CloseSlowest),
		ShedQueueDelay: n[engine.ShedByQueueDelay], ShedLag: n[engine.ShedByLag], ShedMemory: n[engine.ShedByMemory],
	}
}

// IsActive reports whether any overload action is on.
func (s OverloadStats) IsActive() bool { return s.String() != "" }

// String returns the names of the overload actions that are on.
func (s OverloadStats) String() string {
	var names []string
	for a, on := range []int64{s.ShortenIdle, s.PauseLargest, s.EndKeepAlive, s.PauseAccepts, s.RefuseConns, s.ShedRequests, s.CloseSlowest} {
		if on > 0 {
			names = append(names, overload.Action(a).String())
		}
	}
	return strings.Join(names, ", ")
}

// ShouldShed reports whether the handler should reject the current request because the server is overloaded. It is for
// handlers that run on event loops. Call it once for each request, because each true result counts as a shed request.
func (c *Conn) ShouldShed() bool {
	e := c.core()
	return !e.Overload().Admit(nil, e.Peer().Addr(), e.Priority())
}

// SetCritical sets whether requests of the connection are exempt from shedding under overload. The default is false.
func (c *Conn) SetCritical(critical bool) {
	if c.inHandlerCallOrLogMisuse("SetCritical") {
		c.core().SetCritical(critical)
	}
}

// initOverloadManagerOrNilLocked creates the overload manager. It returns nil if Overload.Off is set, and in a
// supervisor. The caller must hold s.mu.
func (s *Server) initOverloadManagerOrNilLocked() *overload.Manager {
	if s.Overload.Off || s.isSupervisor() {
		return nil
	}
	s.overload = overload.NewManager(func() time.Duration { return engine.MonotonicNow() + 1 })
	s.overload.SetSourceWeights(s.Overload.SourceWeights)
	if runtime.GOMAXPROCS(0) == 1 {
		s.overload.MinTarget = singleProcessorMinTarget
	}
	return s.overload
}

// startOverloadManager starts a goroutine that samples the load and updates the manager's actions. It returns a
// function that ends the goroutine and waits for its end.
func (s *Server) startOverloadManager(e engine.Engine) (stop func()) {
	if s.overload == nil {
		return func() {}
	}
	quit, done, sampler := make(chan struct{}), make(chan struct{}), newOverloadSampler(e, s.limits)
	go func() {
		defer close(done)
		s.runOverloadManager(sampler, quit)
	}()
	return func() {
		close(quit)
		<-done
	}
}

// singleProcessorMinTarget is the time for which requests may wait for a worker before they are shed, if GOMAXPROCS is
// 1. The time is long because event loops and handlers that compute then alternate every 10 ms on the processor. As a
// result, requests that compute for 1 ms wait for up to 90 ms even if the server is only half busy.
const singleProcessorMinTarget = 100 * time.Millisecond

const overloadSampleInterval = 100 * time.Millisecond

func (s *Server) runOverloadManager(sampler *overloadSampler, quit <-chan struct{}) {
	defer sampler.collections.Wait()
	m := s.overload
	timer := time.NewTimer(overloadSampleInterval)
	defer timer.Stop()
	requested := m.Requested()
	for nextSample := time.Duration(0); ; {
		select {
		case <-timer.C:
		case <-requested:
			requested = nil
			timer.Reset(overload.BusyPeriod)
			continue
		case <-quit:
			return
		}
		now := engine.MonotonicNow() + 1
		next := m.Tick(now)
		if now >= nextSample {
			nextSample = now + overloadSampleInterval
			if sampleAndMaybeCollectGarbage := sampler.sampleAndMaybeCollectGarbage(now); m.Update(now, &sampleAndMaybeCollectGarbage) {
				s.logOverload(&sampleAndMaybeCollectGarbage)
			}
		}
		if requested = nil; next > overload.BusyPeriod {
			requested = m.Requested()
		}
		timer.Reset(next)
	}
}

func (s *Server) logOverload(sampleAndMaybeCollectGarbage *overload.Sample) {
	s.rateLimitedLogger().LogAttrs(context.Background(), slog.LevelWarn, "overload actions changed",
		slog.String("active", s.Stats().Overload.String()), slog.Duration("lag", sampleAndMaybeCollectGarbage.Lag), slog.Duration("queue_delay", s.overload.QueueDelay()),
		slog.Float64("memory", sampleAndMaybeCollectGarbage.Memory), slog.Float64("buffers", sampleAndMaybeCollectGarbage.Buffers), slog.Float64("connections", sampleAndMaybeCollectGarbage.Conns))
}

// overloadSampler measures the load for the overload manager.
type overloadSampler struct {
	engine      engine.Engine
	limits      Limits
	heapLimit   int64
	sampledAt   time.Duration
	pressure    time.Duration // total, see cgroup.CPUPressure
	counts      engine.Counts
	groupMemory float64 // share of the control group's limit
	readGroupAt time.Duration
	heap        []metrics.Sample
	collect     func() // debug.FreeOSMemory except in tests
	collecting  atomic.Bool
	collections sync.WaitGroup
	// collectedAt is the end of the last garbage collection that collectGarbageIfMemoryShort has started, and
	// collectionTime its duration. The goroutine that collects sets both while collecting is true.
	collectedAt, collectionTime time.Duration
}

func newOverloadSampler(e engine.Engine, l Limits) *overloadSampler {
	limit, _ := cgroup.SmallestKnownMemoryLimit()
	return &overloadSampler{engine: e, limits: l, heapLimit: limit, counts: e.Counters(), collect: debug.FreeOSMemory,
		heap: []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"},
			{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"}}}
}

func (r *overloadSampler) sampleAndMaybeCollectGarbage(now time.Duration) overload.Sample {
	n := r.engine.Counters()
	s := overload.Sample{
		Lag: n.LoopTurnTimes().DurationWeightedMeanSince(r.counts.LoopTurnTimes()), CPUPressure: -1,
		NumConns: n[engine.Open], MaxBuffered: int64(r.limits.MaxBuffered),
		Conns:   float64(n[engine.Open]) / float64(r.limits.MaxConns),
		Buffers: float64(n[engine.Buffered]) / float64(r.limits.MaxBuffered),
	}
	if total, ok := cgroup.CPUPressure(); ok {
		if r.sampledAt > 0 {
			s.CPUPressure = float64(total-r.pressure) / float64(now-r.sampledAt)
		}
		r.pressure, r.sampledAt = total, now
	}
	grows := n[engine.Open] > r.counts[engine.Open] || n[engine.Buffered] > r.counts[engine.Buffered]
	r.counts = n
	metrics.Read(r.heap)
	heap := float64(r.heap[0].Value.Uint64()+r.heap[1].Value.Uint64()) / float64(r.heapLimit)
	before := r.groupMemory
	if now >= r.readGroupAt || grows || before >= quietGroupMemory {
		r.readGroupAt, r.groupMemory = now+time.Second, 0
		if l, err := cgroup.ReadLimits(os.Getpid()); err == nil && l.Memory.File != "" && l.Memory.Max > 0 {
			r.groupMemory = float64(l.Memory.Used) / float64(l.Memory.Max)
		}
	}
	s.Memory = max(heap, r.groupMemory+max(r.groupMemory-before, 0)) // the group may grow as much again until the next sample
	r.collectGarbageIfMemoryShort(now, s.Memory)
	return s
}

const (
	// quietGroupMemory is a share of the control group's memory limit. Below this share, the memory of the group is
	// read only once a second, as long as neither buffers nor connections increase.
	quietGroupMemory = 0.5
	// In a control group with a memory limit, the server collects garbage and returns its memory to the kernel under
	// two conditions: the memory (see Overload) is at least freeGarbageAt, and the garbage is at least the share
	// minGarbage of the process's limit. Collections take at most a tenth of the time. If the memory is at least
	// freeUrgentlyAt, they take at most half of the time.
	freeGarbageAt, freeUrgentlyAt, minGarbage = 0.75, 0.9, 1. / 16
)

// collectGarbageIfMemoryShort starts a garbage collection if memoryShare is short and there is enough garbage. It does
// nothing while an earlier collection is still running. It does not wait for the collection, which takes seconds if no
// CPU is free.
func (r *overloadSampler) collectGarbageIfMemoryShort(now time.Duration, memoryShare float64) {
	garbage := float64(r.heap[2].Value.Uint64()) + float64(r.heap[3].Value.Uint64()) - float64(r.heap[0].Value.Uint64())
	if r.groupMemory == 0 || garbage < minGarbage*float64(r.heapLimit) || r.collecting.Load() || !r.mayCollectGarbage(now, memoryShare) {
		return
	}
	r.collecting.Store(true)
	r.collections.Go(func() {
		r.collect()
		r.collectedAt = engine.MonotonicNow() + 1
		r.collectionTime = r.collectedAt - now
		r.collecting.Store(false)
	})
}

func (r *overloadSampler) mayCollectGarbage(now time.Duration, memoryShare float64) bool {
	pause := 9 * r.collectionTime
	if memoryShare >= freeUrgentlyAt {
		pause = r.collectionTime
	}
	return memoryShare >= freeGarbageAt && now >= r.collectedAt+pause
}

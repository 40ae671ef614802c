package admin

import (
	"math"
	"net"
	"os"
	"runtime/metrics"
	"slices"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/histogram"
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/procfs"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

// Each sample reads the server's Stats and the process, and adds a point to the history that the page shows. Serve
// takes a sample every second. A request for the page also takes one if the last sample is old enough. Handler alone
// has no goroutine, so its history has points only while somebody views the page.
//
// One lock guards all state and is held during a sample. Expensive figures are read less often, and only if the page
// was requested in the last 10 s: the machine's limits every 10 s, which takes some ten milliseconds, and the
// connections' sockets every 2 s, if there are at most maxTalkerConns connections.

const (
	minSampleInterval = time.Second
	watchedTimeout    = 10 * time.Second // how long the page counts as viewed after a request
	maxSnapshotAge    = 10 * time.Second // rates are not computed from older snapshots
	childrenCacheTime = 10 * time.Second // time for which the list of worker processes is reused
	// sampleSlack is the tolerance for a ticker that fires early.
	sampleSlack = minSampleInterval / 10
)

type pageState struct {
	source     Source
	hasControl bool // the page shows buttons
	canUpgrade bool
	links      []page.Link

	mu              sync.Mutex
	start           time.Time      // time of the first sample
	firstWithMemory historyPoint   // the first point with memory figures
	points          []historyPoint // points of the last maxPointAge, the oldest first
	snapshots       []snapshot     // last maxSnapshots snapshots, the oldest first; rates are computed between them
	lastRequest     time.Time
	workers         workerPIDCache
	walls           machineLimitReport
	talkers         topTalkers
}

type snapshot struct {
	at    time.Time
	stats tcp.Stats
	used  sample.Sample // resources used by the server's processes
}

const maxSnapshots = 2

func (l *pageState) sampleEverySecond(stop <-chan struct{}) {
	ticker := time.NewTicker(minSampleInterval)
	defer ticker.Stop()
	l.refreshIfDue(time.Now())
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			l.refreshIfDue(time.Now())
		}
	}
}

func (l *pageState) refreshIfDue(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refreshIfDueLocked(now)
}

func (l *pageState) refreshIfDueLocked(now time.Time) {
	if n := len(l.snapshots); n == 0 || now.Sub(l.snapshots[n-1].at) >= minSampleInterval-sampleSlack {
		l.addSampleToHistoryLocked(now)
	}
	stats := l.snapshots[len(l.snapshots)-1].stats
	if now.Sub(l.lastRequest) >= watchedTimeout {
		l.walls, l.talkers = machineLimitReport{}, topTalkers{} // nobody views the page: release the memory
		return
	}
	at := l.listenAddr()
	l.walls.examineMachineIfDue(now, stats)
	l.talkers.readTrafficIfDue(now, stats, at)
}

func (l *pageState) listenAddr() net.Addr {
	if s, ok := l.source.(interface{ ListenAddr() net.Addr }); ok {
		return s.ListenAddr()
	}
	return nil
}

func (l *pageState) addSampleToHistoryLocked(now time.Time) {
	m := snapshot{at: now, stats: l.source.Stats()}
	if l.start.IsZero() {
		l.start = now
	}
	p := historyPoint{at: now, cpu: math.NaN(), rss: math.NaN(), anonymous: math.NaN()}
	m.used, _ = sample.TakeSample(sample.CPU|sample.Memory, l.workers.ownAndWorkerPIDs(now, m.stats)...) // unreadable figures are not shown
	if len(m.used.Processes) > 0 {
		total := m.used.SumOfProcesses()
		p.rss, p.anonymous = float64(total.RSS), float64(total.Anonymous)
	}
	p.heap, p.buffers = goHeapBytes(), float64(m.stats.Buffered)
	p.open = float64(m.stats.Open)
	var before *snapshot
	if n := len(l.snapshots); n > 0 {
		before = &l.snapshots[n-1]
	}
	p.setRatesBetween(before, &m)
	if l.firstWithMemory.at.IsZero() && !math.IsNaN(p.anonymous) {
		l.firstWithMemory = p
	}
	l.points, l.snapshots = append(l.points, p), append(l.snapshots, m)
	for len(l.points) > maxPoints || now.Sub(l.points[0].at) > maxPointAge {
		l.points = slices.Delete(l.points, 0, 1)
	}
	for len(l.snapshots) > maxSnapshots || now.Sub(l.snapshots[0].at) > maxSnapshotAge {
		l.snapshots = slices.Delete(l.snapshots, 0, 1)
	}
}

// setRatesBetween sets the rates of p from two snapshots. If before is nil, the rates are unknown (NaN).
func (p *historyPoint) setRatesBetween(before, now *snapshot) {
	if before == nil {
		before = &snapshot{at: now.at, stats: now.stats}
	}
	elapsed, was, is := now.at.Sub(before.at), &before.stats, &now.stats
	p.accepted, p.messages = growthPerSecondOrNaN(was.Accepted, is.Accepted, elapsed), growthPerSecondOrNaN(was.Messages, is.Messages, elapsed)
	p.reads = growthPerSecondOrNaN(was.Reads, is.Reads, elapsed)
	p.bytesIn, p.bytesOut = growthPerSecondOrNaN(was.BytesIn, is.BytesIn, elapsed), growthPerSecondOrNaN(was.BytesOut, is.BytesOut, elapsed)
	calls, turns := histogramGrowth(was.HandlerTime, is.HandlerTime), histogramGrowth(was.Lag, is.Lag)
	p.handler, p.handler50 = quantileSecondsOrNaN(calls, 0.99), quantileSecondsOrNaN(calls, 0.5)
	p.lag, p.lag50 = quantileSecondsOrNaN(turns, 0.99), quantileSecondsOrNaN(turns, 0.5)
	p.busy = math.NaN()
	if elapsed > 0 && is.Loops > 0 {
		p.busy = max(is.Busy-was.Busy, 0).Seconds() / elapsed.Seconds() / float64(is.Loops)
	}
	if p.cpu = math.NaN(); elapsed > 0 && len(before.used.Processes) > 0 {
		grown := now.used.DifferenceSince(&before.used).Process
		p.cpu = grown.CPU().Seconds() / elapsed.Seconds()
	}
}

func goHeapBytes() float64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return float64(sample[0].Value.Uint64())
}

type workerPIDCache struct {
	list           []int
	at             time.Time
	running, began int64
}

func (w *workerPIDCache) ownAndWorkerPIDs(now time.Time, s tcp.Stats) []int {
	running := int64(s.Processes)
	if w.list == nil || running != w.running || s.Restarts != w.began || now.Sub(w.at) >= childrenCacheTime && running > 0 {
		self := os.Getpid()
		w.list, w.at, w.running, w.began = []int{self}, now, running, s.Restarts
		if running > 0 {
			if children, err := procfs.ChildPIDs(self); err == nil {
				w.list = append(w.list, children...)
			}
		}
	}
	return w.list
}

func (l *pageState) latestPointWithMeanRates() historyPoint {
	p := l.points[len(l.points)-1]
	p.setRatesBetween(&l.snapshots[0], &l.snapshots[len(l.snapshots)-1])
	return p
}

const (
	maxPoints   = 600              // number of points
	maxPointAge = 10 * time.Minute // age of points
)

// historyPoint contains figures of a server at one time. Unknown values are NaN.
type historyPoint struct {
	at                            time.Time
	open                          float64
	accepted, messages, reads     float64 // per second
	bytesIn, bytesOut             float64 // bytes per second
	handler, handler50            float64 // 99th and 50th percentile in seconds
	lag, lag50                    float64
	busy                          float64 // share of the loops' time
	rss, anonymous, heap, buffers float64 // bytes
	cpu                           float64 // number of processors in use
}

// growthPerSecondOrNaN returns the growth of a counter per second, 0 if it has shrunk, and NaN if elapsed is 0.
func growthPerSecondOrNaN(before, now int64, elapsed time.Duration) float64 {
	if elapsed <= 0 {
		return math.NaN()
	}
	// A counter shrinks when a worker process is killed.
	return float64(max(now-before, 0)) / elapsed.Seconds()
}

func histogramGrowth(before, now tcp.Histogram) (h tcp.Histogram) {
	for i := range now.Buckets {
		h.Buckets[i] = max(now.Buckets[i]-before.Buckets[i], 0)
		h.Count += h.Buckets[i]
	}
	return h
}

func quantileSecondsOrNaN(h tcp.Histogram, q float64) float64 {
	if h.Count == 0 {
		return math.NaN()
	}
	return histogram.QuantileUpperBound(h.Buckets[:], q).Seconds()
}

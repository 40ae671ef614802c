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

// This file is what the page of a server knows. A look reads the server's Stats and the
// process, and adds a point to the ring. Looks come from a goroutine of Serve, one a
// second as long as it serves, and from whoever asks for the page, when the last one is
// older than that: so Handler alone, which has no goroutine, knows what there was while
// somebody looked. All state is under one lock, which is held for a look; what takes
// longer is looked at only while somebody has asked for the page in the last 10 s, and
// less often: the walls, every 10 s, which takes some ten milliseconds, and the
// sockets of the connections, every 2 s, no more than maxTalks of them.

const (
	lookAgain   = time.Second      // between two looks
	watchedFor  = 10 * time.Second // after somebody has asked
	oldLook     = 10 * time.Second // a look before the last that is older gives no rates
	childrenFor = 10 * time.Second // how long a list of worker processes is used
	// lookSlack is by how much earlier a ticker may come.
	lookSlack = lookAgain / 10
)

// live is what is known of a server.
type live struct {
	source   Source
	buttons  bool // the page has them
	upgrades bool
	links    []page.Link

	mu      sync.Mutex
	began   time.Time // the first look
	base    point     // the first with memory in it
	points  []point   // of the last ringTime, the oldest first
	past    []moment  // the last pastRoom, the oldest first: rates are of the time between them
	asked   time.Time
	workers workers
	walls   walls
	talkers talkers
}

// moment is what was read at a time.
type moment struct {
	at    time.Time
	stats tcp.Stats
	used  sample.Sample // of the server's processes
}

// pastRoom is how many moments are kept. With more, the rates of a load that has ended would
// stand beside the connections that are open now.
const pastRoom = 2

// watch looks until stop is closed.
func (l *live) watch(stop <-chan struct{}) {
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	l.look(time.Now())
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			l.look(time.Now())
		}
	}
}

// look looks, if the last look is old enough.
func (l *live) look(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lookLocked(now)
}

func (l *live) lookLocked(now time.Time) {
	if n := len(l.past); n == 0 || now.Sub(l.past[n-1].at) >= lookAgain-lookSlack {
		l.read(now)
	}
	stats := l.past[len(l.past)-1].stats
	if now.Sub(l.asked) >= watchedFor {
		l.walls, l.talkers = walls{}, talkers{} // nobody looks: their memory is let go
		return
	}
	at := l.address()
	l.walls.look(now, stats)
	l.talkers.look(now, stats, at)
}

// address is where the server listens, nil if that is not known.
func (l *live) address() net.Addr {
	if s, ok := l.source.(interface{ ListenAddr() net.Addr }); ok {
		return s.ListenAddr()
	}
	return nil
}

// read reads the server and its processes, and adds a point.
func (l *live) read(now time.Time) {
	m := moment{at: now, stats: l.source.Stats()}
	if l.began.IsZero() {
		l.began = now
	}
	p := point{at: now, cpu: math.NaN(), rss: math.NaN(), anonymous: math.NaN()}
	m.used, _ = sample.Take(sample.CPU|sample.Memory, l.workers.pids(now, m.stats)...) // what can't be read is not shown
	if len(m.used.Processes) > 0 {
		total := m.used.Total()
		p.rss, p.anonymous = float64(total.RSS), float64(total.Anonymous)
	}
	p.heap, p.buffers = heap(), float64(m.stats.Buffered)
	p.open = float64(m.stats.Open)
	var before *moment
	if n := len(l.past); n > 0 {
		before = &l.past[n-1]
	}
	p.since(before, &m)
	if l.base.at.IsZero() && !math.IsNaN(p.anonymous) {
		l.base = p
	}
	l.points, l.past = append(l.points, p), append(l.past, m)
	for len(l.points) > ringRoom || now.Sub(l.points[0].at) > ringTime {
		l.points = slices.Delete(l.points, 0, 1)
	}
	for len(l.past) > pastRoom || now.Sub(l.past[0].at) > oldLook {
		l.past = slices.Delete(l.past, 0, 1)
	}
}

// since fills in what a point tells of the time between two moments; nil for no first
// one.
func (p *point) since(before, now *moment) {
	if before == nil {
		before = &moment{at: now.at, stats: now.stats}
	}
	over, was, is := now.at.Sub(before.at), &before.stats, &now.stats
	p.accepted, p.messages = perSecond(was.Accepted, is.Accepted, over), perSecond(was.Messages, is.Messages, over)
	p.reads = perSecond(was.Reads, is.Reads, over)
	p.bytesIn, p.bytesOut = perSecond(was.BytesIn, is.BytesIn, over), perSecond(was.BytesOut, is.BytesOut, over)
	calls, turns := grown(was.HandlerTime, is.HandlerTime), grown(was.Lag, is.Lag)
	p.handler, p.handler50 = quantile(calls, 0.99), quantile(calls, 0.5)
	p.lag, p.lag50 = quantile(turns, 0.99), quantile(turns, 0.5)
	p.busy = math.NaN()
	if over > 0 && is.Loops > 0 {
		p.busy = max(is.Busy-was.Busy, 0).Seconds() / over.Seconds() / float64(is.Loops)
	}
	if p.cpu = math.NaN(); over > 0 && len(before.used.Processes) > 0 {
		grown := now.used.Since(&before.used).Process
		p.cpu = grown.CPU().Seconds() / over.Seconds()
	}
}

// heap is what Go's heap of this process has, with what is not collected yet.
func heap() float64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return float64(sample[0].Value.Uint64())
}

// workers are the processes that serve.
type workers struct {
	list           []int
	at             time.Time
	running, began int64
}

// pids are the processes whose memory and processor time are those of the server: this
// one, and with worker processes its children.
func (w *workers) pids(now time.Time, s tcp.Stats) []int {
	running := int64(s.Processes)
	if w.list == nil || running != w.running || s.Restarts != w.began || now.Sub(w.at) >= childrenFor && running > 0 {
		self := os.Getpid()
		w.list, w.at, w.running, w.began = []int{self}, now, running, s.Restarts
		if running > 0 {
			if children, err := procfs.Children(self); err == nil {
				w.list = append(w.list, children...)
			}
		}
	}
	return w.list
}

// lately is the point of the last look, with rates since the one before.
func (l *live) lately() point {
	p := l.points[len(l.points)-1]
	p.since(&l.past[0], &l.past[len(l.past)-1])
	return p
}

// The bounds of what is remembered.
const (
	ringRoom = 600              // points
	ringTime = 10 * time.Minute // how old they may be
)

// point is how a server was at a moment, or since the point before. What is not known
// is NaN.
type point struct {
	at                            time.Time
	open                          float64
	accepted, messages, reads     float64 // a second
	bytesIn, bytesOut             float64 // a second
	handler, handler50            float64 // seconds: the 99th and the 50th of 100
	lag, lag50                    float64
	busy                          float64 // share of the loops' time
	rss, anonymous, heap, buffers float64 // bytes
	cpu                           float64 // processors
}

// perSecond is by how much a counter grew a second. One that shrank, because a worker
// process was killed, has not grown.
func perSecond(before, now int64, over time.Duration) float64 {
	if over <= 0 {
		return math.NaN()
	}
	return float64(max(now-before, 0)) / over.Seconds()
}

// grown is what a histogram has got since it was another one.
func grown(before, now tcp.Histogram) (h tcp.Histogram) {
	for i := range now.Buckets {
		h.Buckets[i] = max(now.Buckets[i]-before.Buckets[i], 0)
		h.Count += h.Buckets[i]
	}
	return h
}

// quantile is histogram.Quantile in seconds, NaN of none.
func quantile(h tcp.Histogram, q float64) float64 {
	if h.Count == 0 {
		return math.NaN()
	}
	return histogram.Quantile(h.Buckets[:], q).Seconds()
}

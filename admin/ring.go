package admin

import (
	"math"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/internal/histogram"
)

// The bounds of what is remembered.
const (
	ringRoom = 600              // points
	ringTime = 10 * time.Minute // how old they may be
)

// point is how a server was at a moment, or since the point before. What is not known
// is NaN.
type point struct {
	at                            time.Time
	open, greeting                float64
	accepted, messages, reads     float64 // a second
	bytesIn, bytesOut             float64 // a second
	handler, handler50            float64 // seconds: the 99th and the 50th of 100
	lag, lag50                    float64
	busy                          float64 // share of the loops' time
	rss, anonymous, heap, buffers float64 // bytes
	cpu                           float64 // processors
}

// ring has the last points, the oldest first: ringRoom at the most, and none that is
// older than ringTime.
type ring struct {
	points []point // a ring once it is full
	first  int
}

func (r *ring) add(p point) {
	if len(r.points) < ringRoom {
		r.points = append(r.points, p)
		return
	}
	r.points[r.first] = p
	r.first = (r.first + 1) % ringRoom
}

// since gives the points that are not too old, in order.
func (r *ring) since(now time.Time) []point {
	all := make([]point, 0, len(r.points))
	for i := range r.points {
		p := r.points[(r.first+i)%len(r.points)]
		if now.Sub(p.at) <= ringTime {
			all = append(all, p)
		}
	}
	return all
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
func grown(before, now myriad.Histogram) (h myriad.Histogram) {
	for i := range now.Buckets {
		h.Buckets[i] = max(now.Buckets[i]-before.Buckets[i], 0)
		h.Count += h.Buckets[i]
	}
	return h
}

// quantile is histogram.Quantile in seconds, NaN of none.
func quantile(h myriad.Histogram, q float64) float64 {
	if h.Count == 0 {
		return math.NaN()
	}
	return histogram.Quantile(h.Buckets[:], q).Seconds()
}

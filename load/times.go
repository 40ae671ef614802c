package load

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// maxLatency is the longest latency that is told apart; longer ones count as
// this one.
const maxLatency = time.Minute

// newHistogram makes a histogram of nanoseconds with three significant digits:
// steps of 1 ns up to 2 µs, of a thousandth of the value from there on.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(maxLatency), 3)
}

// distribution counts times. It takes memory with the first one, 221 KB, or 31 KB if
// it is coarse: there are several for each loop, and not every run has a use for all.
type distribution struct {
	counts *hdrhistogram.Histogram
	coarse bool // two significant digits, steps of a hundredth, are enough
}

// make makes room for times.
func (d *distribution) make() {
	switch {
	case d.counts != nil:
	case d.coarse:
		d.counts = hdrhistogram.New(1, int64(maxLatency), 2)
	default:
		d.counts = newHistogram()
	}
}

// record keeps n equal times.
func (d *distribution) record(t time.Duration, n int) {
	d.make()
	// The error says that a value is out of range, which these are not.
	_ = d.counts.RecordValues(int64(min(max(t, 0), maxLatency)), int64(n))
}

func (d *distribution) count() int64 {
	if d.counts == nil {
		return 0
	}
	return d.counts.TotalCount()
}

// add adds e to d.
func (d *distribution) add(e *distribution) {
	if e.count() == 0 {
		return
	}
	d.make()
	d.counts.Merge(e.counts)
}

func (d *distribution) reset() {
	if d.count() > 0 {
		d.counts.Reset()
	}
}

// percentile is one percentile, 0 if there is nothing.
func (d *distribution) percentile(at float64) time.Duration {
	if d.count() == 0 {
		return 0
	}
	return time.Duration(d.counts.ValueAtPercentile(at))
}

// times are distributions of times. A time is in one of window and outside, so
// that it is recorded once.
type times struct {
	window, outside    distribution // latencies that count, and that don't
	connect, firstByte distribution
	service, late      distribution // in an open loop, of the window
	heard              distribution // since the first that had the broadcast
}

func (t *times) all() []*distribution {
	return []*distribution{&t.window, &t.outside, &t.connect, &t.firstByte, &t.service, &t.late, &t.heard}
}

// newTimes makes empty distributions. With held connections all of them are coarse, as
// there can be very many loops.
func newTimes(held bool) *times {
	rough := distribution{coarse: true}
	return &times{connect: rough, firstByte: rough, heard: rough, outside: distribution{coarse: held}, window: distribution{coarse: held}}
}

// add adds u to t.
func (t *times) add(u *times) {
	from := u.all()
	for i, d := range t.all() {
		d.add(from[i])
	}
}

func (t *times) reset() {
	for _, d := range t.all() {
		d.reset()
	}
}

// takeTimes takes what shards have recorded since it was last taken, and leaves
// them spare, which is empty. What it returns can be spare the next time.
func (s *shard) takeTimes(spare *times) *times {
	s.mu.Lock()
	defer s.mu.Unlock()
	spare, s.times = s.times, spare
	return spare
}

// latencyOf reads off what distributions make together.
func latencyOf(distributions ...*distribution) Latency {
	var all distribution
	for _, d := range distributions {
		if len(distributions) == 1 {
			all = *d
		} else {
			all.add(d)
		}
	}
	return readLatency(all.counts)
}

// encode is a distribution in the form that HdrHistogram's libraries share, "" for an
// empty one.
func encode(d *distribution) string {
	if d.count() == 0 {
		return ""
	}
	b, err := d.counts.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return "" // only what the library can't write, and newHistogram's it can
	}
	return string(b)
}

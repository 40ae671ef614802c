package jobload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/myriad-go/myriad/tools/internal/sample"
)

// Result is what became of the jobs that were offered to a pool in the window: from
// the end of the warm-up on, for Duration. Those of the warm-up are run under the same
// load and are in none of its figures but the peaks and Steady. Every one that was
// offered is in exactly one place:
//
//	Offered  = Accepted + Rejected
//	Accepted = Finished + Expired + Shed + Unfinished
type Result struct {
	// Pool is the side, Work the shape of its jobs.
	Pool string `json:"pool"`
	Work string `json:"work"`
	// Rate is how many jobs a second were to be offered; 0 is a closed loop.
	Rate float64 `json:"rate"`
	// Warmup is for how long jobs were offered before the window, Duration for
	// how long in it. Elapsed is how long it took from the beginning of the
	// window until the last of its jobs ended, or until that was not waited for
	// any longer.
	Warmup   time.Duration `json:"warmup"`
	Duration time.Duration `json:"duration"`
	Elapsed  time.Duration `json:"elapsed"`
	// Iterations is how many rounds of the work's loop were taken to be a
	// millisecond of computing.
	Iterations uint64 `json:"iterations"`

	// Offered is how many jobs were submitted, Late how many of them more than
	// 10 ms after they were due. LateP99 is how late 99 % of them were at most; in
	// a closed loop nothing is due, and it is 0. Missed were due and had not been
	// submitted, because the generator did not get that far: the pool held it up,
	// or all processors. The latencies do not have in them what is counted here.
	Offered uint64        `json:"offered"`
	Late    uint64        `json:"late"`
	LateP99 time.Duration `json:"late_p99"`
	Missed  uint64        `json:"missed"`
	// Accepted and Rejected are what the pool said when a job was submitted.
	Accepted uint64 `json:"accepted"`
	Rejected uint64 `json:"rejected"`
	// Finished jobs have run: Good ones of them have ended within their deadline.
	Finished uint64 `json:"finished"`
	Good     uint64 `json:"good"`
	// Steady is how many jobs have ended in the window, within their deadline,
	// also those that were submitted in the warm-up. With a warm-up, this is what
	// there is to divide by Duration: what was under way at the beginning of the
	// window makes up for what still is at its end, whether a pool runs the oldest
	// first or the newest.
	Steady uint64 `json:"steady"`
	// Expired and Shed were accepted, and the pool said later that they won't
	// run. Unfinished had not ended when the run did.
	Expired    uint64 `json:"expired"`
	Shed       uint64 `json:"shed"`
	Unfinished uint64 `json:"unfinished"`

	// The latencies of finished jobs, from right before they were submitted to
	// the pool until they had ended.
	P50  time.Duration `json:"p50"`
	P99  time.Duration `json:"p99"`
	P999 time.Duration `json:"p999"`
	Max  time.Duration `json:"max"`
	Mean time.Duration `json:"mean"`

	// Process is what the process has used, generator included: processor time since the
	// window began, memory at the end, and the most memory that it has ever had.
	sample.Process
	// PeakGoroutines and PeakWorkers are the most goroutines, those of the generator
	// included, and workers that were seen when it was looked, twenty times a second, also in
	// the warm-up; 0 where the pool does not tell.
	PeakGoroutines int `json:"peak_goroutines"`
	PeakWorkers    int `json:"peak_workers"`

	// Overran says why the run ended early, or that it was ended because it did not end, ""
	// otherwise.
	Overran string `json:"overran,omitempty"`
}

// Line is a line of what a process of this package prints: each quarter of a second one
// with Warming in the warm-up, or with Progress in the window, and at last one with Result.
type Line struct {
	// Warming has the peaks so far and no counts.
	Warming *Result `json:"warming,omitempty"`
	// Progress is the Result so far.
	Progress *Result `json:"progress,omitempty"`
	Result   *Result `json:"result,omitempty"`
}

// ParseLine reads a line that Write has written.
func ParseLine(b []byte) (l Line, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return Line{}, fmt.Errorf("jobload: %q is no line of a result: %w", b, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Line{}, fmt.Errorf("jobload: %q is more than a line of a result", b)
	}
	n := 0
	for _, r := range []*Result{l.Warming, l.Progress, l.Result} {
		if r != nil {
			n++
		}
	}
	if n != 1 {
		return Line{}, fmt.Errorf("jobload: %q is no line of a result; expected one of warming, progress and result", b)
	}
	return l, nil
}

// Write writes the line.
func (l Line) Write(w io.Writer) error { return json.NewEncoder(w).Encode(l) }

// The counts of jobs, by their place in counts.
const (
	nOffered = iota
	nLate
	nRejected
	nFinished
	nGood
	nSteady
	nExpired
	nShed
	nCounts
)

type counts [nCounts]uint64

func (c *counts) unfinished() uint64 {
	return c[nOffered] - c[nRejected] - c[nFinished] - c[nExpired] - c[nShed]
}

// countShard is a shard of the counts of the window.
type countShard struct {
	mu sync.Mutex
	counts
	sum, max            time.Duration // of the latencies
	latencies, lateness *hdrhistogram.Histogram
	_                   [64]byte // keeps shards apart
}

// newCountShards makes the shards.
func newCountShards() []countShard {
	all := make([]countShard, 2*runtime.GOMAXPROCS(0))
	for i := range all {
		all[i].latencies, all[i].lateness = newHistogram(), newHistogram()
	}
	return all
}

// maxRecorded is the longest time that histograms tell from longer ones.
const maxRecorded = 73 * time.Minute

// newHistogram makes one with two significant digits: less than 0.8 % off.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(maxRecorded), 2) }

func recordDuration(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(int64(min(d, maxRecorded))) // which it has room for
}

// sumShards adds up the shards.
func (r *Result) sumShards(shards []countShard) {
	latencies, lateness, sum := newHistogram(), newHistogram(), time.Duration(0)
	var all counts
	for i := range shards {
		t := &shards[i]
		t.mu.Lock()
		for k, n := range t.counts {
			all[k] += n
		}
		r.Max = max(r.Max, t.max)
		sum += t.sum
		latencies.Merge(t.latencies)
		lateness.Merge(t.lateness)
		t.mu.Unlock()
	}
	r.Offered, r.Late, r.Rejected = all[nOffered], all[nLate], all[nRejected]
	r.Finished, r.Good, r.Steady = all[nFinished], all[nGood], all[nSteady]
	r.Expired, r.Shed, r.Unfinished = all[nExpired], all[nShed], all.unfinished()
	r.Accepted = r.Offered - r.Rejected
	r.LateP99 = time.Duration(lateness.ValueAtQuantile(99))
	if r.Finished > 0 {
		quantile := func(q float64) time.Duration { return min(time.Duration(latencies.ValueAtQuantile(q)), r.Max) }
		r.P50, r.P99, r.P999 = quantile(50), quantile(99), quantile(99.9)
		r.Mean = sum / time.Duration(r.Finished)
	}
}

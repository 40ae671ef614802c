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
	// Pool is the contender, Work the shape of its jobs.
	Pool string `json:"pool"`
	Work string `json:"work"`
	// Rate is the planned number of jobs per second; 0 is a closed loop.
	Rate float64 `json:"rate"`
	// Warmup is how long jobs were submitted before the window, Duration the length of the window.
	// Elapsed is the time from the start of the window until the last of its jobs ended, or until
	// waiting was given up.
	Warmup   time.Duration `json:"warmup"`
	Duration time.Duration `json:"duration"`
	Elapsed  time.Duration `json:"elapsed"`
	// Iterations is how many rounds of the work's loop counted as a millisecond of computing.
	Iterations uint64 `json:"iterations"`

	// Offered is how many jobs were submitted, Late how many of them more than 10 ms after they
	// were due. LateP99 is the 99th percentile of the lateness, 0 in a closed loop. Missed jobs
	// were due but never submitted, because the pool blocked the generator or all processors were
	// busy. Latencies do not include lateness.
	Offered uint64        `json:"offered"`
	Late    uint64        `json:"late"`
	LateP99 time.Duration `json:"late_p99"`
	Missed  uint64        `json:"missed"`
	// Accepted and Rejected are the pool's answers at submission.
	Accepted uint64 `json:"accepted"`
	Rejected uint64 `json:"rejected"`
	// Finished jobs have run; Good ones of them ended within their deadline.
	Finished uint64 `json:"finished"`
	Good     uint64 `json:"good"`
	// Steady is how many jobs ended in the window within their deadline, including those submitted
	// in the warm-up. With a warm-up, goodput is Steady divided by Duration: what was in progress
	// at the start of the window makes up for what still is at its end, whether a pool runs the
	// oldest or the newest jobs first.
	Steady uint64 `json:"steady"`
	// Expired and Shed jobs were accepted, but the pool reported later that they won't run.
	// Unfinished jobs had not ended when the run did.
	Expired    uint64 `json:"expired"`
	Shed       uint64 `json:"shed"`
	Unfinished uint64 `json:"unfinished"`

	// The latencies of finished jobs, from just before submission to the pool until their end.
	P50  time.Duration `json:"p50"`
	P99  time.Duration `json:"p99"`
	P999 time.Duration `json:"p999"`
	Max  time.Duration `json:"max"`
	Mean time.Duration `json:"mean"`

	// Process is the usage of the process including the generator: processor time since the window
	// began, memory at the end, and peak memory.
	sample.Process
	// PeakGoroutines and PeakWorkers are the maxima of goroutines, including the generator's, and
	// workers, sampled twenty times a second, also in the warm-up; 0 if unknown.
	PeakGoroutines int `json:"peak_goroutines"`
	PeakWorkers    int `json:"peak_workers"`

	// Overran explains why the run ended early or was terminated, "" otherwise.
	Overran string `json:"overran,omitempty"`
}

// OutputLine is a line of output: every quarter of a second one with Warming in the warm-up or Progress
// in the window, and finally one with Result.
type OutputLine struct {
	// Warming has the peaks so far and no counts.
	Warming *Result `json:"warming,omitempty"`
	// Progress is the Result so far.
	Progress *Result `json:"progress,omitempty"`
	Result   *Result `json:"result,omitempty"`
}

// ParseOutputLine parses a line written by Line.Write.
func ParseOutputLine(b []byte) (l OutputLine, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return OutputLine{}, fmt.Errorf("jobload: %q is no line of a result: %w", b, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return OutputLine{}, fmt.Errorf("jobload: %q is more than a line of a result", b)
	}
	n := 0
	for _, r := range []*Result{l.Warming, l.Progress, l.Result} {
		if r != nil {
			n++
		}
	}
	if n != 1 {
		return OutputLine{}, fmt.Errorf("jobload: %q is no line of a result; expected one of warming, progress and result", b)
	}
	return l, nil
}

func (l OutputLine) Write(w io.Writer) error { return json.NewEncoder(w).Encode(l) }

// The indexes of counts.
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

func (c *counts) countUnfinishedJobs() uint64 {
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

func newCountShards() []countShard {
	all := make([]countShard, 2*runtime.GOMAXPROCS(0))
	for i := range all {
		all[i].latencies, all[i].lateness = newHistogram(), newHistogram()
	}
	return all
}

// maxRecorded is the largest duration that histograms distinguish.
const maxRecorded = 73 * time.Minute

// newHistogram returns a histogram with two significant digits: less than 0.8 % off.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(maxRecorded), 2) }

func recordCappedDuration(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(int64(min(d, maxRecorded))) // which it has room for
}

// setSumOfShards sums up the shards.
func (r *Result) setSumOfShards(shards []countShard) {
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
	r.Expired, r.Shed, r.Unfinished = all[nExpired], all[nShed], all.countUnfinishedJobs()
	r.Accepted = r.Offered - r.Rejected
	r.LateP99 = time.Duration(lateness.ValueAtQuantile(99))
	if r.Finished > 0 {
		quantile := func(q float64) time.Duration { return min(time.Duration(latencies.ValueAtQuantile(q)), r.Max) }
		r.P50, r.P99, r.P999 = quantile(50), quantile(99), quantile(99.9)
		r.Mean = sum / time.Duration(r.Finished)
	}
}

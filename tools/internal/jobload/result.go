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

// Result counts the outcomes of the jobs that were submitted to a pool in the window after the warm-up. Each submitted
// job has exactly one outcome:
//
//	Offered  = Accepted + Rejected
//	Accepted = Finished + Expired + Shed + Unfinished
type Result struct {
	// Pool is the name of the contender. Work is the shape of the jobs.
	Pool string `json:"pool"`
	Work string `json:"work"`
	// Rate is the planned number of jobs per second. 0 means a closed loop.
	Rate float64 `json:"rate"`
	// Warmup is the time of submissions before the window, and Duration the length of the window. Elapsed is the time
	// from the start of the window to the end of its last job.
	Warmup   time.Duration `json:"warmup"`
	Duration time.Duration `json:"duration"`
	Elapsed  time.Duration `json:"elapsed"`
	// Iterations is the number of loop iterations that counted as a millisecond of computing.
	Iterations uint64 `json:"iterations"`

	// Offered is the number of submitted jobs. Late is the number of jobs that were submitted more than 10 ms after
	// they were due. LateP99 is the 99th percentile of the lateness, or 0 in a closed loop. Missed is the number of
	// jobs that were due but never submitted.
	Offered uint64        `json:"offered"`
	Late    uint64        `json:"late"`
	LateP99 time.Duration `json:"late_p99"`
	Missed  uint64        `json:"missed"`
	// Accepted and Rejected count submitted jobs by the pool's response.
	Accepted uint64 `json:"accepted"`
	Rejected uint64 `json:"rejected"`
	// Finished counts jobs that have run. Good counts finished jobs that ended within their deadline.
	Finished uint64 `json:"finished"`
	Good     uint64 `json:"good"`
	// Steady is the number of jobs that ended in the window and within their deadline, including jobs submitted in the
	// warm-up. With a warm-up, the goodput is Steady divided by Duration.
	Steady uint64 `json:"steady"`
	// Starting is the number of jobs that ended in the warm-up and within their deadline.
	Starting uint64 `json:"starting"`
	// Expired and Shed count jobs that the pool accepted and later reported as not run. Unfinished counts jobs that had
	// not ended when the run ended.
	Expired    uint64 `json:"expired"`
	Shed       uint64 `json:"shed"`
	Unfinished uint64 `json:"unfinished"`

	// P50 and the fields below are latencies of finished jobs, from just before submission to the end of the job.
	P50  time.Duration `json:"p50"`
	P99  time.Duration `json:"p99"`
	P999 time.Duration `json:"p999"`
	Max  time.Duration `json:"max"`
	Mean time.Duration `json:"mean"`
	// RejectP50 and RejectP99 are the durations of rejected submissions. One in 16 submissions is timed. Both are 0
	// without rejections.
	RejectP50 time.Duration `json:"reject_p50,omitempty"`
	RejectP99 time.Duration `json:"reject_p99,omitempty"`
	// ShedP50 and ShedP99 are the times from just before submission to the report that the job was shed. With a server,
	// that is the answer with status 503. They are 0 without shed jobs.
	ShedP50 time.Duration `json:"shed_p50,omitempty"`
	ShedP99 time.Duration `json:"shed_p99,omitempty"`

	// Process is the resource usage of the process, including the generator: processor time and context switches since
	// the window began, memory at the end, and peak memory.
	sample.Process
	// GCShare is the part of the processor time that the garbage collector used, from the last cycle before the window
	// to the last cycle in the window. SchedP99 is the 99th percentile of the time for which goroutines were runnable
	// before they ran.
	GCShare  float64       `json:"gc_share,omitempty"`
	SchedP99 time.Duration `json:"sched_p99,omitempty"`
	// PeakGoroutines is the maximum number of goroutines, including those of the generator. PeakWorkers is the maximum
	// number of workers. Both are sampled twenty times a second, also in the warm-up. They are 0 if unknown.
	PeakGoroutines int `json:"peak_goroutines"`
	PeakWorkers    int `json:"peak_workers"`

	// Sources is Plan.Sources.
	Sources int `json:"sources,omitempty"`
	// Server describes a contender that is a server.
	Server *ServerFigures `json:"server,omitempty"`

	// Overran is the reason why the run ended early or a submission did not return. It is "" if the run ended as
	// planned.
	Overran string `json:"overran,omitempty"`
}

// ServerFigures contains figures of a contender that is a server.
type ServerFigures struct {
	// CPU is the processor time of the server since the window began.
	CPU time.Duration `json:"cpu"`
	// Recovery is the time from the end of the window until new requests were answered fast again.
	Recovery time.Duration `json:"recovery"`
	// Finished counts the jobs finished in the window, FinishedOfOthers those from further addresses (Plan.Sources).
	Finished         int64 `json:"finished,omitempty"`
	FinishedOfOthers int64 `json:"finished_of_others,omitempty"`
}

// OutputLine is one line of a run's output, in JSON. Exactly one field is set: Warming during the warm-up, Progress
// after the warm-up, or Result in the last line.
type OutputLine struct {
	// Warming contains the resource usage so far. Its counts are 0 in the warm-up.
	Warming  *Result `json:"warming,omitempty"`
	Progress *Result `json:"progress,omitempty"`
	Result   *Result `json:"result,omitempty"`
}

func ParseOutputLine(b []byte) (l OutputLine, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return OutputLine{}, fmt.Errorf("jobload: invalid line of output %q: %w", b, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return OutputLine{}, fmt.Errorf("jobload: line of output %q has data after the JSON object; expected one object", b)
	}
	n := 0
	for _, r := range []*Result{l.Warming, l.Progress, l.Result} {
		if r != nil {
			n++
		}
	}
	if n != 1 {
		return OutputLine{}, fmt.Errorf("jobload: line of output %q has none of the keys warming, progress and result; expected one", b)
	}
	return l, nil
}

func (l OutputLine) Write(w io.Writer) error { return json.NewEncoder(w).Encode(l) }

const (
	nOffered = iota
	nLate
	nRejected
	nFinished
	nGood
	nSteady
	nStarting
	nExpired
	nShed
	nCounts
)

type counts [nCounts]uint64

func (c *counts) countUnfinishedJobs() uint64 {
	return c[nOffered] - c[nRejected] - c[nFinished] - c[nExpired] - c[nShed]
}

type countShard struct {
	mu sync.Mutex
	counts
	sum, max            time.Duration // sum and maximum of the latencies
	latencies, lateness *hdrhistogram.Histogram
	rejections          *hdrhistogram.Histogram // durations of rejected submissions
	shed                *hdrhistogram.Histogram // latencies of shed jobs
	_                   [64]byte                // separates the cache lines of shards
}

func newCountShards() []countShard {
	all := make([]countShard, 2*runtime.GOMAXPROCS(0))
	for i := range all {
		all[i].latencies, all[i].lateness, all[i].rejections, all[i].shed = newHistogram(), newHistogram(), newHistogram(), newHistogram()
	}
	return all
}

const maxRecorded = 73 * time.Minute

// newHistogram returns a histogram of durations with an error below 0.8 %.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(maxRecorded), 2) }

func recordCappedDuration(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(int64(min(d, maxRecorded))) // cannot fail: the value is in range
}

func (r *Result) setFiguresFromShards(shards []countShard) {
	latencies, lateness, rejections, shed, sum := newHistogram(), newHistogram(), newHistogram(), newHistogram(), time.Duration(0)
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
		rejections.Merge(t.rejections)
		shed.Merge(t.shed)
		t.mu.Unlock()
	}
	r.Offered, r.Late, r.Rejected = all[nOffered], all[nLate], all[nRejected]
	r.Finished, r.Good, r.Steady, r.Starting = all[nFinished], all[nGood], all[nSteady], all[nStarting]
	r.Expired, r.Shed, r.Unfinished = all[nExpired], all[nShed], all.countUnfinishedJobs()
	r.Accepted = r.Offered - r.Rejected
	r.LateP99 = time.Duration(lateness.ValueAtQuantile(99))
	r.RejectP50, r.RejectP99 = time.Duration(rejections.ValueAtQuantile(50)), time.Duration(rejections.ValueAtQuantile(99))
	r.ShedP50, r.ShedP99 = time.Duration(shed.ValueAtQuantile(50)), time.Duration(shed.ValueAtQuantile(99))
	if r.Finished > 0 {
		quantile := func(q float64) time.Duration { return min(time.Duration(latencies.ValueAtQuantile(q)), r.Max) }
		r.P50, r.P99, r.P999 = quantile(50), quantile(99), quantile(99.9)
		r.Mean = sum / time.Duration(r.Finished)
	}
}

package offer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
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
	// Accepted and Rejected are what the pool said when a job was submitted,
	// Causes what it gave as the reason for how many of the rejected.
	Accepted uint64            `json:"accepted"`
	Rejected uint64            `json:"rejected"`
	Causes   map[string]uint64 `json:"causes,omitempty"`
	// Finished jobs have run: Good ones of them have ended within their
	// deadline, Panicked ones in a panic.
	Finished uint64 `json:"finished"`
	Good     uint64 `json:"good"`
	Panicked uint64 `json:"panicked"`
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

	// PeakRSS is the most memory in bytes that the process has ever had.
	// PeakGoroutines and PeakWorkers are the most goroutines, those of the
	// generator included, and workers that were seen when it was looked, twenty
	// times a second. All three are also of the warm-up, and 0 where the system
	// or the pool does not tell. WarmWorkers is how many workers there were at the
	// end of the warm-up; 0 without one.
	PeakRSS        int64 `json:"peak_rss"`
	PeakGoroutines int   `json:"peak_goroutines"`
	PeakWorkers    int   `json:"peak_workers"`
	WarmWorkers    int   `json:"warm_workers"`
	// CPUUser and CPUSystem are the processor time of the process, generator
	// included, since the window began.
	CPUUser   time.Duration `json:"cpu_user"`
	CPUSystem time.Duration `json:"cpu_system"`

	// Overran says why the run ended early, "" if it did not.
	Overran string `json:"overran,omitempty"`
}

// Line is a line of what a process of this package prints: in the warm-up one with
// Warming each quarter of a second, then such with Progress, and at last one with
// Result.
type Line struct {
	// Warming is what became so far of the jobs of the warm-up. Its Elapsed is
	// from the start.
	Warming *Result `json:"warming,omitempty"`
	// Progress is the Result so far.
	Progress *Result `json:"progress,omitempty"`
	Result   *Result `json:"result,omitempty"`
}

// ParseLine reads a line that Write has written.
func ParseLine(b []byte) (Line, error) {
	var l Line
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return Line{}, fmt.Errorf("offer: %q is no line of a result: %w", b, err)
	}
	n := 0
	for _, r := range []*Result{l.Warming, l.Progress, l.Result} {
		if r != nil {
			n++
		}
	}
	if n != 1 {
		return Line{}, fmt.Errorf("offer: %q is no line of a result; expected one of warming, progress and result", b)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Line{}, fmt.Errorf("offer: %q is more than a line of a result", b)
	}
	return l, nil
}

// Write writes the line.
func (l Line) Write(w io.Writer) error { return json.NewEncoder(w).Encode(l) }

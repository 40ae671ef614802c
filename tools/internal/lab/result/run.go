package result

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/tools/internal/jobload"
	"github.com/myriad-go/myriad/tools/load"
)

// Run is the record of one subject under one workload in one round.
type Run struct {
	Workload string `json:"workload"`
	Subject  string `json:"subject"`
	// Round counts from 1.
	Round   int           `json:"round"`
	Started time.Time     `json:"started"`
	Took    time.Duration `json:"took"`
	// Connections is the planned number, Processes the number of server processes. Heartbeats means
	// that the server was to send heartbeats.
	Connections int  `json:"connections,omitempty"`
	Processes   int  `json:"processes,omitempty"`
	Heartbeats  bool `json:"beating,omitempty"`
	// Command is the command line of the server as it was started.
	Command []string `json:"command"`
	// Error says why the run failed, "" if it did not. Figures of a failed run do not enter
	// medians.
	Error string `json:"error,omitempty"`
	// Skipped says why the run was not made, "" when it was.
	Skipped string `json:"skipped,omitempty"`
	// Caveats are the rules that the run broke.
	Caveats []Caveat `json:"marks,omitempty"`
	// Figures are the values computed by probes, by name.
	Figures map[string]float64 `json:"figures,omitempty"`
	// Phases and Samples are in chronological order. There are no samples if /proc is not
	// available.
	Phases  []Phase  `json:"phases,omitempty"`
	Samples []Sample `json:"samples,omitempty"`
	// Log has lines that were printed during the run or describe its end.
	Log []string `json:"log,omitempty"`
	// Jobs is the outcome of submitted jobs, Capacity what was measured before.
	Jobs     *Jobs     `json:"jobs,omitempty"`
	Capacity *Capacity `json:"capacity,omitempty"`
	// Broadcaster is the connection that requested a broadcast.
	Broadcaster *Broadcaster `json:"broadcaster,omitempty"`
	// Foreign is how many CPUs were kept busy by anything but the lab and its processes, Stolen how
	// many of them the host of a virtual machine took.
	Foreign float64 `json:"foreign,omitempty"`
	Stolen  float64 `json:"stolen,omitempty"`
	// Timeline is in chronological order.
	Timeline []Tick `json:"timeline,omitempty"`
}

// Caveat is a rule that a run broke: Rule is one word, Detail says by how much.
type Caveat struct {
	Rule   string `json:"rule"`
	Detail string `json:"detail"`
}

func (r *Run) AddCaveat(rule, format string, args ...any) {
	r.Caveats = append(r.Caveats, Caveat{rule, fmt.Sprintf(format, args...)})
}

// HasCaveat reports whether the run broke the rule.
func (r *Run) HasCaveat(rule string) bool {
	return slices.ContainsFunc(r.Caveats, func(m Caveat) bool { return m.Rule == rule })
}

// Logf appends a line to Log.
func (r *Run) Logf(format string, args ...any) { r.Log = append(r.Log, fmt.Sprintf(format, args...)) }

func (r *Run) FirstErrorLine() string {
	line, _, _ := strings.Cut(r.Error, "\n")
	return line
}

// IsValid reports whether the run completed, so that its figures count.
func (r *Run) IsValid() bool { return r.Error == "" && r.Skipped == "" }

// Phase is a part of a run.
type Phase struct {
	// Name is the action.
	Name string        `json:"name"`
	Took time.Duration `json:"took,omitempty"`
	// Count is the number of events and Rate their number per second.
	Count int64   `json:"count,omitempty"`
	Rate  float64 `json:"rate,omitempty"`
	// Latency is of connecting, of echoed lines, or of a broadcast from its first receipt.
	Latency load.Latency `json:"latency"`
	// ServerCPU and LoadCPU are how many CPUs each side kept busy.
	ServerCPU float64 `json:"server_cpu,omitempty"`
	LoadCPU   float64 `json:"load_cpu,omitempty"`
	// Load is the configuration of the generator and Result what it reported, in its last phase.
	Load   []string     `json:"load,omitempty"`
	Result *load.Result `json:"result,omitempty"`
}

// FindPhase returns the phase with a name, nil if the run did not reach it.
func (r *Run) FindPhase(name string) *Phase {
	for i := range r.Phases {
		if r.Phases[i].Name == name {
			return &r.Phases[i]
		}
	}
	return nil
}

// LastLoadResult returns the last result of the load generator, nil if it reported none.
func (r *Run) LastLoadResult() *load.Result {
	for i := len(r.Phases) - 1; i >= 0; i-- {
		if r.Phases[i].Result != nil {
			return r.Phases[i].Result
		}
	}
	return nil
}

// Sample has the figures of the kernel and the server at a checkpoint. Figures that were not
// requested are zero.
type Sample struct {
	// Checkpoint is the phase that has ended, or "ready", "measuring" or "measured".
	Checkpoint string     `json:"checkpoint"`
	At         time.Time  `json:"at"`
	Server     load.Usage `json:"server"`
	Load       load.Usage `json:"load"`
	// Lab is the processor time of the lab's own process, Busy that of the whole machine since its
	// start, including time Stolen by a host.
	Lab    time.Duration `json:"lab,omitempty"`
	Busy   time.Duration `json:"busy,omitempty"`
	Stolen time.Duration `json:"stolen,omitempty"`
	// Slab is the kernel's memory of small objects, Tables that of page tables and thread stacks,
	// Free unused memory: of the whole machine, in bytes.
	Slab   int64 `json:"slab,omitempty"`
	Tables int64 `json:"tables,omitempty"`
	Free   int64 `json:"free,omitempty"`
	// Sockets are the open TCP sockets of the network namespace, TimeWait those in TIME_WAIT, Files
	// the open files and sockets of the whole machine.
	Sockets  int64 `json:"sockets,omitempty"`
	TimeWait int64 `json:"time_wait,omitempty"`
	Files    int64 `json:"files,omitempty"`
	// TCP is the number of TCP sockets that fit in the kernel's cache, 0 if unknown.
	TCP int64 `json:"tcp,omitempty"`
	// Accepted is the number of connections of the load that the server has accepted; SegmentsIn
	// and SegmentsOut count their TCP segments with data. 0 if the kernel does not report them.
	Accepted    int   `json:"accepted,omitempty"`
	SegmentsIn  int64 `json:"segments_in,omitempty"`
	SegmentsOut int64 `json:"segments_out,omitempty"`
	// Resting is how many CPUs the idle server kept busy after the sample, in consecutive periods.
	Resting []float64 `json:"resting,omitempty"`
	// Counts are the server's own counters.
	Counts *Counts `json:"counts,omitempty"`
}

// KernelMemory returns the kernel's memory for open objects in bytes.
func (s *Sample) KernelMemory() int64 { return s.Slab + s.Tables }

// OpenConns returns the number of the server's connections, from its counters or its sockets.
func (s *Sample) OpenConns() int {
	if s.Counts != nil {
		return int(s.Counts.Open)
	}
	return s.Server.Sockets
}

// Counts are the server's counters since its start; Open is the current number of connections. With
// worker processes they are sums.
type Counts struct {
	Open       int64 `json:"open"`
	Accepted   int64 `json:"accepted"`
	Refused    int64 `json:"refused"`
	Messages   int64 `json:"messages"`
	Heartbeats int64 `json:"heartbeats"`
	// Unanswered counts connections that were closed because they did not answer heartbeats.
	Unanswered int64 `json:"unanswered"`
	Dropped    int64 `json:"dropped"`
	Restarts   int64 `json:"restarts"`
}

// FindSample returns the sample of a checkpoint, nil if there is none.
func (r *Run) FindSample(checkpoint string) *Sample {
	for i := range r.Samples {
		if r.Samples[i].Checkpoint == checkpoint {
			return &r.Samples[i]
		}
	}
	return nil
}

// Jobs is the outcome of submitted jobs.
type Jobs struct {
	// Rate is the planned number of jobs per second, Window how long they were counted, Deadline
	// the time within which each had to end.
	Rate     float64       `json:"rate"`
	Window   time.Duration `json:"window"`
	Deadline time.Duration `json:"deadline"`
	// Capacity is the machine's maximum rate for this shape of jobs.
	Capacity float64 `json:"capacity"`
	// Killed is set if the watchdog killed the process. Then Result has the counts of its last
	// progress line.
	Killed *Killed         `json:"ended,omitempty"`
	Result *jobload.Result `json:"result,omitempty"`
	// PeakRSS is the maximum memory of the process in bytes, 0 if unknown.
	PeakRSS int64 `json:"peak_rss,omitempty"`
}

// Killed describes how the watchdog killed a process.
type Killed struct {
	// After is how long it had run; WarmingUp means that it was still in the warm-up.
	After     time.Duration `json:"after"`
	WarmingUp bool          `json:"warming_up,omitempty"`
	// RSS is its memory at that time and Limit what it was allowed, in bytes.
	RSS   int64 `json:"rss"`
	Limit int64 `json:"most"`
}

func (e *Killed) String() string {
	warming := ""
	if e.WarmingUp {
		warming = ", in the warm-up,"
	}
	return fmt.Sprintf("ended by the watchdog at %.1f s%s with %.2f GB (allowed: %.2f GB)",
		e.After.Seconds(), warming, float64(e.RSS)/1e9, float64(e.Limit)/1e9)
}

// Capacity is the maximum rate of jobs of a shape on this machine.
type Capacity struct {
	Shape string `json:"shape"`
	// PerSecond is the maximum rate of jobs that ended within their deadline, Side the contender
	// that reached it.
	PerSecond float64 `json:"per_second"`
	Side      string  `json:"side"`
	// Workers is the best fixed number of workers.
	Workers int `json:"workers"`
	// Iterations of the work's loop are a millisecond of computing.
	Iterations uint64 `json:"iterations,omitempty"`
	// Tried describes each attempt.
	Tried []string `json:"tried"`
}

// Broadcaster describes the connection that requested a broadcast: the lines it sent, the
// heartbeats it received, and why it did not receive the broadcast itself.
type Broadcaster struct {
	Messages   int64  `json:"messages"`
	Heartbeats int64  `json:"heartbeats"`
	Error      string `json:"error,omitempty"`
}

// Tick is one sample of a run's timeline. A run has at most one per second; a long run has fewer.
// Counters are since the start of the process or machine. Unknown figures are zero.
type Tick struct {
	// At is the time since Run.Started.
	At     time.Duration `json:"at"`
	Server load.Usage    `json:"server"`
	Load   load.Usage    `json:"load"`
	// Slab is the kernel's memory of small objects, in bytes.
	Slab int64 `json:"slab,omitempty"`
	// Open is the number of connections of the load, Answered its number of answered messages, as
	// last reported.
	Open     int64 `json:"open,omitempty"`
	Answered int64 `json:"answered,omitempty"`
}

package result

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/tools/internal/jobload"
	"github.com/myriad-go/myriad/tools/load"
)

// Run is one run: one subject under one workload in one round.
type Run struct {
	Workload string `json:"workload"`
	Subject  string `json:"subject"`
	// Round counts from 1.
	Round   int           `json:"round"`
	Started time.Time     `json:"started"`
	Took    time.Duration `json:"took"`
	// Connections is how many there were to be, Processes how many processes the server
	// was started with, Beating that it was to send heartbeats.
	Connections int  `json:"connections,omitempty"`
	Processes   int  `json:"processes,omitempty"`
	Heartbeats  bool `json:"beating,omitempty"`
	// Command is the command line of the server as it was started.
	Command []string `json:"command"`
	// Error says why the run failed, "" when it did not. The figures of a failed run are
	// part of no median.
	Error string `json:"error,omitempty"`
	// Skipped says why the run was not made, "" when it was.
	Skipped string `json:"skipped,omitempty"`
	// Caveats are the rules that the run broke.
	Caveats []Caveat `json:"marks,omitempty"`
	// Figures are what probes have worked out, by name.
	Figures map[string]float64 `json:"figures,omitempty"`
	// Phases and Samples are in the order of time. There are no samples where /proc is not
	// available.
	Phases  []Phase  `json:"phases,omitempty"`
	Samples []Sample `json:"samples,omitempty"`
	// Log are lines that were said while the run went on, or of how it ended.
	Log []string `json:"log,omitempty"`
	// Jobs is what became of jobs that were offered, Capacity what was measured before.
	Jobs     *Jobs     `json:"jobs,omitempty"`
	Capacity *Capacity `json:"capacity,omitempty"`
	// Broadcaster is the connection that has asked for a broadcast.
	Broadcaster *Broadcaster `json:"broadcaster,omitempty"`
	// Foreign is how many CPUs anything but the lab and what it had started kept busy in
	// the run, Stolen how many of them the host of a virtual machine took.
	Foreign float64 `json:"foreign,omitempty"`
	Stolen  float64 `json:"stolen,omitempty"`
	// Timeline is in the order of time.
	Timeline []Tick `json:"timeline,omitempty"`
}

// Caveat is a rule that a run broke: Rule is one word, Detail says by how much.
type Caveat struct {
	Rule   string `json:"rule"`
	Detail string `json:"detail"`
}

// AddCaveat marks the run.
func (r *Run) AddCaveat(rule, format string, args ...any) {
	r.Caveats = append(r.Caveats, Caveat{rule, fmt.Sprintf(format, args...)})
}

// HasCaveat says whether the run broke a rule.
func (r *Run) HasCaveat(rule string) bool {
	return slices.ContainsFunc(r.Caveats, func(m Caveat) bool { return m.Rule == rule })
}

// Logf keeps a line.
func (r *Run) Logf(format string, args ...any) { r.Log = append(r.Log, fmt.Sprintf(format, args...)) }

// FirstErrorLine is the first line of Error.
func (r *Run) FirstErrorLine() string {
	line, _, _ := strings.Cut(r.Error, "\n")
	return line
}

// IsValid says whether the run came to its end and its figures count.
func (r *Run) IsValid() bool { return r.Error == "" && r.Skipped == "" }

// Phase is a part of a run.
type Phase struct {
	// Name is what was done.
	Name string        `json:"name"`
	Took time.Duration `json:"took,omitempty"`
	// Count is of what there was, Rate so many a second.
	Count int64   `json:"count,omitempty"`
	Rate  float64 `json:"rate,omitempty"`
	// Latency is of connecting, of lines that came back, or of a broadcast from its first
	// receipt on.
	Latency load.Latency `json:"latency"`
	// ServerCPU and LoadCPU are how many CPUs each side kept busy.
	ServerCPU float64 `json:"server_cpu,omitempty"`
	LoadCPU   float64 `json:"load_cpu,omitempty"`
	// Load is the configuration of the generator, and Result what it saw, in the last phase
	// of a run of it.
	Load   []string     `json:"load,omitempty"`
	Result *load.Result `json:"result,omitempty"`
}

// FindPhase finds a phase by its name, nil if the run did not come to it.
func (r *Run) FindPhase(name string) *Phase {
	for i := range r.Phases {
		if r.Phases[i].Name == name {
			return &r.Phases[i]
		}
	}
	return nil
}

// LastLoadResult is what the load generator saw last, nil when it did not get so far.
func (r *Run) LastLoadResult() *load.Result {
	for i := len(r.Phases) - 1; i >= 0; i-- {
		if r.Phases[i].Result != nil {
			return r.Phases[i].Result
		}
	}
	return nil
}

// Sample is what the kernel and the server said at a checkpoint. What was not asked for is
// zero.
type Sample struct {
	// Checkpoint names it: the phase that has ended, or "ready", "measuring", "measured".
	Checkpoint string     `json:"checkpoint"`
	At         time.Time  `json:"at"`
	Server     load.Usage `json:"server"`
	Load       load.Usage `json:"load"`
	// Lab is the processor time of the lab's own process; Busy that of the whole machine
	// since it started, time Stolen by a host included.
	Lab    time.Duration `json:"lab,omitempty"`
	Busy   time.Duration `json:"busy,omitempty"`
	Stolen time.Duration `json:"stolen,omitempty"`
	// Slab is the kernel's memory of small objects, Tables that of page tables and of the
	// stacks of threads, Free what nothing uses: the whole machine's, in bytes.
	Slab   int64 `json:"slab,omitempty"`
	Tables int64 `json:"tables,omitempty"`
	Free   int64 `json:"free,omitempty"`
	// Sockets are the TCP sockets of the network namespace that are open, TimeWait those
	// in TIME_WAIT, Files what the whole machine has open of files and sockets.
	Sockets  int64 `json:"sockets,omitempty"`
	TimeWait int64 `json:"time_wait,omitempty"`
	Files    int64 `json:"files,omitempty"`
	// TCP is for how many TCP sockets the kernel has room in its cache of them, where it tells.
	TCP int64 `json:"tcp,omitempty"`
	// Accepted is how many connections of the load the server has accepted, where the
	// kernel tells, and SegmentsIn and SegmentsOut how many TCP segments with data they
	// have brought and taken.
	Accepted    int   `json:"accepted,omitempty"`
	SegmentsIn  int64 `json:"segments_in,omitempty"`
	SegmentsOut int64 `json:"segments_out,omitempty"`
	// Resting is how many CPUs the server kept busy afterwards, left alone, in some pieces of
	// time one after the other.
	Resting []float64 `json:"resting,omitempty"`
	// Counts is what the server says of itself.
	Counts *Counts `json:"counts,omitempty"`
}

// KernelMemory is the kernel's memory for what is open, in bytes.
func (s *Sample) KernelMemory() int64 { return s.Slab + s.Tables }

// OpenConns is how many connections the server has, by its own count or by its sockets.
func (s *Sample) OpenConns() int {
	if s.Counts != nil {
		return int(s.Counts.Open)
	}
	return s.Server.Sockets
}

// Counts are counters of the server since its start, but for Open, which is how many
// connections there are. With worker processes they are those of all.
type Counts struct {
	Open       int64 `json:"open"`
	Accepted   int64 `json:"accepted"`
	Refused    int64 `json:"refused"`
	Messages   int64 `json:"messages"`
	Heartbeats int64 `json:"heartbeats"`
	// Unanswered are connections that were closed because they answered none.
	Unanswered int64 `json:"unanswered"`
	Dropped    int64 `json:"dropped"`
	Restarts   int64 `json:"restarts"`
}

// FindSample finds the sample of a checkpoint, nil if there is none.
func (r *Run) FindSample(checkpoint string) *Sample {
	for i := range r.Samples {
		if r.Samples[i].Checkpoint == checkpoint {
			return &r.Samples[i]
		}
	}
	return nil
}

// Jobs is what became of jobs that were offered.
type Jobs struct {
	// Rate is how many a second were to be offered, Window for how long they were counted,
	// Deadline within what time each had to end.
	Rate     float64       `json:"rate"`
	Window   time.Duration `json:"window"`
	Deadline time.Duration `json:"deadline"`
	// Capacity is how many jobs of the shape a second the machine can do.
	Capacity float64 `json:"capacity"`
	// Killed is set when the watchdog has ended the process. Then Result is what its last
	// progress line had counted.
	Killed *Killed         `json:"ended,omitempty"`
	Result *jobload.Result `json:"result,omitempty"`
	// PeakRSS is the most memory of the process, in bytes; 0 is not known.
	PeakRSS int64 `json:"peak_rss,omitempty"`
}

// Killed says how the watchdog has ended a process.
type Killed struct {
	// After is how long it had run, WarmingUp that it was in the warm-up still.
	After     time.Duration `json:"after"`
	WarmingUp bool          `json:"warming_up,omitempty"`
	// RSS is its memory then, Most what it was allowed, in bytes.
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

// Capacity is how many jobs of a shape a second this machine can do.
type Capacity struct {
	Shape string `json:"shape"`
	// PerSecond is the most jobs a second that ended within their deadline, Side what ran
	// them.
	PerSecond float64 `json:"per_second"`
	Side      string  `json:"side"`
	// Workers is the best number of workers of the side that has a fixed number.
	Workers int `json:"workers"`
	// Iterations of the work's loop are a millisecond of computing.
	Iterations uint64 `json:"iterations,omitempty"`
	// Tried are the runs, in words.
	Tried []string `json:"tried"`
}

// Broadcaster is what became of the connection that has asked for a broadcast: how many lines
// it has sent, how many heartbeats it got, and why it did not get the broadcast itself.
type Broadcaster struct {
	Messages   int64  `json:"messages"`
	Heartbeats int64  `json:"heartbeats"`
	Error      string `json:"error,omitempty"`
}

// Tick is one sample of a run's time line: both sides and the machine at one moment. A run
// has one a second at the most, and a long run has fewer. Counters are since the process or
// the machine began. What was not known is zero.
type Tick struct {
	// At is the time since Run.Started.
	At     time.Duration `json:"at"`
	Server load.Usage    `json:"server"`
	Load   load.Usage    `json:"load"`
	// Slab is the kernel's memory of small objects, in bytes.
	Slab int64 `json:"slab,omitempty"`
	// Open is how many connections the load has, Answered how many messages have been
	// answered, as it said last.
	Open     int64 `json:"open,omitempty"`
	Answered int64 `json:"answered,omitempty"`
}

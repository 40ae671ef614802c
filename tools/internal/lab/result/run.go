package result

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/tools/internal/jobload"
	"github.com/myriad-go/myriad/tools/load"
)

// Run is the record of one run of a subject under a workload.
type Run struct {
	Workload string        `json:"workload"`
	Subject  string        `json:"subject"`
	Round    int           `json:"round"`
	Started  time.Time     `json:"started"`
	Took     time.Duration `json:"took"`
	// Connections is the planned number of connections. Processes is the number of server processes. Heartbeats reports
	// that the server was configured to send heartbeats.
	Connections int  `json:"connections,omitempty"`
	Processes   int  `json:"processes,omitempty"`
	Heartbeats  bool `json:"beating,omitempty"`
	// Command is the command line that started the server.
	Command []string `json:"command"`
	// Error is the reason why the run failed, or "". Medians exclude failed runs.
	Error string `json:"error,omitempty"`
	// Skipped is the reason why the run was skipped, or "".
	Skipped string `json:"skipped,omitempty"`
	// Caveats lists the rules that the run broke.
	Caveats []Caveat `json:"marks,omitempty"`
	// Figures contains the values that probes computed, by the name of the figure.
	Figures map[string]float64 `json:"figures,omitempty"`
	// Phases and Samples are in chronological order. On systems without /proc there are no samples.
	Phases  []Phase  `json:"phases,omitempty"`
	Samples []Sample `json:"samples,omitempty"`
	// Log contains lines that were printed during the run or that describe its end.
	Log []string `json:"log,omitempty"`
	// Jobs is the outcome of the submitted jobs. Capacity is set if the machine's capacity was measured before them.
	Jobs     *Jobs     `json:"jobs,omitempty"`
	Capacity *Capacity `json:"capacity,omitempty"`
	// Broadcaster describes the connection that requested a broadcast.
	Broadcaster *Broadcaster `json:"broadcaster,omitempty"`
	// Foreign is the number of CPUs that were busy with anything except this program and its children. Stolen is the
	// part that the host of a virtual machine took.
	Foreign  float64 `json:"foreign,omitempty"`
	Stolen   float64 `json:"stolen,omitempty"`
	Timeline []Tick  `json:"timeline,omitempty"`
	// Origin is set in the results of articles, which can contain runs of several commands.
	Origin Origin `json:"origin,omitzero"`
}

// Origin describes how a run was made: the commit of the code, the scale and the machine. LoadAverage is the machine's
// load average over the minute before the run's command started.
type Origin struct {
	Commit      string `json:"commit"`
	Scale       string `json:"scale"`
	Machine     string `json:"machine"`
	LoadAverage string `json:"load_average"`
}

// Caveat records that a run broke a rule. Rule is the name of the rule. Detail describes what happened.
type Caveat struct {
	Rule   string `json:"rule"`
	Detail string `json:"detail"`
}

func (r *Run) AddCaveat(rule, format string, args ...any) {
	r.Caveats = append(r.Caveats, Caveat{rule, fmt.Sprintf(format, args...)})
}

func (r *Run) HasCaveat(rule string) bool {
	return slices.ContainsFunc(r.Caveats, func(m Caveat) bool { return m.Rule == rule })
}

func (r *Run) Logf(format string, args ...any) { r.Log = append(r.Log, fmt.Sprintf(format, args...)) }

func (r *Run) FirstErrorLine() string {
	line, _, _ := strings.Cut(r.Error, "\n")
	return line
}

// IsValid reports whether the run was executed and did not fail. Only figures of valid runs count.
func (r *Run) IsValid() bool { return r.Error == "" && r.Skipped == "" }

// Phase is the record of one phase of a run, such as connecting or verifying.
type Phase struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took,omitempty"`
	// Count is the number of events in the phase, and Rate the number per second.
	Count int64   `json:"count,omitempty"`
	Rate  float64 `json:"rate,omitempty"`
	// Latency is the latency of connecting, of echoed lines, or of a broadcast. The latency of a broadcast is measured
	// from the broadcast's first receipt.
	Latency load.Latency `json:"latency"`
	// ServerCPU is the number of CPUs that the server kept busy, and LoadCPU that of the load generator.
	ServerCPU float64 `json:"server_cpu,omitempty"`
	LoadCPU   float64 `json:"load_cpu,omitempty"`
	// Load is the configuration of the load generator, or nil for long-open connections. Result is the result of the
	// load generator, set in the generator's last phase.
	Load   []string     `json:"load,omitempty"`
	Result *load.Result `json:"result,omitempty"`
}

// FindPhase returns the phase with the given name, or nil if the run has no such phase.
func (r *Run) FindPhase(name string) *Phase {
	for i := range r.Phases {
		if r.Phases[i].Name == name {
			return &r.Phases[i]
		}
	}
	return nil
}

// LastLoadResult returns the last result of the load generator, or nil if there is none.
func (r *Run) LastLoadResult() *load.Result {
	for i := len(r.Phases) - 1; i >= 0; i-- {
		if r.Phases[i].Result != nil {
			return r.Phases[i].Result
		}
	}
	return nil
}

// Sample contains figures of the kernel and the server at a checkpoint. Figures that were not requested are zero.
type Sample struct {
	// Checkpoint is the name of the phase that has ended, or another point in a run, such as "ready" or "measured".
	Checkpoint string     `json:"checkpoint"`
	At         time.Time  `json:"at"`
	Server     load.Usage `json:"server"`
	Load       load.Usage `json:"load"`
	// Lab is the processor time of the program that takes the sample. Busy is the processor time of the whole machine
	// since boot, including Stolen, which is the time taken by the host of a virtual machine.
	Lab    time.Duration `json:"lab,omitempty"`
	Busy   time.Duration `json:"busy,omitempty"`
	Stolen time.Duration `json:"stolen,omitempty"`
	// Slab is the kernel memory of small objects. Tables is the memory of page tables and thread stacks. Free is unused
	// memory. All are for the whole machine, in bytes.
	Slab   int64 `json:"slab,omitempty"`
	Tables int64 `json:"tables,omitempty"`
	Free   int64 `json:"free,omitempty"`
	// Sockets is the number of open TCP sockets in the network namespace, and TimeWait the number in TIME_WAIT. Files
	// is the number of open files and sockets on the whole machine.
	Sockets  int64 `json:"sockets,omitempty"`
	TimeWait int64 `json:"time_wait,omitempty"`
	Files    int64 `json:"files,omitempty"`
	// TCP is the number of TCP sockets for which the kernel's cache has space, or 0 if unknown.
	TCP int64 `json:"tcp,omitempty"`
	// Accepted is the number of the server's established connections. SegmentsIn counts TCP segments with data that
	// came in on these connections, SegmentsOut those that went out. All are 0 if the kernel does not report them.
	Accepted    int   `json:"accepted,omitempty"`
	SegmentsIn  int64 `json:"segments_in,omitempty"`
	SegmentsOut int64 `json:"segments_out,omitempty"`
	// Resting contains the number of CPUs that the idle server kept busy in each of several periods after the sample.
	Resting []float64 `json:"resting,omitempty"`
	Counts  *Counts   `json:"counts,omitempty"`
	// Runtime is set at the end of a window if the server reports it.
	Runtime *Runtime `json:"runtime,omitempty"`
}

// Runtime contains totals of a server's Go runtime since its start.
type Runtime struct {
	// CPUSeconds is the processor time of the process, GCSeconds that of the garbage collector up to its last cycle.
	CPUSeconds float64 `json:"cpu_seconds"`
	GCSeconds  float64 `json:"gc_seconds"`
	// SchedulerWaits contains pairs in ascending order: a time in seconds, and how many waits of runnable goroutines
	// took at most that time.
	SchedulerWaits [][2]float64 `json:"scheduler_waits"`
}

func (s *Sample) KernelMemory() int64 { return s.Slab + s.Tables }

// OpenConns returns the number of connections that the server has counted. If the server does not count them, OpenConns
// returns the number of the server's sockets.
func (s *Sample) OpenConns() int {
	if s.Counts != nil {
		return int(s.Counts.Open)
	}
	return s.Server.Sockets
}

// Counts contains a server's counters since the server's start. Open is the current number of connections.
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

// FindSample returns the sample at a checkpoint, or nil if the run has no such sample.
func (r *Run) FindSample(checkpoint string) *Sample {
	for i := range r.Samples {
		if r.Samples[i].Checkpoint == checkpoint {
			return &r.Samples[i]
		}
	}
	return nil
}

type Jobs struct {
	// Rate is the planned number of jobs per second. Window is the time in which jobs were counted. Deadline is the
	// time within which each job had to end.
	Rate     float64       `json:"rate"`
	Window   time.Duration `json:"window"`
	Deadline time.Duration `json:"deadline"`
	// Capacity is the machine's maximum rate for jobs of this shape.
	Capacity float64 `json:"capacity"`
	// Killed is set if the memory watchdog killed the process. Result then contains the last reported counts.
	Killed *Killed         `json:"ended,omitempty"`
	Result *jobload.Result `json:"result,omitempty"`
	// PeakRSS is the maximum memory of the process in bytes, or 0 if unknown.
	PeakRSS int64 `json:"peak_rss,omitempty"`
}

// Killed describes when and why the memory watchdog killed a process.
type Killed struct {
	// After is the time from the start of the process to the kill. WarmingUp reports that the warm-up had not ended.
	After     time.Duration `json:"after"`
	WarmingUp bool          `json:"warming_up,omitempty"`
	// RSS is the memory of the process at the kill. Limit is the permitted memory. Both are in bytes.
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

// Capacity is the maximum rate at which this machine completes jobs of one kind. The field Shape contains the name of
// this kind.
type Capacity struct {
	Shape string `json:"shape"`
	// PerSecond is the maximum rate of jobs that ended within their deadline. Side names the contender that reached it.
	PerSecond float64 `json:"per_second"`
	Side      string  `json:"side"`
	// Workers is the fixed number of workers that reached the highest rate.
	Workers int `json:"workers"`
	// Iterations is the number of loop iterations that take a millisecond of computing.
	Iterations uint64 `json:"iterations,omitempty"`
	// Tried describes each attempt to measure the capacity, in one line.
	Tried []string `json:"tried"`
}

// Broadcaster describes the connection that requested a broadcast. Messages is the number of lines that this connection
// sent. Heartbeats is the number of heartbeats that it received. If the connection did not receive the broadcast, Error
// states the reason.
type Broadcaster struct {
	Messages   int64  `json:"messages"`
	Heartbeats int64  `json:"heartbeats"`
	Error      string `json:"error,omitempty"`
}

// Tick is one sample in a run's timeline. Ticks are usually at least one second apart. Counters are totals, not
// differences between two ticks. An unknown figure is 0.
type Tick struct {
	At     time.Duration `json:"at"`
	Server load.Usage    `json:"server"`
	Load   load.Usage    `json:"load"`
	Slab   int64         `json:"slab,omitempty"`
	// Open and Answered are the generator's connections and answered messages, as last reported.
	Open     int64 `json:"open,omitempty"`
	Answered int64 `json:"answered,omitempty"`
}

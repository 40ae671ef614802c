package load

import "time"

// Phase names a moment in a run.
type Phase string

const (
	// Began: the run begins; Plan is set.
	Began Phase = "began"
	// Connected: every connection has been established or has failed.
	Connected Phase = "connected"
	// Measuring: the warm-up is over, the window has begun.
	Measuring Phase = "measuring"
	// Measured: the window has ended.
	Measured Phase = "measured"
	// Exchanged: every connection has exchanged the asked number of
	// messages (only where Config.Messages is set).
	Exchanged Phase = "exchanged"
	// Checking: a verification of held connections begins.
	Checking Phase = "checking"
	// Checked: a verification is over; Verification is set.
	Checked Phase = "checked"
	// Heard: all held connections that are open have had the broadcast;
	// Broadcast is set. It is told once, when all are connected.
	Heard Phase = "heard"
	// Progress: a second, or Config.ProgressEvery, has passed; Interval says
	// what happened in it.
	Progress Phase = "progress"
	// Tried: a Search has tried a rate; Step is set.
	Tried Phase = "tried"
	// Done: all connections are closed; Result is set.
	Done Phase = "done"
)

// Event is one line of the stream that a run tells of itself. All that reports
// say of a run can be worked out from its stream.
type Event struct {
	Phase Phase `json:"phase"`
	// Snapshot is how far the run is.
	Snapshot Snapshot `json:"snapshot"`
	// Plan is set in the first event, Began.
	Plan *Plan `json:"plan,omitempty"`
	// Interval is set with Progress.
	Interval *Interval `json:"interval,omitempty"`
	// Step is set with Tried.
	Step *Step `json:"step,omitempty"`
	// Verification is set with Checked.
	Verification *Verification `json:"roll_call,omitempty"`
	// Broadcast is set with Heard.
	Broadcast *Broadcast `json:"broadcast,omitempty"`
	// Result is set in the last event, Done.
	Result *Result `json:"result,omitempty"`
}

// Plan is what a run is about to do.
type Plan struct {
	// Start is when it began.
	Start time.Time `json:"start"`
	// Targets are the addresses that are loaded.
	Targets []string `json:"targets"`
	// Mode says what sends messages: "closed loop", "open loop", "flood",
	// "unprompted" or "hold".
	Mode string `json:"mode"`
	// Connections is how many there are to be, Sources from how many
	// addresses.
	Connections int `json:"connections"`
	Sources     int `json:"sources"`
	Pipeline    int `json:"pipeline"`
	// NoReply says that no answers are awaited.
	NoReply bool `json:"mute,omitempty"`
	// Rate is the plan of an open loop.
	Rate *Rate `json:"rate,omitempty"`
	// Duration, Messages and Check are as in Config.
	Duration time.Duration `json:"duration,omitempty"`
	Messages int64         `json:"messages,omitempty"`
	Check    int           `json:"check,omitempty"`
	Seed     uint64        `json:"seed"`
	// Model and Loops are what the generator runs on.
	Model string `json:"model"`
	Loops int    `json:"loops"`
	// Host names the machine of the generator, and what it has.
	Host string `json:"host"`
	// Generator and Server are what the two processes had before the first
	// connection, as in Interval; nil where nobody asked.
	Generator *Usage `json:"generator,omitempty"`
	Server    *Usage `json:"server,omitempty"`
}

// Snapshot is the state of a run at one moment.
type Snapshot struct {
	// Open is the number of connections that are established now.
	Open int64 `json:"open"`
	// Failed counts failed attempts to connect.
	Failed int64 `json:"failed"`
	// Sent and Answered count messages since the start of the run.
	Sent     int64 `json:"sent"`
	Answered int64 `json:"answered"`
}

// Usage is what a process used in an interval.
type Usage struct {
	// CPU is its processor time in the interval.
	CPU time.Duration `json:"cpu"`
	// Resident is its memory at the end of the interval, in bytes, 0 where
	// that isn't known.
	Resident int64 `json:"resident,omitempty"`
	// Anonymous is what of that no file holds, as programs do: heap and stacks.
	Anonymous int64 `json:"anonymous,omitempty"`
	// Descriptors is how many it has open, 0 where that isn't known.
	Descriptors int `json:"descriptors,omitempty"`
	// Goroutines is how many it has at the end of the interval. GCs counts the
	// collections of garbage since it started, and GCPause is how long they stopped
	// everything, all together. They are known of the generator only, and 0 elsewhere.
	Goroutines int           `json:"goroutines,omitempty"`
	GCs        int64         `json:"gcs,omitempty"`
	GCPause    time.Duration `json:"gc_pause,omitempty"`
}

// PerConnection is how much more memory a process has than before the first
// connection, for each of so many connections, in bytes: Anonymous, or Resident where
// that isn't known; 0 where neither is.
func (u *Usage) PerConnection(before *Usage, connections int64) int64 {
	if u == nil || before == nil || u.Resident == 0 || before.Resident == 0 || connections <= 0 {
		return 0
	}
	if u.Anonymous > 0 && before.Anonymous > 0 {
		return max(u.Anonymous-before.Anonymous, 0) / connections
	}
	return max(u.Resident-before.Resident, 0) / connections
}

package load

// Phase names a moment in a run.
type Phase string

const (
	// Connected: every connection has been established or has failed.
	Connected Phase = "connected"
	// Measuring: the warm-up is over, the window has begun.
	Measuring Phase = "measuring"
	// Measured: the window has ended.
	Measured Phase = "measured"
	// Exchanged: every connection has exchanged the asked number of
	// messages (only where Config.Messages is set).
	Exchanged Phase = "exchanged"
	// Progress: a second, or Config.ProgressEvery, has passed; Snapshot says
	// how far the run is.
	Progress Phase = "progress"
	// Done: all connections are closed; Result is set.
	Done Phase = "done"
)

// Event is one line of the stream that a run tells of itself.
type Event struct {
	Phase Phase `json:"phase"`
	// Snapshot is how far the run is.
	Snapshot Snapshot `json:"snapshot"`
	// Result is set in the last event, Done.
	Result *Result `json:"result,omitempty"`
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

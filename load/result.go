package load

import (
	"errors"
	"fmt"
	"time"
)

// Result is what one run of the load generator saw. It is plain data: every
// field can be written as JSON and read back. Durations are nanoseconds in
// JSON.
type Result struct {
	// Target is the address that was loaded, as host:port or unix: and a path;
	// several have ", " between them.
	Target string `json:"target"`
	// Model is the I/O model that the generator itself ran on.
	Model string `json:"model"`
	// TLS names the version and the cipher that the first handshake agreed
	// on, "" where nothing was encrypted.
	TLS string `json:"tls,omitempty"`
	// CPUs is how many processors the generator could have kept busy: one
	// for each of its loops, or all that this process may use.
	CPUs int `json:"cpus"`
	// Connections is how many connections were asked for.
	Connections int `json:"connections"`
	// Connected is how many of them were established.
	Connected int `json:"connected"`
	// ConnectErrors counts failed attempts to connect by cause, such as
	// "connection refused".
	ConnectErrors map[string]int64 `json:"connect_errors,omitempty"`
	// ConnectTime is the time from the first attempt to the last
	// established connection, TLS handshakes included.
	ConnectTime time.Duration `json:"connect_time"`

	// Mode is as in Plan, Schedule the plan of an open loop.
	Mode     string `json:"mode,omitempty"`
	Schedule *Rate  `json:"schedule,omitempty"`
	// Mute says that no answers were awaited: none count, and Rate is of what
	// was sent.
	Mute bool `json:"mute,omitempty"`
	// Seed is what everything random was made from.
	Seed uint64 `json:"seed"`
	// Connect is the time that it took to establish a connection, FirstByte
	// the time from then to the first byte of the server, what the connection
	// waited before its first message included; of the whole run.
	Connect   Latency `json:"connect"`
	FirstByte Latency `json:"first_byte"`
	// Closed counts connections that the generator closed because their
	// lifetime was over, CutOff the messages in flight on them.
	Closed int64 `json:"closed,omitempty"`
	CutOff int64 `json:"cut_off,omitempty"`

	// Pipeline is how many messages each connection keeps in flight.
	Pipeline int `json:"pipeline"`
	// Messages is how many messages each connection was to exchange, 0 where
	// the run had a duration.
	Messages int64 `json:"messages,omitempty"`
	// Exchanged is how many connections did so.
	Exchanged int64 `json:"exchanged,omitempty"`
	// MessageSize is the size of one message in bytes.
	MessageSize int `json:"message_size"`

	// Window is the measured time: warm-up, connecting and draining are
	// outside of it. All the figures below are of the window.
	Window time.Duration `json:"window"`
	// Sent and Answered count messages. An answer counts when all its
	// bytes have arrived and were as expected.
	Sent     int64 `json:"sent"`
	Answered int64 `json:"answered"`
	// BytesSent and BytesReceived count bytes of messages.
	BytesSent     int64 `json:"bytes_sent"`
	BytesReceived int64 `json:"bytes_received"`
	// Latency is the time to the arrival of the last byte of an answer: in a
	// closed loop from the moment its message was handed to the connection,
	// so that what a stalled server kept from being sent does not count; in
	// an open loop from the moment at which the message was to be sent, and
	// then Corrected is set.
	Latency   Latency `json:"latency"`
	Corrected bool    `json:"corrected,omitempty"`
	// Service is, in an open loop, the time from the moment at which the
	// message was really sent: what a closed loop would have said.
	Service *Latency `json:"service,omitempty"`
	// Late is, in an open loop, how long after its time a message was sent
	// for which there was a connection with room: the generator's own delay.
	Late *Latency `json:"late,omitempty"`
	// Intended counts the messages that the plan of an open loop had for the
	// window, Unsent those of them that were not sent even in the time for
	// draining. Latencies are of intended messages whose answer came.
	Intended int64 `json:"intended,omitempty"`
	Unsent   int64 `json:"unsent,omitempty"`
	// Histogram is Latency in full: an HdrHistogram of nanoseconds in the
	// compressed encoding (V2) that its libraries share, base64. Histograms
	// of several generators can be merged.
	Histogram string `json:"histogram,omitempty"`
	// UserCPU and SystemCPU are the generator's own processor time.
	UserCPU   time.Duration `json:"user_cpu"`
	SystemCPU time.Duration `json:"system_cpu"`

	// Mismatched counts connections, in the whole run, whose answer
	// differed from what was expected. Such a connection is closed.
	Mismatched int64 `json:"mismatched"`
	// FirstMismatch is the first of them, nil if there is none.
	FirstMismatch *Mismatch `json:"first_mismatch,omitempty"`
	// BadStatus counts HTTP responses with a status of 400 or more, in the
	// whole run, where Match is "http". Their latencies count like others'.
	BadStatus map[string]int64 `json:"bad_status,omitempty"`
	// Lost counts established connections, in the whole run, that ended
	// before the generator closed them, by cause.
	Lost map[string]int64 `json:"lost,omitempty"`
	// RollCalls are those of held connections, in order.
	RollCalls []RollCall `json:"roll_calls,omitempty"`
	// Heartbeats counts those of the server that held connections got, in the
	// whole run.
	Heartbeats int64 `json:"heartbeats,omitempty"`
	// Broadcast is who had got the broadcast when the hold was over; nil where
	// none was expected.
	Broadcast *Broadcast `json:"broadcast,omitempty"`
	// Strange counts lines, in the whole run, that held connections did not
	// expect, a broadcast that came again not among them. FirstStrange is the
	// first, quoted as in Go, at most 32 bytes of it.
	Strange      int64  `json:"strange,omitempty"`
	FirstStrange string `json:"first_strange,omitempty"`
	// Bytes accounts for all bytes of messages of the whole run.
	Bytes Bytes `json:"bytes"`
	// Limits are the walls that the generator itself met, most severe first:
	// with one of them the figures say more about it than about the server.
	Limits []Limit `json:"limits,omitempty"`
	// Search is what a search has found, nil where the run was none.
	Search *Found `json:"search,omitempty"`
	// Unanswered counts messages still without an answer when the run
	// ended, after the generator had waited for them.
	Unanswered int64 `json:"unanswered"`
}

// Bytes accounts for bytes of messages, and of what answers them, in a whole run.
type Bytes struct {
	// Sent were handed to connections.
	Sent int64 `json:"sent"`
	// Received were answers, or parts of them.
	Received int64 `json:"received"`
	// Answered is how many of Sent belong to messages that were answered,
	// InFlight how many to those that were not when the run ended, CutOff
	// how many to those on connections that had ended before. Sent is the sum
	// of the three.
	Answered int64 `json:"answered"`
	InFlight int64 `json:"in_flight"`
	CutOff   int64 `json:"cut_off"`
}

// Limit is a wall that the generator met.
type Limit struct {
	// Wall is "cpu", "cpu pressure" (its machine's, whoever needs the
	// processors), "ports", "descriptors", "memory" or "late sends".
	Wall string `json:"wall"`
	// Evidence says how it shows, Advice how to move it.
	Evidence string `json:"evidence"`
	Advice   string `json:"advice"`
}

// Mismatch is where an answer differed from what was expected.
type Mismatch struct {
	// Connection numbers the connection in its run, Message the message on
	// its connection and Byte the first wrong byte in the answer, each
	// from 0. A connection that is held has the number of its place on its
	// loop.
	Connection int64 `json:"connection"`
	Message    int64 `json:"message"`
	Byte       int   `json:"byte"`
	// Want and Got are the bytes from there on, quoted as in Go, at most 32
	// of them. Want is empty when no answer was owed.
	Want string `json:"want"`
	Got  string `json:"got"`
	// Why says what is wrong with it.
	Why string `json:"why,omitempty"`
}

// String describes the mismatch in a line.
func (m *Mismatch) String() string {
	if m.Why != "" && (m.Want == "" || m.Want == `""`) {
		return fmt.Sprintf("connection %d, message %d, byte %d: %s; got %s", m.Connection, m.Message, m.Byte, m.Why, m.Got)
	}
	return fmt.Sprintf("connection %d, message %d, byte %d: got %s, want %s", m.Connection, m.Message, m.Byte, m.Got, m.Want)
}

// Latency is a distribution of times, read off an HDR histogram with three
// significant digits: in steps of 1 ns up to 2 µs, and of at most a thousandth
// of the value up to 60 s; a longer one counts as 60 s.
type Latency struct {
	Count int64         `json:"count"`
	Min   time.Duration `json:"min"`
	Mean  time.Duration `json:"mean"`
	P50   time.Duration `json:"p50"`
	P75   time.Duration `json:"p75"`
	P90   time.Duration `json:"p90"`
	P95   time.Duration `json:"p95"`
	P99   time.Duration `json:"p99"`
	P999  time.Duration `json:"p999"`
	P9999 time.Duration `json:"p9999"`
	Max   time.Duration `json:"max"`
}

// Rate is the number of answered messages a second in the window, or of sent
// ones where no answers were awaited.
func (r *Result) Rate() float64 {
	if r.Window <= 0 {
		return 0
	}
	return float64(r.rated()) / r.Window.Seconds()
}

// rated is how many messages Rate counts.
func (r *Result) rated() int64 {
	if r.Mute {
		return r.Sent
	}
	return r.Answered
}

// InFlight is the number of messages that were in flight on average, by
// Little's law: rate × mean latency. In a closed loop it equals connections ×
// pipeline; where it does not, the connections were not all loaded. In an open
// loop it has those that waited to be sent, too.
func (r *Result) InFlight() float64 {
	return r.Rate() * r.Latency.Mean.Seconds()
}

// busy is the share of the generator's processors from which on it is called
// the bottleneck.
const busy = 0.95

// GeneratorBound says whether the generator itself, not the server, was the
// bottleneck: whether it used 95 % of the processor time that it could have
// had in the window. On systems that do not tell the time it is false, and for
// windows of less than 100 ms; and where each connection was to exchange so many
// messages: such a window is no load.
func (r *Result) GeneratorBound() bool {
	return r.Messages == 0 && r.knowsCPU() && r.CPUShare() >= busy
}

// knowsCPU says whether CPUShare says anything.
func (r *Result) knowsCPU() bool { return r.Window >= shortest && r.UserCPU+r.SystemCPU > 0 }

// CPUShare is the share of its processors that the generator used in the window, 1
// for all of them. It can be more, for the Go runtime's own work.
func (r *Result) CPUShare() float64 {
	if r.Window <= 0 || r.CPUs <= 0 {
		return 0
	}
	return (r.UserCPU + r.SystemCPU).Seconds() / (r.Window.Seconds() * float64(r.CPUs))
}

// Err is nil for a clean run: otherwise it says that nothing could be
// connected, that answers were wrong, that connections were lost or that
// answers are missing, whichever comes first. Attempts to connect that failed
// beside others that succeeded are no error; see ConnectErrors.
func (r *Result) Err() error {
	switch {
	case r.Connected == 0 && len(r.ConnectErrors) > 0:
		return fmt.Errorf("load: no connection to %s: %s", r.Target, list(r.ConnectErrors))
	case r.Connected == 0:
		return fmt.Errorf("load: no connection to %s", r.Target)
	case r.FirstMismatch != nil:
		return fmt.Errorf("load: wrong answers on %d of %d connections; first: %v", r.Mismatched, r.Connected, r.FirstMismatch)
	case len(r.Lost) > 0:
		return fmt.Errorf("load: connections lost: %s", list(r.Lost))
	case len(r.BadStatus) > 0:
		return fmt.Errorf("load: %s", list(r.BadStatus))
	case r.Messages > 0 && r.Unanswered == 0 && r.Exchanged < int64(r.Connected):
		return fmt.Errorf("load: %s of %s connections have exchanged their %s messages", group(r.Exchanged), group(int64(r.Connected)), group(r.Messages))
	case r.Unanswered > 0:
		return errors.New("load: messages without an answer: " + group(r.Unanswered))
	}
	return r.heldErr()
}

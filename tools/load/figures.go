package load

import (
	"errors"
	"fmt"
	"time"

	"github.com/myriad-go/myriad/internal/format"
)

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

// Agent is one of the generators of a run on several machines.
type Agent struct {
	// Name is its own, Host names its machine, and CPUs is how many it has.
	Name string `json:"name"`
	Host string `json:"host,omitempty"`
	CPUs int    `json:"cpus,omitempty"`
	// Connections is its part of those that were asked for.
	Connections int `json:"connections"`
	// Offset is by how much its clock is ahead of the coordinator's, known to within
	// Uncertainty, and Behind how long after the first agent's its window began.
	Offset      time.Duration `json:"offset"`
	Uncertainty time.Duration `json:"uncertainty"`
	Behind      time.Duration `json:"behind"`
	// Connected, Rate, Latency and CPUShare are those of its own result; of an agent that
	// was lost they are 0.
	Connected int     `json:"connected"`
	Rate      float64 `json:"rate"`
	Latency   Latency `json:"latency"`
	CPUShare  float64 `json:"cpu_share,omitempty"`
	// Lost says why an agent's result is missing, "" where it isn't, and Last how far it
	// was when it was last heard of.
	Lost string    `json:"lost,omitempty"`
	Last *Snapshot `json:"last,omitempty"`
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

// Verification is what came of asking each connection that is held for its line. The line
// is made from the connection's place and the seed, and compared when it is back, so
// that nothing is kept for a connection but while its line is in flight.
type Verification struct {
	// Number counts the verifications of the run, from 1; InFlight is
	// Config.Check.
	Number   int `json:"number"`
	InFlight int `json:"in_flight"`
	// Open is how many connections were open when it began. Asked counts those
	// that have sent their line: of these Checked got it back, Wrong something
	// else, and then they were closed; Lost ended before, and Unanswered got
	// nothing, for Config.Drain in which none got any. Asked is the sum of the
	// four. It is less than Open where connections ended before it was their
	// turn, or where so many were unanswered that no more could be asked.
	Open       int64 `json:"open"`
	Asked      int64 `json:"asked"`
	Checked    int64 `json:"checked"`
	Wrong      int64 `json:"wrong"`
	Lost       int64 `json:"lost"`
	Unanswered int64 `json:"unanswered"`
	// Time is from its beginning to the last line that came back.
	Time time.Duration `json:"time"`
	// Latency is the time from when a line was handed to its connection to
	// when it was back, in steps of a hundredth.
	Latency Latency `json:"latency"`
}

// Complete says whether every connection that was open got its line back.
func (c *Verification) Complete() bool { return c.Checked == c.Open }

// Rate is how many lines a second came back.
func (c *Verification) Rate() float64 {
	if c.Time <= 0 {
		return 0
	}
	return float64(c.Checked) / c.Time.Seconds()
}

// Broadcast is how far the server's one line to all connections that are held has
// come.
type Broadcast struct {
	// Open is how many connections were open, Heard how many of them had got
	// the line.
	Open  int64 `json:"open"`
	Heard int64 `json:"heard"`
	// Again counts lines that came to a connection that had got it before.
	Again int64 `json:"again"`
	// Time is from the first that got it to the last, of all connections, and
	// After of each the time since the first, in steps of a hundredth.
	Time  time.Duration `json:"time"`
	After Latency       `json:"after"`
}

// Missing is how many connections had not got it.
func (b *Broadcast) Missing() int64 { return b.Open - b.Heard }

// Rate is the number of answered messages a second in the window, or of sent
// ones where no answers were awaited.
func (r *Result) Rate() float64 {
	if r.Window <= 0 {
		return 0
	}
	return float64(r.rated()) / r.Window.Seconds()
}

// DeliveryRate is the number of messages that subscribers got a second in the window.
func (r *Result) DeliveryRate() float64 {
	if r.Window <= 0 {
		return 0
	}
	return float64(r.Delivered) / r.Window.Seconds()
}

func (r *Result) rated() int64 {
	if r.NoReply {
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
		return fmt.Errorf("load: no connection to %s: %s", r.Target, format.Tally(r.ConnectErrors))
	case r.Connected == 0:
		return fmt.Errorf("load: no connection to %s", r.Target)
	case r.lostAgent() != nil:
		lost := r.lostAgent()
		return fmt.Errorf("load: agent %s is lost, with %s of %s connections: %s", lost.Name, format.Count(lost.Connections), format.Count(r.Connections), lost.Lost)
	case r.FirstMismatch != nil:
		return fmt.Errorf("load: wrong answers on %d of %d connections; first: %v", r.Mismatched, r.Connected, r.FirstMismatch)
	case len(r.Lost) > 0:
		return fmt.Errorf("load: connections lost: %s", format.Tally(r.Lost))
	case len(r.BadStatus) > 0:
		return fmt.Errorf("load: %s", format.Tally(r.BadStatus))
	case r.Messages > 0 && r.Unanswered == 0 && r.Exchanged < int64(r.Connected):
		return fmt.Errorf("load: %s of %s connections have exchanged their %s messages", format.Count(r.Exchanged), format.Count(r.Connected), format.Count(r.Messages))
	case r.Undelivered+r.Doubled+r.Reordered > 0:
		return fmt.Errorf("load: of the deliveries %s are missing, %s came twice and %s in another order",
			format.Count(r.Undelivered), format.Count(r.Doubled), format.Count(r.Reordered))
	case r.Unanswered > 0:
		return errors.New("load: messages without an answer: " + format.Count(r.Unanswered))
	}
	return r.heldErr()
}

// lostAgent is the first agent whose part is missing, nil if none is.
func (r *Result) lostAgent() *Agent {
	for i := range r.Agents {
		if r.Agents[i].Lost != "" {
			return &r.Agents[i]
		}
	}
	return nil
}

// heldErr says what was wrong with what held connections have received.
func (r *Result) heldErr() error {
	for _, c := range r.Verifications {
		if !c.Complete() {
			return fmt.Errorf("load: verification %d: %s of %s connections have got their line back", c.Number, format.Count(c.Checked), format.Count(c.Open))
		}
	}
	switch b := r.Broadcast; {
	case b != nil && b.Missing() > 0:
		return fmt.Errorf("load: broadcast: %s of %s connections have not got it", format.Count(b.Missing()), format.Count(b.Open))
	case b != nil && b.Again > 0:
		return fmt.Errorf("load: broadcast: it came again %s times", format.Count(b.Again))
	case r.Unexpected > 0:
		return fmt.Errorf("load: %s lines that nobody expected; first: %s", format.Count(r.Unexpected), r.FirstUnexpected)
	}
	return nil
}

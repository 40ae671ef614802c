package load

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/format"
)

// Counts is what a run counts, in an Interval or in a whole Result. The tags of each counter
// declare its metric, its help text and how it merges; see Counters. In a Result, a counter
// with the tag of:"window" is of the measured window, and any other of the whole run.
type Counts struct {
	Closed        int64 `json:"closed" merge:"sum" metric:"connections_closed_total" help:"Connections that the generator closed because their lifetime was over."`
	CutOff        int64 `json:"cut_off,omitempty" merge:"sum" metric:"messages_cut_off_total" help:"Messages in flight on connections that the generator closed."`
	Reconnected   int64 `json:"reconnected,omitempty" merge:"sum" metric:"connections_reconnected_total" help:"Connections that were replaced because the HTTP server had closed them in order."`
	Resent        int64 `json:"resent,omitempty" merge:"sum" of:"window" metric:"messages_resent_total" help:"Messages that were sent again on a connection that replaced another."`
	Intended      int64 `json:"intended,omitempty" merge:"sum" of:"window" metric:"messages_intended_total" help:"Messages that were to be sent by the plan of an open loop."`
	Sent          int64 `json:"sent" merge:"sum" of:"window" metric:"messages_sent_total" help:"Messages that were handed to connections."`
	Answered      int64 `json:"answered" merge:"sum" of:"window" metric:"messages_answered_total" help:"Messages whose whole answer has arrived, as expected."`
	BytesSent     int64 `json:"bytes_sent" merge:"sum" of:"window" metric:"sent_bytes_total" help:"Bytes of messages sent."`
	BytesReceived int64 `json:"bytes_received" merge:"sum" of:"window" metric:"received_bytes_total" help:"Bytes received."`
	Exchanged     int64 `json:"exchanged,omitempty" merge:"sum" metric:"connections_exchanged_total" help:"Connections that have got the answers to all their messages."`
	Delivered     int64 `json:"delivered,omitempty" merge:"sum" of:"window" metric:"messages_delivered_total" help:"Messages that subscribers have got, each for itself."`
	Heartbeats    int64 `json:"heartbeats,omitempty" merge:"sum" metric:"heartbeats_total" help:"Heartbeats of the server that held connections have got."`
	Unexpected    int64 `json:"unexpected,omitempty" merge:"sum" fault:"true" metric:"unexpected_lines_total" help:"Lines that held connections did not expect, including a broadcast that came again."`
}

// Interval is what happened since the previous interval.
type Interval struct {
	// From and To are when it began and ended, since the run's start.
	From time.Duration `json:"from" merge:"min"`
	To   time.Duration `json:"to" merge:"max"`
	// Stage is what the run was doing at its end: "connect", "check",
	// "hold", "warm-up", "window", "drain" or "close".
	Stage string `json:"stage" merge:"last"`

	Open   int64 `json:"open" merge:"gauge" metric:"connections" help:"Connections that are established now."`
	Opened int64 `json:"opened" merge:"sum" metric:"connections_opened_total" help:"Connections that were established."`
	Failed int64 `json:"failed" merge:"sum" metric:"connections_failed_total" help:"Attempts to connect that failed."`
	Lost   int64 `json:"lost" merge:"sum" metric:"connections_lost_total" help:"Connections that the server or the network ended."`
	// Counts includes the lines of a verification as messages sent and answered.
	Counts   `merge:"sum"`
	InFlight int64 `json:"in_flight" merge:"gauge" metric:"messages_in_flight" help:"Messages that have no answer yet."`
	Waiting  int64 `json:"waiting,omitempty" merge:"gauge" metric:"messages_waiting" help:"Messages of the plan of an open loop whose time has come and that have not been sent."`
	Heard    int64 `json:"heard,omitempty" merge:"sum" metric:"broadcast_heard_total" help:"Held connections that have got the broadcast."`
	// Errors counts what went wrong, by cause: of attempts to connect, of
	// connections and of answers.
	Errors map[string]int64 `json:"errors,omitempty" merge:"sum"`

	// Latency is that of the answers of the interval, whether they count for the
	// window or not. Connect is the time to establish a connection.
	Latency Latency `json:"latency" merge:"sum"`
	Connect Latency `json:"connect" merge:"sum"`
	// Histograms are Latency and Connect in full, by their keys in JSON, encoded as
	// Result.Histogram; nil unless Config.Histograms was set.
	Histograms map[string]string `json:"histograms,omitempty"`

	// Generator and Server are what the two processes used; Server is nil
	// where it isn't a process of this machine that may be looked at.
	Generator Usage  `json:"generator" merge:"sum"`
	Server    *Usage `json:"server,omitempty" merge:"shared"`
}

// Result is what one run of the load generator saw. It is plain data: every
// field can be written as JSON and read back. Durations are nanoseconds in
// JSON.
type Result struct {
	// Start is when the run began, by the clock of its machine, Took how long all of it
	// took. Interrupted says that it ended before its time, because its context did.
	Start       time.Time     `json:"start,omitzero" merge:"min"`
	Took        time.Duration `json:"took,omitempty" merge:"max"`
	Interrupted bool          `json:"interrupted,omitempty" merge:"max"`
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
	CPUs int `json:"cpus" merge:"sum"`
	// Connections is how many connections were asked for.
	Connections int `json:"connections" merge:"sum"`
	// Connected is how many of them were established.
	Connected int `json:"connected" merge:"sum"`
	// ConnectErrors counts failed attempts to connect by cause, such as
	// "connection refused".
	ConnectErrors map[string]int64 `json:"connect_errors,omitempty" merge:"sum"`
	// ConnectTime is the time from the first attempt to the last
	// established connection, TLS handshakes included.
	ConnectTime time.Duration `json:"connect_time" merge:"max"`

	// Mode is as in Plan, Schedule the plan of an open loop.
	Mode     string `json:"mode,omitempty"`
	Schedule *Rate  `json:"schedule,omitempty" merge:"sum"`
	// NoReply says that no answers were awaited: none count, and Rate is of what
	// was sent.
	NoReply bool `json:"no_reply,omitempty"`
	// Seed is what everything random was made from.
	Seed uint64 `json:"seed"`
	// Connect is the time that it took to establish a connection, FirstByte
	// the time from then to the first byte of the server, what the connection
	// waited before its first message included; of the whole run.
	Connect   Latency `json:"connect" merge:"sum"`
	FirstByte Latency `json:"first_byte" merge:"sum"`
	// Pipeline is how many messages each connection keeps in flight.
	Pipeline int `json:"pipeline"`
	// Messages is how many messages each connection was to exchange, 0 where
	// the run had a duration.
	Messages int64 `json:"messages,omitempty"`
	// MessageSize is the size of one message in bytes.
	MessageSize int `json:"message_size"`

	// Window is the measured time, without connecting, warm-up and draining. Latency,
	// Service, Late and Generator are of the window.
	Window time.Duration `json:"window" merge:"max"`
	// Variation is by how much the bytes received a second varied over the last
	// Config.Duration of the window: the standard deviation of ten parts of it, divided
	// by their mean. 0 where there were no two parts, or nothing was received.
	Variation float64 `json:"variation,omitempty" merge:"max"`
	Counts    `merge:"sum"`
	// Latency is the time to the arrival of the last byte of an answer: in a
	// closed loop from the moment its message was handed to the connection,
	// so that what a stalled server kept from being sent does not count; in
	// an open loop from the moment at which the message was to be sent, and
	// then Corrected is set.
	Latency   Latency `json:"latency" merge:"sum"`
	Corrected bool    `json:"corrected,omitempty"`
	// Service is, in an open loop, the time from the moment at which the
	// message was really sent: what a closed loop would have said.
	Service *Latency `json:"service,omitempty" merge:"sum"`
	// Late is, in an open loop, how long after its time a message was sent
	// for which there was a connection with room: the generator's own delay.
	Late   *Latency `json:"late,omitempty" merge:"sum"`
	Unsent int64    `json:"unsent,omitempty" merge:"sum" fault:"true" help:"Messages of the plan of an open loop that were not sent even in the time for draining."`
	// Histogram is Latency in full: an HdrHistogram of nanoseconds in the
	// compressed encoding (V2) that its libraries share, base64. Histograms
	// of several generators can be merged.
	Histogram string `json:"histogram,omitempty"`
	// Histograms are Connect, FirstByte, Service and Late likewise, by their keys in JSON;
	// nil unless Config.Histograms was set.
	Histograms map[string]string `json:"histograms,omitempty"`
	// Generator has the generator's own processor time, and nothing else.
	Generator Usage `json:"generator" merge:"sum"`

	Mismatched int64 `json:"mismatched" merge:"sum" fault:"true" help:"Connections with a wrong answer, after which they are closed."`
	// FirstMismatch is the first of them, nil if there is none.
	FirstMismatch *Mismatch `json:"first_mismatch,omitempty" merge:"first"`
	// BadStatus counts HTTP responses with a status of 400 or more, in the
	// whole run, where Match is "http". Their latencies count like others'.
	BadStatus map[string]int64 `json:"bad_status,omitempty" merge:"sum"`
	// Lost counts established connections, in the whole run, that ended
	// before the generator closed them, by cause.
	Lost map[string]int64 `json:"lost,omitempty" merge:"sum"`
	// Verifications are those of held connections, in order.
	Verifications []Verification `json:"verifications,omitempty" merge:"sum"`
	// Broadcast is who had got the broadcast when the hold was over; nil where
	// none was expected.
	Broadcast *Broadcast `json:"broadcast,omitempty" merge:"sum"`
	// FirstUnexpected is the first unexpected line, quoted as in Go, at most 32 bytes of it.
	FirstUnexpected string `json:"first_unexpected,omitempty" merge:"first"`
	// PubSub is what a publish/subscribe run was of, nil where it was none. Sent counts what
	// was published, Answered what all subscribers have got.
	PubSub      *PubSub `json:"pubsub,omitempty" merge:"sum"`
	Undelivered int64   `json:"undelivered,omitempty" merge:"sum" fault:"true" help:"Messages that a subscriber had not got when the run ended."`
	Doubled     int64   `json:"doubled,omitempty" merge:"sum" fault:"true" help:"Messages that a subscriber got again."`
	Reordered   int64   `json:"reordered,omitempty" merge:"sum" fault:"true" help:"Messages that a subscriber got behind a later one of their publisher."`
	SlowEnded   int64   `json:"slow_ended,omitempty" merge:"sum" help:"Subscribers that did not read, and that the server has ended."`
	// Bytes accounts for all bytes of messages of the whole run.
	Bytes Bytes `json:"bytes" merge:"sum"`
	// Limits are the walls that the generator itself met, most severe first:
	// with one of them the figures say more about it than about the server.
	Limits []Limit `json:"limits,omitempty" merge:"append"`
	// Search is what a search has found, nil where the run was none.
	Search *Found `json:"search,omitempty"`
	// Agents are the generators of a run on several machines, of which this is the merged
	// result: without those that were lost. Nil for a run on one.
	Agents     []Agent `json:"agents,omitempty"`
	Unanswered int64   `json:"unanswered" merge:"sum" fault:"true" help:"Messages without an answer when the run ended, after the generator had waited for them."`
}

// Bytes accounts for bytes of messages, and of what answers them, in a whole run.
type Bytes struct {
	// Sent were handed to connections.
	Sent int64 `json:"sent" merge:"sum"`
	// Received were answers, or parts of them.
	Received int64 `json:"received" merge:"sum"`
	// Answered is how many of Sent belong to messages that were answered,
	// InFlight how many to those that were not when the run ended, CutOff
	// how many to those on connections that had ended before. Sent is the sum
	// of the three.
	Answered int64 `json:"answered" merge:"sum"`
	InFlight int64 `json:"in_flight" merge:"sum"`
	CutOff   int64 `json:"cut_off" merge:"sum"`
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

// Verification is what came of asking each connection that is held for its line. The line
// is made from the connection's place and the seed, and compared when it is back, so
// that nothing is kept for a connection but while its line is in flight.
type Verification struct {
	// Number counts the verifications of the run, from 1; InFlight is
	// Config.Check.
	Number   int `json:"number"`
	InFlight int `json:"in_flight" merge:"sum"`
	// Open is how many connections were open when it began. Asked counts those
	// that have sent their line: of these Checked got it back, Wrong something
	// else, and then they were closed; Lost ended before, and Unanswered got
	// nothing, for Config.Drain in which none got any. Asked is the sum of the
	// four. It is less than Open where connections ended before it was their
	// turn, or where so many were unanswered that no more could be asked.
	Open       int64 `json:"open" merge:"sum"`
	Asked      int64 `json:"asked" merge:"sum"`
	Checked    int64 `json:"checked" merge:"sum"`
	Wrong      int64 `json:"wrong" merge:"sum"`
	Lost       int64 `json:"lost" merge:"sum"`
	Unanswered int64 `json:"unanswered" merge:"sum"`
	// Time is from its beginning to the last line that came back.
	Time time.Duration `json:"time" merge:"max"`
	// Latency is the time from when a line was handed to its connection to
	// when it was back, in steps of a hundredth.
	Latency Latency `json:"latency" merge:"sum"`
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
	Open  int64 `json:"open" merge:"sum"`
	Heard int64 `json:"heard" merge:"sum"`
	// Again counts lines that came to a connection that had got it before.
	Again int64 `json:"again" merge:"sum"`
	// Time is from the first that got it to the last, of all connections, and
	// After of each the time since the first, in steps of a hundredth.
	Time  time.Duration `json:"time" merge:"max"`
	After Latency       `json:"after" merge:"sum"`
}

// Missing is how many connections had not got it.
func (b *Broadcast) Missing() int64 { return b.Open - b.Heard }

// Rate is the number of answered messages a second in the window, or of sent
// ones where no answers were awaited.
func (r *Result) Rate() float64 {
	if r.Window <= 0 {
		return 0
	}
	return float64(r.ratedMessages()) / r.Window.Seconds()
}

// DeliveryRate is the number of messages that subscribers got a second in the window.
func (r *Result) DeliveryRate() float64 {
	if r.Window <= 0 {
		return 0
	}
	return float64(r.Delivered) / r.Window.Seconds()
}

func (r *Result) ratedMessages() int64 {
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

// generatorBoundShare is the share of the generator's processors from which on it is called
// the bottleneck.
const generatorBoundShare = 0.95

// GeneratorBound says whether the generator itself, not the server, was the
// bottleneck: whether it used 95 % of the processor time that it could have
// had in the window. On systems that do not tell the time it is false, and for
// windows of less than 100 ms; and where each connection was to exchange so many
// messages: such a window is no load.
func (r *Result) GeneratorBound() bool {
	return r.Messages == 0 && r.hasCPUUsage() && r.CPUShare() >= generatorBoundShare
}

func (r *Result) hasCPUUsage() bool { return r.Window >= minUsageWindow && r.Generator.CPU() > 0 }

// CPUShare is the share of its processors that the generator used in the window, 1
// for all of them. It can be more, for the Go runtime's own work.
func (r *Result) CPUShare() float64 {
	if r.Window <= 0 || r.CPUs <= 0 {
		return 0
	}
	return r.Generator.CPU().Seconds() / (r.Window.Seconds() * float64(r.CPUs))
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
	case r.firstLostAgent() != nil:
		lost := r.firstLostAgent()
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
	return r.heldConnsErr()
}

// firstLostAgent is the first agent whose part is missing, nil if none is.
func (r *Result) firstLostAgent() *Agent {
	for i := range r.Agents {
		if r.Agents[i].Lost != "" {
			return &r.Agents[i]
		}
	}
	return nil
}

// heldConnsErr says what was wrong with what held connections have received.
func (r *Result) heldConnsErr() error {
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

// Counter is a number that a run counts: a field of Interval, Result or Counts with the tag
// "help". Text, CSV, pages, metrics, expectations and merging go by Counters.
type Counter struct {
	// Name is the key in JSON, CSV and expectations. Help describes what it counts.
	Name, Help string
	// Metric is its name for Prometheus, without "myriad_load_"; "" for none.
	Metric string
	// Gauge reports that an interval has the value at its end, and not what came in it.
	Gauge bool
	// Fault reports that a clean run has none.
	Fault bool

	window           bool  // a Result has that of the window, not of the run
	interval, result []int // the fields; nil for none
}

// Counters are all counters, in the order of the fields. It must not be changed.
var Counters = listCounters()

func listCounters() (all []Counter) {
	for _, t := range []reflect.Type{reflect.TypeFor[Interval](), reflect.TypeFor[Result]()} {
		for _, f := range reflect.VisibleFields(t) {
			help, ok := f.Tag.Lookup("help")
			if !ok {
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			i := slices.IndexFunc(all, func(c Counter) bool { return c.Name == name })
			if i < 0 {
				i = len(all)
				all = append(all, Counter{Name: name, Help: help, Metric: f.Tag.Get("metric"), Gauge: f.Tag.Get("merge") == "gauge",
					Fault: f.Tag.Get("fault") != "", window: f.Tag.Get("of") == "window"})
			}
			if t == reflect.TypeFor[Interval]() {
				all[i].interval = f.Index
			} else {
				all[i].result = f.Index
			}
		}
	}
	return all
}

// Of returns the value in an interval; ok is false where intervals have none.
func (c *Counter) Of(i *Interval) (n int64, ok bool) { return counterField(i, c.interval) }

func (c *Counter) resultValue(r *Result) (n int64, ok bool) { return counterField(r, c.result) }

func counterField[T any](in *T, field []int) (n int64, ok bool) {
	if field == nil {
		return 0, false
	}
	return reflect.ValueOf(in).Elem().FieldByIndex(field).Int(), true
}

// setCounts sets what an interval counts to what has come since before.
func (i *Interval) setCounts(now, before *counts) {
	for _, c := range Counters {
		if at, ok := counterIndexes[c.Name]; ok && c.interval != nil {
			reflect.ValueOf(i).Elem().FieldByIndex(c.interval).SetInt(max(now[at]-before[at], 0))
		}
	}
}

// setCounts sets what a result counts.
func (r *Result) setCounts(run, window *counts) {
	for _, c := range Counters {
		if at, ok := counterIndexes[c.Name]; ok && c.result != nil {
			of := run
			if c.window {
				of = window
			}
			reflect.ValueOf(r).Elem().FieldByIndex(c.result).SetInt(of[at])
		}
	}
}

// countFaults counts everything that went wrong in the run.
func (r *Result) countFaults() (n int64) {
	for _, c := range Counters {
		if count, ok := c.resultValue(r); ok && c.Fault {
			n += count
		}
	}
	if b := r.Broadcast; b != nil {
		n += b.Missing() + b.Again
	}
	for i := range r.Agents {
		if r.Agents[i].Lost != "" {
			n++
		}
	}
	return n + sumCauses(r.ConnectErrors) + sumCauses(r.Lost)
}

// sumCauses adds up causes.
func sumCauses(causes map[string]int64) (sum int64) {
	for _, n := range causes {
		sum += n
	}
	return sum
}

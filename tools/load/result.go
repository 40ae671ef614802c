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

// Counts contains the counters that are fields of both Interval and Result. The tags of a field define how the counter
// is exported and merged; see Counter. In a Result, a counter with the tag `of:"window"` covers only the measured
// window. All other counters cover the whole run.
type Counts struct {
	Closed        int64 `json:"closed" merge:"sum" metric:"connections_closed_total" help:"Connections that the generator closed at the end of their lifetime."`
	CutOff        int64 `json:"cut_off,omitempty" merge:"sum" metric:"messages_cut_off_total" help:"Messages in flight on connections that the generator closed."`
	Reconnected   int64 `json:"reconnected,omitempty" merge:"sum" metric:"connections_reconnected_total" help:"Connections that were replaced after the HTTP server closed them cleanly."`
	Resent        int64 `json:"resent,omitempty" merge:"sum" of:"window" metric:"messages_resent_total" help:"Messages that were sent again on a replaced connection."`
	Intended      int64 `json:"intended,omitempty" merge:"sum" of:"window" metric:"messages_intended_total" help:"Messages planned by an open loop."`
	Sent          int64 `json:"sent" merge:"sum" of:"window" metric:"messages_sent_total" help:"Messages that were passed to connections."`
	Answered      int64 `json:"answered" merge:"sum" of:"window" metric:"messages_answered_total" help:"Messages that were answered completely and as expected."`
	BytesSent     int64 `json:"bytes_sent" merge:"sum" of:"window" metric:"sent_bytes_total" help:"Bytes of messages sent."`
	BytesReceived int64 `json:"bytes_received" merge:"sum" of:"window" metric:"received_bytes_total" help:"Bytes received."`
	Exchanged     int64 `json:"exchanged,omitempty" merge:"sum" metric:"connections_exchanged_total" help:"Connections that received the answers to all their messages."`
	Delivered     int64 `json:"delivered,omitempty" merge:"sum" of:"window" metric:"messages_delivered_total" help:"Deliveries of messages to subscribers."`
	Heartbeats    int64 `json:"heartbeats,omitempty" merge:"sum" metric:"heartbeats_total" help:"Heartbeats that held connections received."`
	Unexpected    int64 `json:"unexpected,omitempty" merge:"sum" fault:"true" metric:"unexpected_lines_total" help:"Unexpected lines on held connections, including repeated broadcasts."`
}

// Interval contains what a run counted and measured since the previous interval.
type Interval struct {
	// From and To are the beginning and the end of the interval, as times since the run's start.
	From time.Duration `json:"from" merge:"min"`
	To   time.Duration `json:"to" merge:"max"`
	// Stage is the stage at the end: "connect", "check", "hold", "warm-up", "window", "drain" or "close".
	Stage string `json:"stage" merge:"last"`

	Open   int64 `json:"open" merge:"gauge" metric:"connections" help:"Connections that are established now."`
	Opened int64 `json:"opened" merge:"sum" metric:"connections_opened_total" help:"Connections that were established."`
	Failed int64 `json:"failed" merge:"sum" metric:"connections_failed_total" help:"Attempts to connect that failed."`
	Lost   int64 `json:"lost" merge:"sum" metric:"connections_lost_total" help:"Connections that the server or the network ended."`
	// In Counts, each line of a verification counts as a message.
	Counts   `merge:"sum"`
	InFlight int64 `json:"in_flight" merge:"gauge" metric:"messages_in_flight" help:"Messages without an answer yet."`
	Waiting  int64 `json:"waiting,omitempty" merge:"gauge" metric:"messages_waiting" help:"Overdue messages of an open loop that have not been sent."`
	Heard    int64 `json:"heard,omitempty" merge:"sum" metric:"broadcast_heard_total" help:"Held connections that received the broadcast."`
	// Errors counts failures of connection attempts, connections and answers, by cause.
	Errors map[string]int64 `json:"errors,omitempty" merge:"sum"`

	// Latency covers all answers, also those outside the measured window. Connect covers the times to connect.
	Latency Latency `json:"latency" merge:"sum"`
	Connect Latency `json:"connect" merge:"sum"`
	// Histograms contains the full distributions of Latency and Connect under their JSON keys, encoded like
	// Result.Histogram. It is nil unless Config.Histograms is set.
	Histograms map[string]string `json:"histograms,omitempty"`

	// Generator and Server are the resources that the generator and the server used. Server is nil if the server
	// runs on another machine, or if the generator may not inspect the server's process.
	Generator Usage  `json:"generator" merge:"sum"`
	Server    *Usage `json:"server,omitempty" merge:"shared"`
}

// Result is the outcome of one run. It can be stored as JSON without loss. In JSON, durations are nanoseconds.
type Result struct {
	// Start is the beginning of the run by the clock of the generator's machine. Took is the duration of the run.
	// Interrupted reports that the run's context ended the run early.
	Start       time.Time     `json:"start,omitzero" merge:"min"`
	Took        time.Duration `json:"took,omitempty" merge:"max"`
	Interrupted bool          `json:"interrupted,omitempty" merge:"max"`
	// Target is the server's address: host:port, or "unix:" followed by a path. Addresses are separated by ", ".
	Target string `json:"target"`
	Model  string `json:"model"`
	// TLS is the version and cipher of the first successful handshake, or a note that none succeeded; "" without TLS.
	TLS string `json:"tls,omitempty"`
	// CPUs is the number of processors that the generator can use, at most one per loop if there are loops.
	CPUs int `json:"cpus" merge:"sum"`
	// Connections is the requested number of connections.
	Connections int `json:"connections" merge:"sum"`
	Connected   int `json:"connected" merge:"sum"`
	// ConnectErrors counts failed connection attempts by cause, such as "connection refused".
	ConnectErrors map[string]int64 `json:"connect_errors,omitempty" merge:"sum"`
	// ConnectTime is the time from the first attempt to the last established connection, with TLS handshakes.
	ConnectTime time.Duration `json:"connect_time" merge:"max"`

	// Mode is one of the values of Plan.Mode. Schedule is the plan of an open loop, nil for other modes.
	Mode     string `json:"mode,omitempty"`
	Schedule *Rate  `json:"schedule,omitempty" merge:"sum"`
	// NoReply reports that no answers were expected. The method Rate then returns the rate of sent messages.
	NoReply bool   `json:"no_reply,omitempty"`
	Seed    uint64 `json:"seed"`
	// Connect is the time to establish a connection. FirstByte is the time from an established connection to the
	// server's first byte, including any wait before the first message. Both cover the whole run.
	Connect   Latency `json:"connect" merge:"sum"`
	FirstByte Latency `json:"first_byte" merge:"sum"`
	// Pipeline is the limit of messages in flight on each connection (Config.Pipeline).
	Pipeline int `json:"pipeline"`
	// Messages is the requested number of messages per connection. It is 0 if the run had a duration instead.
	Messages int64 `json:"messages,omitempty"`
	// MessageSize is the size of the longest message in bytes.
	MessageSize int `json:"message_size"`

	// Window is the duration of the measured window, which excludes connecting, warm-up and draining. Latency,
	// Service, Late and Generator cover only the window.
	Window time.Duration `json:"window" merge:"max"`
	// Variation shows how steady the receive rate was. It is the standard deviation of the rates in ten equal parts
	// of time, divided by their mean. The parts cover the last Config.Duration of the window. Variation is 0 with
	// fewer than two parts or without input.
	Variation float64 `json:"variation,omitempty" merge:"max"`
	Counts    `merge:"sum"`
	// Latency is the time to the last byte of an answer. In an open loop it is measured from the planned time of
	// the message, and Corrected is true. In a closed loop it is measured from the sending of the message; the time
	// for which a stalled server delays the next message is not included.
	Latency   Latency `json:"latency" merge:"sum"`
	Corrected bool    `json:"corrected,omitempty"`
	// Service is the time from sending a message to its answer. It is nil except in an open loop.
	Service *Latency `json:"service,omitempty" merge:"sum"`
	// Late is the delay that the generator itself caused: the time from the planned time of a message to its sending.
	// Messages that had to wait until an answer arrived are not included. Late is nil except in an open loop.
	Late   *Latency `json:"late,omitempty" merge:"sum"`
	Unsent int64    `json:"unsent,omitempty" merge:"sum" fault:"true" help:"Planned messages of an open loop that were never sent."`
	// Histogram is the full distribution of Latency in nanoseconds, in the compressed encoding (V2) of the
	// HdrHistogram libraries, as base64. Histograms of several generators can be merged.
	Histogram string `json:"histogram,omitempty"`
	// Histograms contains the distributions of Connect, FirstByte, Service and Late under their JSON keys, encoded
	// like Histogram. It is nil unless Config.Histograms was set.
	Histograms map[string]string `json:"histograms,omitempty"`
	// Generator contains the processor time that the generator used. The other fields of Usage are not set.
	Generator Usage `json:"generator" merge:"sum"`

	Mismatched int64 `json:"mismatched" merge:"sum" fault:"true" help:"Connections that were closed because of a wrong answer."`
	// FirstMismatch is the first wrong answer, nil if there was none.
	FirstMismatch *Mismatch `json:"first_mismatch,omitempty" merge:"first"`
	// BadStatus counts the HTTP responses with a status of 400 or more, by status, in the whole run. It is set only
	// if Config.Match is "http". Latencies include these responses.
	BadStatus map[string]int64 `json:"bad_status,omitempty" merge:"sum"`
	// Lost counts connections that ended before the generator closed them, by cause, in the whole run.
	Lost map[string]int64 `json:"lost,omitempty" merge:"sum"`
	// Verifications contains the outcome of each verification of held connections, in order.
	Verifications []Verification `json:"verifications,omitempty" merge:"sum"`
	// Broadcast is how far the server's broadcast had spread at the end of the hold, nil if none was expected.
	Broadcast *Broadcast `json:"broadcast,omitempty" merge:"sum"`
	// FirstUnexpected is the first unexpected line on a held connection, quoted as in Go and truncated to 32 bytes.
	FirstUnexpected string `json:"first_unexpected,omitempty" merge:"first"`
	// PubSub contains the settings of a publish/subscribe run; it is nil for other runs. In such a run, Sent counts
	// published messages, and Answered counts the messages that all subscribers received.
	PubSub      *PubSub `json:"pubsub,omitempty" merge:"sum"`
	Undelivered int64   `json:"undelivered,omitempty" merge:"sum" fault:"true" help:"Deliveries that were missing when the run ended."`
	Doubled     int64   `json:"doubled,omitempty" merge:"sum" fault:"true" help:"Deliveries that were repeated."`
	Reordered   int64   `json:"reordered,omitempty" merge:"sum" fault:"true" help:"Deliveries after a later message of the same publisher."`
	SlowEnded   int64   `json:"slow_ended,omitempty" merge:"sum" help:"Subscribers that did not read and that the server disconnected."`
	Bytes       Bytes   `json:"bytes" merge:"sum"`
	// Limits contains the limits that the generator itself reached, the most severe first. If there are any, the
	// figures describe the generator rather than the server.
	Limits []Limit `json:"limits,omitempty" merge:"append"`
	// Search is the outcome of the search for a rate. It is nil if the run did not search.
	Search *Found `json:"search,omitempty"`
	// Agents contains the generators of a run on several machines. It includes lost agents, although the other
	// fields of the Result do not cover them. Agents is nil for a run on one machine.
	Agents     []Agent `json:"agents,omitempty"`
	Unanswered int64   `json:"unanswered" merge:"sum" fault:"true" help:"Messages without an answer at the end of the run, including the drain time."`
}

// Bytes counts the bytes of messages and answers in a whole run.
type Bytes struct {
	Sent int64 `json:"sent" merge:"sum"`
	// Received counts bytes of answers, including incomplete answers.
	Received int64 `json:"received" merge:"sum"`
	// Answered, InFlight and CutOff add up to Sent. Answered counts the bytes of answered messages. InFlight counts
	// the bytes of messages that were unanswered at the end of the run. CutOff counts the bytes of messages whose
	// connection ended before the answer came.
	Answered int64 `json:"answered" merge:"sum"`
	InFlight int64 `json:"in_flight" merge:"sum"`
	CutOff   int64 `json:"cut_off" merge:"sum"`
}

// Limit describes a limit of the generator's process or machine that was reached during a run.
type Limit struct {
	// Wall names the limit: "cpu", "cpu pressure" (which any program on the machine can cause), "ports",
	// "descriptors", "memory", "late sends", or a limit of the kernel.
	Wall string `json:"wall"`
	// Evidence describes the symptom. Advice describes the remedy.
	Evidence string `json:"evidence"`
	Advice   string `json:"advice"`
}

// Agent describes one of the generators of a run on several machines.
type Agent struct {
	// Name is the agent's name. Host and CPUs are the name and the number of processors of its machine.
	Name string `json:"name"`
	Host string `json:"host,omitempty"`
	CPUs int    `json:"cpus,omitempty"`
	// Connections is the number of connections assigned to the agent.
	Connections int `json:"connections"`
	// Offset is how far the agent's clock is ahead of the coordinator's, with an error of at most Uncertainty. Behind
	// is the time from the beginning of the first agent's window to the beginning of this agent's window.
	Offset      time.Duration `json:"offset"`
	Uncertainty time.Duration `json:"uncertainty"`
	Behind      time.Duration `json:"behind"`
	// Connected, Rate, Latency and CPUUtilization are taken from the agent's own result. They are 0 for a lost agent.
	Connected      int     `json:"connected"`
	Rate           float64 `json:"rate"`
	Latency        Latency `json:"latency"`
	CPUUtilization float64 `json:"cpu_share,omitempty"`
	// Lost is the reason why the agent's result is missing, or "". Last is a lost agent's last known progress.
	Lost string    `json:"lost,omitempty"`
	Last *Snapshot `json:"last,omitempty"`
}

// Mismatch describes an answer that differed from the expected one.
type Mismatch struct {
	// Connection is the number of the connection in its run; for a held connection, it is the connection's slot on
	// its loop. Message is the number of the message on its connection. Byte is the index of the first wrong byte
	// in the answer. All three count from 0.
	Connection int64 `json:"connection"`
	Message    int64 `json:"message"`
	Byte       int   `json:"byte"`
	// Want and Got are the expected and the received bytes, beginning at the first difference. Each is truncated to 32
	// bytes and quoted as in Go. Want is a quoted empty string if no more bytes were expected or if the expected bytes
	// are unknown. Why describes the fault.
	Want string `json:"want"`
	Got  string `json:"got"`
	Why  string `json:"why,omitempty"`
}

func (m *Mismatch) String() string {
	if m.Why != "" && (m.Want == "" || m.Want == `""`) {
		return fmt.Sprintf("connection %d, message %d, byte %d: %s; got %s", m.Connection, m.Message, m.Byte, m.Why, m.Got)
	}
	return fmt.Sprintf("connection %d, message %d, byte %d: got %s, want %s", m.Connection, m.Message, m.Byte, m.Got, m.Want)
}

// Verification is the outcome of one verification of the held connections. In a verification, each connection sends a
// unique line and expects the same line in return.
type Verification struct {
	// Number counts the verifications of a run from 1. InFlight is the limit of lines in flight (Config.Check).
	Number   int `json:"number"`
	InFlight int `json:"in_flight" merge:"sum"`
	// Open is the number of open connections at the beginning. Asked is the number of connections that sent their
	// line. Asked is less than Open if connections ended before they could send, or if unanswered lines used up the
	// limit of lines in flight.
	//
	// Asked is the sum of Checked, Wrong, Lost and Unanswered. Checked connections received their line back. Wrong
	// connections received something else and were closed. Lost connections ended before an answer came. Unanswered
	// connections received nothing until the run stopped waiting, which it does when no answer has come for
	// Config.Drain.
	Open       int64 `json:"open" merge:"sum"`
	Asked      int64 `json:"asked" merge:"sum"`
	Checked    int64 `json:"checked" merge:"sum"`
	Wrong      int64 `json:"wrong" merge:"sum"`
	Lost       int64 `json:"lost" merge:"sum"`
	Unanswered int64 `json:"unanswered" merge:"sum"`
	// Time is the time from the beginning of the verification until the last line came back.
	Time time.Duration `json:"time" merge:"max"`
	// Latency is the time from sending a line to receiving it back, with a precision of 1 %.
	Latency Latency `json:"latency" merge:"sum"`
}

// Complete reports whether every open connection received its line back.
func (c *Verification) Complete() bool { return c.Checked == c.Open }

// CheckedPerSecond returns the number of lines that came back per second.
func (c *Verification) CheckedPerSecond() float64 {
	if c.Time <= 0 {
		return 0
	}
	return float64(c.Checked) / c.Time.Seconds()
}

// Broadcast describes how many of the held connections have received the server's broadcast line, and how long this
// took.
type Broadcast struct {
	// Open is the number of open connections. Heard is how many of them have received the line.
	Open  int64 `json:"open" merge:"sum"`
	Heard int64 `json:"heard" merge:"sum"`
	// Again counts repeated deliveries of the line to the same connection.
	Again int64 `json:"again" merge:"sum"`
	// Time is the time from the first connection's receipt of the line to the last connection's receipt. After is the
	// distribution of the times from the first receipt to each connection's, with a precision of 1 %.
	Time  time.Duration `json:"time" merge:"max"`
	After Latency       `json:"after" merge:"sum"`
}

func (b *Broadcast) Missing() int64 { return b.Open - b.Heard }

// Rate returns the number of answered messages per second in the window. If the run expected no answers, Rate returns
// the number of sent messages per second instead.
func (r *Result) Rate() (answeredOrSentPerSecond float64) {
	if r.Window <= 0 {
		return 0
	}
	return float64(r.answeredOrSentMessages()) / r.Window.Seconds()
}

// DeliveriesPerSecond returns the number of deliveries to subscribers per second in the window.
func (r *Result) DeliveriesPerSecond() float64 {
	if r.Window <= 0 {
		return 0
	}
	return float64(r.Delivered) / r.Window.Seconds()
}

func (r *Result) answeredOrSentMessages() int64 {
	if r.NoReply {
		return r.Sent
	}
	return r.Answered
}

// InFlight returns the average number of messages in flight. It uses Little's law: rate × mean latency. In a closed
// loop without idle connections, the result equals connections × pipeline. In an open loop, the result includes
// messages that were waiting to be sent.
func (r *Result) InFlight() float64 {
	return r.Rate() * r.Latency.Mean.Seconds()
}

const generatorBoundShare = 0.95

// GeneratorBound reports whether the generator was the bottleneck. This is the case if the generator used at least 95 %
// of its available processor time in the window.
//
// The result is always false for a window of less than 100 ms, because starting and stopping then take most of the
// time. It is also always false for a run with Config.Messages, because the load is not steady.
func (r *Result) GeneratorBound() bool {
	return r.Messages == 0 && r.hasMeaningfulCPUUsage() && r.GeneratorCPUUtilization() >= generatorBoundShare
}

func (r *Result) hasMeaningfulCPUUsage() bool {
	return r.Window >= minUsageWindow && r.Generator.CPU() > 0
}

// GeneratorCPUUtilization returns the share of the available processor time that the generator used in the window. The
// value 1 means all available time. The Go runtime's own threads can raise the share above 1.
func (r *Result) GeneratorCPUUtilization() float64 {
	if r.Window <= 0 || r.CPUs <= 0 {
		return 0
	}
	return r.Generator.CPU().Seconds() / (r.Window.Seconds() * float64(r.CPUs))
}

// Err returns the first problem of the run, or nil if there is no problem. It looks for problems in this order: no
// connection, lost agents, wrong answers, lost connections, bad statuses, incomplete exchanges, faulty deliveries,
// missing answers, faults of held connections. If at least one connection succeeded, failed connection attempts are not
// a problem; see ConnectErrors.
func (r *Result) Err() (firstProblem error) {
	switch {
	case r.Connected == 0 && len(r.ConnectErrors) > 0:
		return fmt.Errorf("load: no connection to %s succeeded: %s", r.Target, format.Tally(r.ConnectErrors))
	case r.Connected == 0:
		return fmt.Errorf("load: no connection to %s succeeded", r.Target)
	case r.firstLostAgent() != nil:
		lost := r.firstLostAgent()
		return fmt.Errorf("load: lost agent %s with %s of %s connections: %s", lost.Name, format.Count(lost.Connections), format.Count(r.Connections), lost.Lost)
	case r.FirstMismatch != nil:
		return fmt.Errorf("load: wrong answers on %d of %d connections; first: %v", r.Mismatched, r.Connected, r.FirstMismatch)
	case len(r.Lost) > 0:
		return fmt.Errorf("load: connections lost: %s", format.Tally(r.Lost))
	case len(r.BadStatus) > 0:
		return fmt.Errorf("load: error responses: %s", format.Tally(r.BadStatus))
	case r.Messages > 0 && r.Unanswered == 0 && r.Exchanged < int64(r.Connected):
		return fmt.Errorf("load: only %s of %s connections exchanged their %s messages", format.Count(r.Exchanged), format.Count(r.Connected), format.Count(r.Messages))
	case r.Undelivered+r.Doubled+r.Reordered > 0:
		return fmt.Errorf("load: deliveries: %s missing, %s duplicated, %s out of order",
			format.Count(r.Undelivered), format.Count(r.Doubled), format.Count(r.Reordered))
	case r.Unanswered > 0:
		return errors.New("load: messages without an answer: " + format.Count(r.Unanswered))
	}
	return r.heldConnDeliveryErr()
}

func (r *Result) firstLostAgent() *Agent {
	for i := range r.Agents {
		if r.Agents[i].Lost != "" {
			return &r.Agents[i]
		}
	}
	return nil
}

func (r *Result) heldConnDeliveryErr() error {
	for _, c := range r.Verifications {
		if !c.Complete() {
			return fmt.Errorf("load: verification %d: only %s of %s connections received their line back", c.Number, format.Count(c.Checked), format.Count(c.Open))
		}
	}
	switch b := r.Broadcast; {
	case b != nil && b.Missing() > 0:
		return fmt.Errorf("load: broadcast: %s of %s connections did not receive it", format.Count(b.Missing()), format.Count(b.Open))
	case b != nil && b.Again > 0:
		return fmt.Errorf("load: broadcast: received %s", format.Plural(b.Again, "duplicate", "duplicates"))
	case r.Unexpected > 0:
		return fmt.Errorf("load: %s unexpected lines; first: %s", format.Count(r.Unexpected), r.FirstUnexpected)
	}
	return nil
}

// Counter describes one counter of a run. Each field of Interval, Result or Counts with a "help" tag is a counter.
// Reports, metrics, expectations and merging use the list Counters.
type Counter struct {
	// Name is the counter's key in JSON, CSV and expectations.
	Name, Help string
	// Metric is the name in Prometheus without the prefix "myriad_load_", or "" if the counter is not exported.
	Metric string
	// Gauge reports whether an interval contains the counter's current value instead of its increase.
	Gauge bool
	// Fault reports whether a value above 0 is a failure.
	Fault bool

	window           bool  // a Result covers only the window
	interval, result []int // indexes of the fields; nil if missing
}

// Counters lists all counters in the order of the fields. The list must not be changed.
var Counters = countersFromTags()

func countersFromTags() (all []Counter) {
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

// Of returns the value of the counter in the interval i. ok is false if the counter exists only in a Result.
func (c *Counter) Of(i *Interval) (n int64, ok bool) { return counterFieldValue(i, c.interval) }

func (c *Counter) resultValue(r *Result) (n int64, ok bool) { return counterFieldValue(r, c.result) }

func counterFieldValue[T any](in *T, indexOrNil []int) (n int64, ok bool) {
	if indexOrNil == nil {
		return 0, false
	}
	return reflect.ValueOf(in).Elem().FieldByIndex(indexOrNil).Int(), true
}

func (i *Interval) setCounterDifferences(now, before *counts) {
	for _, c := range Counters {
		if at, ok := counterIndexes[c.Name]; ok && c.interval != nil {
			reflect.ValueOf(i).Elem().FieldByIndex(c.interval).SetInt(max(now[at]-before[at], 0))
		}
	}
}

func (r *Result) setRunAndWindowCounts(run, window *counts) {
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

func (r *Result) countAllFailures() (n int64) {
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
	return n + sumCountsByCause(r.ConnectErrors) + sumCountsByCause(r.Lost)
}

func sumCountsByCause(causes map[string]int64) (sum int64) {
	for _, n := range causes {
		sum += n
	}
	return sum
}

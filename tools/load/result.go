package load

import "time"

// This file is all that a run counts: a new counter is added here alone, and counted
// where it happens.

// Interval is what happened since the last one. Counts are of the interval, not
// of the run.
type Interval struct {
	// From and To are when it began and ended, since the run's start.
	From time.Duration `json:"from"`
	To   time.Duration `json:"to"`
	// Stage is what the run was doing at its end: "connect", "check",
	// "hold", "warm-up", "window", "drain" or "close".
	Stage string `json:"stage"`

	// Open is the number of established connections at its end. Opened,
	// Failed, Lost and Closed count connections: established, failed to be,
	// ended by the server or the network, and closed by the generator.
	Open   int64 `json:"open"`
	Opened int64 `json:"opened"`
	Failed int64 `json:"failed"`
	Lost   int64 `json:"lost"`
	Closed int64 `json:"closed"`
	// Reconnected and Resent are as in Result.
	Reconnected int64 `json:"reconnected,omitempty"`
	Resent      int64 `json:"resent,omitempty"`
	// Errors counts what went wrong, by cause: of attempts to connect, of
	// connections and of answers.
	Errors map[string]int64 `json:"errors,omitempty"`

	// Intended counts messages that were to be sent by the plan of an open
	// loop; Sent, Answered as in Result.
	Intended      int64 `json:"intended,omitempty"`
	Sent          int64 `json:"sent"`
	Answered      int64 `json:"answered"`
	BytesSent     int64 `json:"bytes_sent"`
	BytesReceived int64 `json:"bytes_received"`
	// CutOff counts messages in flight on connections that were closed because their
	// lifetime was over.
	CutOff int64 `json:"cut_off,omitempty"`
	// Exchanged counts connections that have got the answers to all their messages, where
	// each has a number of them.
	Exchanged int64 `json:"exchanged,omitempty"`
	// InFlight is how many messages had no answer yet at its end, Waiting how
	// many of the plan had not been sent.
	InFlight int64 `json:"in_flight"`
	Waiting  int64 `json:"waiting,omitempty"`
	// Heartbeats counts those of the server, Heard the connections that got the
	// broadcast, and Unexpected other lines, on connections that are held. The
	// lines of a verification count as messages that are sent and answered.
	Heartbeats int64 `json:"heartbeats,omitempty"`
	Heard      int64 `json:"heard,omitempty"`
	Unexpected int64 `json:"unexpected,omitempty"`
	// Delivered is as in Result.
	Delivered int64 `json:"delivered,omitempty"`
	// Latency is as in Result, of the answers of the interval, whether
	// they count for the window or not. Connect is the time to establish a
	// connection.
	Latency Latency `json:"latency"`
	Connect Latency `json:"connect"`
	// Histograms are Latency and Connect in full, as in Result; nil unless Config.Histograms
	// was set.
	Histograms map[string]string `json:"histograms,omitempty"`

	// Generator and Server are what the two processes used; Server is nil
	// where it isn't a process of this machine that may be looked at.
	Generator Usage  `json:"generator"`
	Server    *Usage `json:"server,omitempty"`
}

// Result is what one run of the load generator saw. It is plain data: every
// field can be written as JSON and read back. Durations are nanoseconds in
// JSON.
type Result struct {
	// Start is when the run began, by the clock of its machine, Took how long all of it
	// took. Interrupted says that it ended before its time, because its context did.
	Start       time.Time     `json:"start,omitzero"`
	Took        time.Duration `json:"took,omitempty"`
	Interrupted bool          `json:"interrupted,omitempty"`
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
	// NoReply says that no answers were awaited: none count, and Rate is of what
	// was sent.
	NoReply bool `json:"no_reply,omitempty"`
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
	// Reconnected counts how often a connection was replaced that its HTTP server had
	// closed in order; see Config.NoReconnect. Connected and Closed do not count that.
	// Resent counts the messages of the window that were sent again on the new
	// connection, as the server had closed behind an earlier answer.
	Reconnected int64 `json:"reconnected,omitempty"`
	Resent      int64 `json:"resent,omitempty"`

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
	// Variation is by how much the bytes received a second varied over the last
	// Config.Duration of the window: the standard deviation of ten parts of it, divided
	// by their mean. 0 where there were no two parts, or nothing was received.
	Variation float64 `json:"variation,omitempty"`
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
	// Histograms are Connect, FirstByte, Service and Late likewise, by their keys in JSON;
	// nil unless Config.Histograms was set.
	Histograms map[string]string `json:"histograms,omitempty"`
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
	// Verifications are those of held connections, in order.
	Verifications []Verification `json:"verifications,omitempty"`
	// Heartbeats counts those of the server that held connections got, in the
	// whole run.
	Heartbeats int64 `json:"heartbeats,omitempty"`
	// Broadcast is who had got the broadcast when the hold was over; nil where
	// none was expected.
	Broadcast *Broadcast `json:"broadcast,omitempty"`
	// Unexpected counts lines, in the whole run, that held connections did not
	// expect, a broadcast that came again not among them. FirstUnexpected is the
	// first, quoted as in Go, at most 32 bytes of it.
	Unexpected      int64  `json:"unexpected,omitempty"`
	FirstUnexpected string `json:"first_unexpected,omitempty"`
	// PubSub is what a publish/subscribe run was of, nil where it was none. Sent counts what
	// was published, Answered what all subscribers have got.
	PubSub *PubSub `json:"pubsub,omitempty"`
	// Delivered counts messages that subscribers have got, each for itself. Undelivered are
	// those that had not come when the run ended, Doubled those that came again, and
	// Reordered those that came behind a later one of their publisher; of the whole run.
	// SlowEnded counts subscribers that did not read, and that the server has ended.
	Delivered   int64 `json:"delivered,omitempty"`
	Undelivered int64 `json:"undelivered,omitempty"`
	Doubled     int64 `json:"doubled,omitempty"`
	Reordered   int64 `json:"reordered,omitempty"`
	SlowEnded   int64 `json:"slow_ended,omitempty"`
	// Bytes accounts for all bytes of messages of the whole run.
	Bytes Bytes `json:"bytes"`
	// Limits are the walls that the generator itself met, most severe first:
	// with one of them the figures say more about it than about the server.
	Limits []Limit `json:"limits,omitempty"`
	// Search is what a search has found, nil where the run was none.
	Search *Found `json:"search,omitempty"`
	// Agents are the generators of a run on several machines, of which this is the merged
	// result: without those that were lost. Nil for a run on one.
	Agents []Agent `json:"agents,omitempty"`
	// Unanswered counts messages still without an answer when the run
	// ended, after the generator had waited for them.
	Unanswered int64 `json:"unanswered"`
}

// The counters that connections add to, by their place in counts. A shard counts the
// whole run, and of nSent to nBytesReceived the window, too.
const (
	nSent = iota
	nAnswered
	nBytesSent
	nBytesReceived
	nBytesAnswered // of messages that were answered
	nOpened
	nClosed
	nExpired // of those that are closed: their lifetime was over
	// nDropped are messages that were in flight on a connection when it closed; they
	// will not be answered. nCutOff are those of them whose connection had expired.
	nDropped
	nBytesDropped
	nCutOff
	// nReconnected are sockets that replaced others of a connection, nResent messages
	// that were in flight on those and were sent again.
	nReconnected
	nResent
	// nFinished are connections that are through with their messages, nExchanged those
	// of them that got all their answers.
	nFinished
	nExchanged
	// nPlanned are messages of the window that connections' own plans have had, nEarly
	// those before it, nUnsent those of the window, of either plan, that went down with
	// a connection.
	nPlanned
	nEarly
	nUnsent
	nHeartbeats
	nHeard
	nHeardClosed // of those, closed since
	nHeardAgain
	nUnexpected
	nVerifyWrong
	nVerifyLost
	nDue // messages that have their time and are about to be sent
	// nDelivered and the next two are what subscribers have got. nSlowEnded are those of
	// them that did not read and are gone, nSlowBytes what they read in the end.
	nDelivered
	nDoubled
	nReordered
	nSlowEnded
	nSlowBytes
	// Those from here on are not counted by connections, but added by the run.
	nFailed
	nLost
	nIntended
	nCounts
)

// counts are counters of a run, or of a part of it.
type counts [nCounts]int64

func (c *counts) add(d *counts) {
	for i := range c {
		c[i] += d[i]
	}
}

// Counter is a figure that a run counts. Intervals, merging, CSV, Prometheus, text and
// pages go by Counters: a new one is a line there, and the fields that it names.
type Counter struct {
	// Name is as in CSV and expectations, Help what it counts.
	Name, Help string
	// Metric is its name for Prometheus, without "myriad_load_"; "" for none.
	Metric string
	// Gauge says that it is as at the end of an interval, and not what came in it.
	Gauge bool
	// Fault says that none is what a clean run has.
	Fault bool

	at       int  // in counts, -1 where it is worked out otherwise
	window   bool // a Result has that of the window, not of the run
	interval func(*Interval) *int64
	result   func(*Result) *int64
}

// Of is the figure of an interval; ok is false where intervals have none.
func (c *Counter) Of(i *Interval) (n int64, ok bool) {
	if c.interval == nil {
		return 0, false
	}
	return *c.interval(i), true
}

// Counters are all counters, in the order of reports. They are not to be changed.
var Counters = []Counter{
	{
		Name: "open", Metric: "connections", Help: "Connections that are established now.", Gauge: true, at: -1,
		interval: func(i *Interval) *int64 { return &i.Open },
	},
	{
		Name: "opened", Metric: "connections_opened_total", Help: "Connections that were established.", at: nOpened,
		interval: func(i *Interval) *int64 { return &i.Opened },
	},
	{
		Name: "failed", Metric: "connections_failed_total", Help: "Attempts to connect that failed.", at: nFailed,
		interval: func(i *Interval) *int64 { return &i.Failed },
	},
	{
		Name: "lost", Metric: "connections_lost_total", Help: "Connections that the server or the network ended.", at: nLost,
		interval: func(i *Interval) *int64 { return &i.Lost },
	},
	{
		Name: "closed", Metric: "connections_closed_total", Help: "Connections that the generator closed.", at: nExpired,
		interval: func(i *Interval) *int64 { return &i.Closed }, result: func(r *Result) *int64 { return &r.Closed },
	},
	{
		Name: "cut_off", Metric: "messages_cut_off_total", Help: "Messages in flight on connections that the generator closed.", at: nCutOff,
		interval: func(i *Interval) *int64 { return &i.CutOff }, result: func(r *Result) *int64 { return &r.CutOff },
	},
	{
		Name: "reconnected", Metric: "connections_reconnected_total", Help: "Connections that were replaced because the HTTP server had closed them in order.", at: nReconnected,
		interval: func(i *Interval) *int64 { return &i.Reconnected }, result: func(r *Result) *int64 { return &r.Reconnected },
	},
	{
		Name: "resent", Metric: "messages_resent_total", Help: "Messages that were sent again on a connection that replaced another.", at: nResent,
		interval: func(i *Interval) *int64 { return &i.Resent }, result: func(r *Result) *int64 { return &r.Resent }, window: true,
	},
	{
		Name: "intended", Metric: "messages_intended_total", Help: "Messages that were to be sent by the plan of an open loop.", at: nIntended,
		interval: func(i *Interval) *int64 { return &i.Intended }, result: func(r *Result) *int64 { return &r.Intended }, window: true,
	},
	{
		Name: "sent", Metric: "messages_sent_total", Help: "Messages that were handed to connections.", at: nSent,
		interval: func(i *Interval) *int64 { return &i.Sent }, result: func(r *Result) *int64 { return &r.Sent }, window: true,
	},
	{
		Name: "answered", Metric: "messages_answered_total", Help: "Messages whose whole answer has arrived, as expected.", at: nAnswered,
		interval: func(i *Interval) *int64 { return &i.Answered }, result: func(r *Result) *int64 { return &r.Answered }, window: true,
	},
	{
		Name: "bytes_sent", Metric: "sent_bytes_total", Help: "Bytes of messages sent.", at: nBytesSent,
		interval: func(i *Interval) *int64 { return &i.BytesSent }, result: func(r *Result) *int64 { return &r.BytesSent }, window: true,
	},
	{
		Name: "bytes_received", Metric: "received_bytes_total", Help: "Bytes received.", at: nBytesReceived,
		interval: func(i *Interval) *int64 { return &i.BytesReceived }, result: func(r *Result) *int64 { return &r.BytesReceived }, window: true,
	},
	{
		Name: "exchanged", Metric: "connections_exchanged_total", Help: "Connections that have got the answers to all their messages.", at: nExchanged,
		interval: func(i *Interval) *int64 { return &i.Exchanged }, result: func(r *Result) *int64 { return &r.Exchanged },
	},
	{
		Name: "in_flight", Metric: "messages_in_flight", Help: "Messages that have no answer yet.", Gauge: true, at: -1,
		interval: func(i *Interval) *int64 { return &i.InFlight },
	},
	{
		Name: "waiting", Metric: "messages_waiting", Help: "Messages of the plan of an open loop whose time has come and that have not been sent.", Gauge: true, at: -1,
		interval: func(i *Interval) *int64 { return &i.Waiting },
	},
	{
		Name: "mismatched", Help: "Connections with a wrong answer.", Fault: true, at: -1,
		result: func(r *Result) *int64 { return &r.Mismatched },
	},
	{
		Name: "unanswered", Help: "Messages without an answer when the run ended.", Fault: true, at: -1,
		result: func(r *Result) *int64 { return &r.Unanswered },
	},
	{
		Name: "unsent", Help: "Messages of the plan of an open loop that could not be sent.", Fault: true, at: -1,
		result: func(r *Result) *int64 { return &r.Unsent },
	},
	{
		Name: "delivered", Metric: "messages_delivered_total", Help: "Messages that subscribers have got, each for itself.", at: nDelivered,
		interval: func(i *Interval) *int64 { return &i.Delivered }, result: func(r *Result) *int64 { return &r.Delivered }, window: true,
	},
	{
		Name: "undelivered", Help: "Messages that a subscriber had not got when the run ended.", Fault: true, at: -1,
		result: func(r *Result) *int64 { return &r.Undelivered },
	},
	{
		Name: "doubled", Help: "Messages that a subscriber got again.", Fault: true, at: nDoubled,
		result: func(r *Result) *int64 { return &r.Doubled },
	},
	{
		Name: "reordered", Help: "Messages that a subscriber got behind a later one.", Fault: true, at: nReordered,
		result: func(r *Result) *int64 { return &r.Reordered },
	},
	{
		Name: "slow_ended", Help: "Subscribers that did not read, and that the server has ended.", at: nSlowEnded,
		result: func(r *Result) *int64 { return &r.SlowEnded },
	},
	{
		Name: "heartbeats", Metric: "heartbeats_total", Help: "Heartbeats of the server that connections which are held have got.", at: nHeartbeats,
		interval: func(i *Interval) *int64 { return &i.Heartbeats }, result: func(r *Result) *int64 { return &r.Heartbeats },
	},
	{
		Name: "heard", Metric: "broadcast_heard_total", Help: "Connections which are held that have got the broadcast.", at: nHeard,
		interval: func(i *Interval) *int64 { return &i.Heard },
	},
	{
		Name: "unexpected", Metric: "unexpected_lines_total", Help: "Lines that connections which are held did not expect, the broadcast for a second time too.", Fault: true, at: nUnexpected,
		interval: func(i *Interval) *int64 { return &i.Unexpected }, result: func(r *Result) *int64 { return &r.Unexpected },
	},
}

// setCounts sets what an interval counts to what has come since before.
func (i *Interval) setCounts(now, before *counts) {
	for k := range Counters {
		if c := &Counters[k]; c.interval != nil && c.at >= 0 {
			*c.interval(i) = max(now[c.at]-before[c.at], 0)
		}
	}
}

// setCounts sets what a result counts.
func (r *Result) setCounts(run, window *counts) {
	for k := range Counters {
		switch c := &Counters[k]; {
		case c.result == nil || c.at < 0:
		case c.window:
			*c.result(r) = window[c.at]
		default:
			*c.result(r) = run[c.at]
		}
	}
}

// addCounts adds what another interval counts, and with gauges what it has at its end.
func (i *Interval) addCounts(o *Interval, gauges bool) {
	for k := range Counters {
		if c := &Counters[k]; c.interval != nil && (gauges || !c.Gauge) {
			*c.interval(i) += *c.interval(o)
		}
	}
}

// addCounts adds what another generator counted.
func (r *Result) addCounts(o *Result) {
	for k := range Counters {
		if c := &Counters[k]; c.result != nil {
			*c.result(r) += *c.result(o)
		}
	}
}

// faults counts everything that went wrong in the run.
func (r *Result) faults() (n int64) {
	for k := range Counters {
		if c := &Counters[k]; c.Fault && c.result != nil {
			n += *c.result(r)
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

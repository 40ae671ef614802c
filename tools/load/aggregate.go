package load

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/myriad-go/myriad/tools/internal/pacer"
)

// aggregator is what has been taken from the shards so far. It belongs to Run's
// goroutine.
type aggregator struct {
	total *times // of the whole run
	now   *times // of the interval
	spare *times // to be left with a shard
	usage *usage // nil where nobody wants to know

	// At the end of the last interval:
	at     time.Duration
	counts counts
	causes causes
}

func newAggregator(held bool) *aggregator {
	return &aggregator{total: newTimes(held), now: newTimes(held), spare: newTimes(held)}
}

// collect takes what shards have recorded since the last time into now, and adds
// it to total.
func (g *aggregator) collect(shards []*shard) {
	g.now.reset()
	for _, s := range shards {
		taken := s.takeTimes(g.spare)
		g.now.add(taken)
		taken.reset()
		g.spare = taken
	}
	g.total.add(g.now)
}

func (r *run) interval() *Interval {
	g, t := r.aggregator, r.traffic
	g.collect(t.shards)
	s, now := r.sum(), t.now()
	s.run[nFailed], s.run[nLost] = t.faults.totals()
	causes := t.faults.all()
	latency := joined(&g.now.window, &g.now.outside)
	i := &Interval{
		From: g.at, To: now, Stage: r.stage, Open: s.open(), Errors: causes.since(g.causes),
		Latency: latencyOf(latency), Connect: latencyOf(&g.now.connect),
	}
	if r.cfg.Histograms {
		i.Histograms = encodeAll(map[string]*distribution{"latency": latency, "connect": &g.now.connect})
	}
	if !r.script().noReply || r.cfg.Check > 0 {
		i.InFlight = s.inFlight()
	}
	if t.open() {
		s.run[nIntended], i.Waiting = r.planned(s, now)
		s.run[nIntended] = max(s.run[nIntended], g.counts[nIntended]) // an estimate can go back
	}
	counted := s.run
	counted[nUnexpected] += counted[nHeardAgain]
	i.setCounts(&counted, &g.counts)
	if g.usage != nil {
		i.Generator, i.Server = g.usage.sample()
	}
	g.at, g.counts, g.causes = now, counted, causes
	return i
}

// planned is how many messages of an open loop's plan had come by a time since the
// run's start, and how many of them had not been sent. The latter is an estimate for a
// plan with random times.
func (r *run) planned(s sum, now time.Duration) (intended, waiting int64) {
	taken := pacer.Skipped{Before: s.run[nEarly], Within: s.run[nPlanned]}
	if r.traffic.mode == openLoop {
		taken = r.traffic.plan.Taken()
	}
	waiting = r.traffic.waiting(now) // later: what is taken in between comes in the next interval
	return r.skipped.Before + r.skipped.Within + taken.Before + taken.Within + waiting, waiting
}

// since is what has been counted since a time at which that was counted before.
func (c causes) since(before causes) map[string]int64 {
	var more map[string]int64
	for cause, n := range c {
		if n -= before[cause]; n > 0 {
			if more == nil {
				more = map[string]int64{}
			}
			more[cause] = n
		}
	}
	return more
}

func (r *run) plan() *Plan {
	host, _ := os.Hostname() // "" if it has no name
	p := &Plan{
		Start:       r.traffic.began,
		Targets:     r.targets(),
		Mode:        r.cfg.modeName(),
		Connections: r.cfg.total(),
		Sources:     len(r.dialer.plan),
		Pipeline:    r.cfg.Pipeline,
		NoReply:     r.cfg.noReply(),
		Duration:    r.cfg.Duration,
		Messages:    r.cfg.Messages,
		Check:       r.cfg.Check,
		Seed:        r.cfg.Seed,
		Model:       r.cfg.Model,
		Loops:       r.engine.Loops(),
		Host:        fmt.Sprintf("%s, %d CPUs, %s", cmp.Or(host, "unnamed"), runtime.NumCPU(), runtime.GOOS),
	}
	if r.aggregator.usage != nil {
		own, server := r.aggregator.usage.sample()
		p.Generator, p.Server = &own, server
	}
	if r.traffic.open() {
		rate := r.cfg.Rate
		p.Rate = &rate
	}
	return p
}

func (r *run) targets() (names []string) {
	for _, t := range r.dialer.targets {
		names = append(names, t.String())
	}
	return names
}

func (r *run) result(end sum) *Result {
	r.aggregator.collect(r.traffic.shards)
	total, t := r.aggregator.total, r.traffic
	cpus := min(runtime.NumCPU(), runtime.GOMAXPROCS(0))
	if loops := r.engine.Loops(); loops > 0 {
		cpus = min(cpus, loops)
	}
	result := &Result{
		Start:       t.began,
		Took:        t.now(),
		Target:      strings.Join(r.targets(), ", "),
		Model:       r.cfg.Model,
		TLS:         r.tls.describe(),
		CPUs:        cpus,
		Connections: r.cfg.total(),
		Connected:   int(end.run[nOpened]),
		ConnectTime: r.connected,
		Mode:        r.cfg.modeName(),
		NoReply:     t.script.noReply,
		Seed:        r.cfg.Seed,
		Connect:     latencyOf(&total.connect),
		FirstByte:   latencyOf(&total.firstByte),
		Pipeline:    r.cfg.Pipeline,
		Messages:    r.cfg.Messages,
		MessageSize: r.cfg.messageSize(),
		Window:      r.window,
		Variation:   r.parts.Variation(),
		Latency:     latencyOf(&total.window),
		Histogram:   encode(total.window.counts),
		UserCPU:     r.user,
		SystemCPU:   r.system,
		Bytes: Bytes{
			Sent:     end.run[nBytesSent],
			Received: end.run[nBytesReceived],
			Answered: end.run[nBytesAnswered],
			CutOff:   end.run[nBytesDropped],
		},
	}
	result.setCounts(&end.run, &end.window)
	if !t.script.noReply {
		result.Bytes.InFlight = result.Bytes.Sent - result.Bytes.Answered - result.Bytes.CutOff
		if !r.cfg.Unprompted {
			result.Unanswered = end.run[nSent] - end.run[nAnswered] - end.run[nCutOff] - end.run[nResent]
		}
	}
	if t.open() {
		r.openResult(result, end)
	}
	if t.pubsub != nil {
		result.PubSub, result.Undelivered = r.cfg.PubSub, t.pubsub.undelivered()
	}
	if t.mode == holding {
		r.heldResult(result)
	}
	if r.cfg.Histograms {
		result.Histograms = r.histograms()
	}
	t.faults.fill(result)
	result.Limits = r.limits(result)
	return result
}

// histograms are those of Result.Histograms.
func (r *run) histograms() map[string]string {
	total := r.aggregator.total
	return encodeAll(map[string]*distribution{
		"connect": &total.connect, "first_byte": &total.firstByte, "service": &total.service, "late": &total.late,
	})
}

// heldResult adds what only connections that are held have.
func (r *run) heldResult(result *Result) {
	result.Verifications, result.Broadcast = r.verifications, r.broadcast(r.last)
	for _, v := range r.verifications {
		result.Unanswered += v.Unanswered
	}
	if b := &result.Bytes; r.cfg.Check > 0 {
		b.InFlight = b.Sent - b.Answered - b.CutOff
	}
}

// openResult adds what only an open loop has.
func (r *run) openResult(result *Result, end sum) {
	t, total := r.traffic, r.aggregator.total
	rate := r.cfg.Rate // a search changes it
	result.Schedule, result.Corrected = &rate, true
	service, late := latencyOf(&total.service), latencyOf(&total.late)
	result.Service, result.Late = &service, &late
	result.Unsent = r.skipped.Within + end.run[nUnsent]
	result.Intended = t.plan.Taken().Within + r.skipped.Within
	if t.mode == openEach {
		result.Intended = end.run[nPlanned] + r.skipped.Within
	}
}

// times are distributions of times. A time is in one of window and outside, so
// that it is recorded once.
type times struct {
	window, outside    distribution // latencies that count, and that don't
	connect, firstByte distribution
	service, late      distribution // in an open loop, of the window
	heard              distribution // since the first that had the broadcast
}

func (t *times) all() []*distribution {
	return []*distribution{&t.window, &t.outside, &t.connect, &t.firstByte, &t.service, &t.late, &t.heard}
}

// newTimes makes empty distributions. With held connections all of them are coarse, as
// there can be very many loops.
func newTimes(held bool) *times {
	rough := distribution{coarse: true}
	return &times{connect: rough, firstByte: rough, heard: rough, outside: distribution{coarse: held}, window: distribution{coarse: held}}
}

func (t *times) add(u *times) {
	from := u.all()
	for i, d := range t.all() {
		d.add(from[i])
	}
}

func (t *times) reset() {
	for _, d := range t.all() {
		d.reset()
	}
}

// takeTimes takes what shards have recorded since it was last taken, and leaves
// them spare, which is empty. What it returns can be spare the next time.
func (s *shard) takeTimes(spare *times) *times {
	s.mu.Lock()
	defer s.mu.Unlock()
	spare, s.times = s.times, spare
	return spare
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

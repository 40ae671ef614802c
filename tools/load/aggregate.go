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
		Generator:   Usage{Process: r.used},
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

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

// aggregator merges the counts and times that all shards have recorded. Only Run's goroutine uses it.
type aggregator struct {
	total    *timeDistributions // times of the whole run
	interval *timeDistributions
	spare    *timeDistributions // empty distributions, swapped with those of a shard
	usage    *usageSampler      // nil without an observer

	// Values at the end of the last interval:
	lastTime   time.Duration
	lastCounts counts
	lastCauses causeCounts
}

func newAggregator(coarse bool) *aggregator {
	return &aggregator{total: newTimeDistributions(coarse), interval: newTimeDistributions(coarse), spare: newTimeDistributions(coarse)}
}

// collectShardTimes collects the times that the shards have recorded since the last call. It replaces the content of
// g.interval by these times, and adds them to g.total.
func (g *aggregator) collectShardTimes(shards []*shard) {
	g.interval.reset()
	for _, s := range shards {
		taken := s.swapTimes(g.spare)
		g.interval.mergeTimes(taken)
		taken.reset()
		g.spare = taken
	}
	g.total.mergeTimes(g.interval)
}

func (r *loadRun) buildIntervalSinceLast() *Interval {
	g, t := r.aggregator, r.generator
	g.collectShardTimes(t.shards)
	s, now := r.sumTotals(), t.now()
	s.run[nFailed], s.run[nLost] = t.faults.countFailedAndLostConns()
	causes := t.faults.causesWithKindPrefix()
	latency := sumDistributions(&g.interval.window, &g.interval.outside)
	i := &Interval{
		From: g.lastTime, To: now, Stage: r.stage, Open: s.openConns(), Errors: causes.increaseSince(g.lastCauses),
		Latency: summarizeDistribution(latency), Connect: summarizeDistribution(&g.interval.connect),
	}
	if r.cfg.Histograms {
		i.Histograms = encodeDistributions(map[string]*distribution{"latency": latency, "connect": &g.interval.connect})
	}
	if !r.script().awaitsNoAnswer || r.cfg.Check > 0 {
		i.InFlight = s.messagesInFlight()
	}
	if t.isOpenLoop() {
		s.run[nIntended], i.Waiting = r.estimatePlannedAndUntaken(s, now)
		s.run[nIntended] = max(s.run[nIntended], g.lastCounts[nIntended]) // an estimate can decrease
	}
	counted := s.run
	counted[nUnexpected] += counted[nHeardAgain]
	i.setCounterDifferences(&counted, &g.lastCounts)
	if g.usage != nil {
		i.Generator, i.Server = g.usage.sampleSinceLastCall()
	}
	g.lastTime, g.lastCounts, g.lastCauses = now, counted, causes
	return i
}

// estimatePlannedAndUntaken returns two numbers for an open loop. plannedSoFar is the number of messages whose planned
// time has come. untaken is how many of these messages no connection has taken yet. If the planned times are random,
// both numbers are estimates.
func (r *loadRun) estimatePlannedAndUntaken(s totals, now time.Duration) (plannedSoFar, untaken int64) {
	taken := pacer.CountsBeforeAndInWindow{Before: s.run[nEarly], Within: s.run[nPlanned]}
	if r.generator.mode == openLoop {
		taken = r.generator.sharedPlan.TakenCounts()
	}
	untaken = r.generator.estimateDueUntakenMessages(now) // read last: messages taken in between count in the next interval
	return r.skipped.Before + r.skipped.Within + taken.Before + taken.Within + untaken, untaken
}

func (c causeCounts) increaseSince(before causeCounts) map[string]int64 {
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

func (r *loadRun) buildPlanWithFirstUsageSample() *Plan {
	host, _ := os.Hostname() // "" on error
	p := &Plan{
		Start:       r.generator.startTime,
		Targets:     r.targetNames(),
		Mode:        r.cfg.trafficModeName(),
		Connections: r.cfg.totalConns(),
		Sources:     len(r.dialer.sources),
		Pipeline:    r.cfg.Pipeline,
		NoReply:     r.cfg.awaitsNoAnswers(),
		Duration:    r.cfg.Duration,
		Messages:    r.cfg.Messages,
		Check:       r.cfg.Check,
		Seed:        r.cfg.Seed,
		Model:       r.cfg.Model,
		Loops:       r.engine.Loops(),
		Host:        fmt.Sprintf("%s, %d CPUs, %s", cmp.Or(host, "unnamed"), runtime.NumCPU(), runtime.GOOS),
	}
	if r.aggregator.usage != nil {
		own, server := r.aggregator.usage.sampleSinceLastCall()
		p.Generator, p.Server = &own, server
	}
	if r.generator.isOpenLoop() {
		rate := r.cfg.Rate
		p.Rate = &rate
	}
	return p
}

func (r *loadRun) targetNames() (names []string) {
	for _, t := range r.dialer.targets {
		names = append(names, t.String())
	}
	return names
}

func (r *loadRun) buildResult(end totals) *Result {
	r.aggregator.collectShardTimes(r.generator.shards)
	total, t := r.aggregator.total, r.generator
	cpus := min(runtime.NumCPU(), runtime.GOMAXPROCS(0))
	if loops := r.engine.Loops(); loops > 0 {
		cpus = min(cpus, loops)
	}
	result := &Result{
		Start:       t.startTime,
		Took:        t.now(),
		Target:      strings.Join(r.targetNames(), ", "),
		Model:       r.cfg.Model,
		TLS:         r.tls.firstHandshakeVersionAndCipher(),
		CPUs:        cpus,
		Connections: r.cfg.totalConns(),
		Connected:   int(end.run[nOpened]),
		ConnectTime: r.connectTime,
		Mode:        r.cfg.trafficModeName(),
		NoReply:     t.script.awaitsNoAnswer,
		Seed:        r.cfg.Seed,
		Connect:     summarizeDistribution(&total.connect),
		FirstByte:   summarizeDistribution(&total.firstByte),
		Pipeline:    r.cfg.Pipeline,
		Messages:    r.cfg.Messages,
		MessageSize: r.cfg.maxMessageSize(),
		Window:      r.window,
		Variation:   r.windowParts.Variation(),
		Latency:     summarizeDistribution(&total.window),
		Histogram:   encodeHistogram(total.window.histogram),
		Generator:   Usage{Process: r.cpuUsed},
		Bytes: Bytes{
			Sent:     end.run[nBytesSent],
			Received: end.run[nBytesReceived],
			Answered: end.run[nBytesAnswered],
			CutOff:   end.run[nBytesDropped],
		},
	}
	result.setRunAndWindowCounts(&end.run, &end.window)
	if !t.script.awaitsNoAnswer {
		result.Bytes.InFlight = result.Bytes.Sent - result.Bytes.Answered - result.Bytes.CutOff
		if !r.cfg.Unprompted {
			result.Unanswered = end.run[nSent] - end.run[nAnswered] - end.run[nCutOff] - end.run[nResent]
		}
	}
	if t.isOpenLoop() {
		r.fillOpenLoopFields(result, end)
	}
	if t.pubsub != nil {
		result.PubSub, result.Undelivered = r.cfg.PubSub, t.pubsub.countMissingDeliveries()
	}
	if t.mode == holding {
		r.fillVerificationsAndBroadcast(result)
	}
	if r.cfg.Histograms {
		result.Histograms = r.encodeHistogramsExceptLatency()
	}
	t.faults.fillFaultFields(result)
	result.Limits = r.findReachedLimits(result)
	return result
}

func (r *loadRun) encodeHistogramsExceptLatency() map[string]string {
	total := r.aggregator.total
	return encodeDistributions(map[string]*distribution{
		"connect": &total.connect, "first_byte": &total.firstByte, "service": &total.service, "late": &total.late,
	})
}

func (r *loadRun) fillVerificationsAndBroadcast(result *Result) {
	result.Verifications, result.Broadcast = r.verifications, r.buildBroadcastResultOrNil(r.totalsBeforeClose)
	for _, v := range r.verifications {
		result.Unanswered += v.Unanswered
	}
	if b := &result.Bytes; r.cfg.Check > 0 {
		b.InFlight = b.Sent - b.Answered - b.CutOff
	}
}

func (r *loadRun) fillOpenLoopFields(result *Result, end totals) {
	t, total := r.generator, r.aggregator.total
	rate := r.cfg.Rate // copied, because a search changes it
	result.Schedule, result.Corrected = &rate, true
	service, late := summarizeDistribution(&total.service), summarizeDistribution(&total.late)
	result.Service, result.Late = &service, &late
	result.Unsent = r.skipped.Within + end.run[nUnsent]
	result.Intended = t.sharedPlan.TakenCounts().Within + r.skipped.Within
	if t.mode == openLoopPerConn {
		result.Intended = end.run[nPlanned] + r.skipped.Within
	}
}

type timeDistributions struct {
	window, outside    distribution // latencies in the window and outside it
	connect, firstByte distribution
	service, late      distribution // open loop, window only
	heard              distribution // times from the first receipt of a broadcast to each connection's receipt
}

func (t *timeDistributions) all() []*distribution {
	return []*distribution{&t.window, &t.outside, &t.connect, &t.firstByte, &t.service, &t.late, &t.heard}
}

// newTimeDistributions returns empty distributions of times. If coarseLatencies is set, latencies have a precision of
// two significant digits instead of three.
func newTimeDistributions(coarseLatencies bool) *timeDistributions {
	coarseDist := distribution{coarse: true}
	return &timeDistributions{connect: coarseDist, firstByte: coarseDist, heard: coarseDist, outside: distribution{coarse: coarseLatencies}, window: distribution{coarse: coarseLatencies}}
}

func (t *timeDistributions) mergeTimes(other *timeDistributions) {
	from := other.all()
	for i, d := range t.all() {
		d.merge(from[i])
	}
}

func (t *timeDistributions) reset() {
	for _, d := range t.all() {
		d.reset()
	}
}

// swapTimes returns the distributions that the shard has recorded. The shard continues with the empty distributions in
// spare.
func (s *shard) swapTimes(spare *timeDistributions) (recorded *timeDistributions) {
	s.mu.Lock()
	defer s.mu.Unlock()
	spare, s.times = s.times, spare
	return spare
}

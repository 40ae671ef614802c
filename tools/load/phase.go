package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/pacer"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

func (r *run) runPhases(ctx context.Context) error {
	if r.cfg.Early {
		return r.exchangeMessages(ctx)
	}
	if err := r.connectAll(ctx); err != nil {
		return err
	}
	r.emitEvent(Event{Phase: Connected})
	if s := r.sumTotals(); s.openConns() == 0 {
		return nil
	}
	for _, step := range []func(context.Context) error{
		r.waitForOtherGenerators,
		r.runVerification,
		func(ctx context.Context) error { return r.holdConns(ctx, r.cfg.HoldBefore) },
		r.exchangeMessages,
		r.runVerification,
		func(ctx context.Context) error { return r.holdConns(ctx, r.cfg.HoldAfter) },
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) waitForOtherGenerators(ctx context.Context) error {
	if r.cfg.Begin == nil {
		return nil
	}
	r.stage = "hold"
	return r.waitUntil(ctx, waitCondition{values: r.cfg.Begin, done: r.noConnsLeft})
}

// holdConns is a stage "hold" of its own, of duration d.
func (r *run) holdConns(ctx context.Context, d time.Duration) error {
	if d > 0 {
		r.stage = "hold"
	}
	return r.waitWhileOpen(ctx, d)
}

// startDialer starts the dialer. stop cancels it, waits for it, and ends the counting of
// connections.
func (r *run) startDialer(ctx context.Context) (stop func()) {
	dialing, cancel := context.WithCancel(ctx)
	var dialer sync.WaitGroup
	r.connectStart = r.generator.now()
	dialer.Go(func() {
		if err := r.dialer.startAllConns(dialing); err != nil && dialing.Err() == nil {
			r.generator.faults.recordConnectFailure(err)
		}
	})
	return func() {
		cancel()
		dialer.Wait()
		r.endConnectPhase("not established by the end of the run")
	}
}

// connectAll opens the connections and waits until every attempt has finished or the attempts
// stall.
func (r *run) connectAll(ctx context.Context) error {
	dialing, cancel := context.WithCancelCause(ctx)
	var dialer sync.WaitGroup
	r.connectStart = r.generator.now()
	dialer.Go(func() {
		if err := r.dialer.startAllConns(dialing); err != nil {
			cancel(fmt.Errorf("load: connecting: %w", err))
		}
	})
	err := r.waitUntil(dialing, waitCondition{
		stallTimeout: r.connectStallTimeout(),
		progress:     r.attemptsFinished,
		done:         func(s totals) bool { return r.attemptsFinished(s) == int64(r.cfg.totalConns()) },
	})
	cancel(nil)
	dialer.Wait()
	cause := ""
	if errors.Is(err, errStalled) {
		cause = fmt.Sprintf("not established within %v", r.cfg.ConnectTimeout)
	}
	r.endConnectPhase(cause)
	return ignoreStalled(err)
}

// connectStallTimeout returns the stall timeout of the connect phase, which a low connect rate
// extends.
func (r *run) connectStallTimeout() time.Duration {
	timeout := r.cfg.ConnectTimeout
	if r.cfg.ConnectRate > 0 {
		timeout = max(timeout, 2*time.Second/time.Duration(r.cfg.ConnectRate))
	}
	if more := r.cfg.Ramp.To - r.cfg.Ramp.From; more > 0 {
		timeout = max(timeout, 2*r.cfg.Ramp.Over/time.Duration(more))
	}
	return timeout
}

// endConnectPhase stops counting connections. If there is a cause, missing attempts count as
// failed.
func (r *run) endConnectPhase(cause string) {
	for _, s := range r.generator.shards {
		s.stopNewConns()
	}
	sum := r.sumTotals()
	r.generator.faults.stopCountingAndFailPending(int64(r.dialer.issued), sum.run[nOpened], cause)
	if sum.run[nOpened] > 0 {
		r.connectTime = sum.lastOpened - r.connectStart
	}
}

// ignoreStalled drops errStalled: what is missing is counted, and the run continues.
func ignoreStalled(err error) error {
	if errors.Is(err, errStalled) {
		return nil
	}
	return err
}

// waitWhileOpen waits for d, or until no connection is left.
func (r *run) waitWhileOpen(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	return r.waitUntil(ctx, waitCondition{timeout: d, done: r.noConnsLeft})
}

// exchangeMessages runs the traffic: warm-up, window and drain.
func (r *run) exchangeMessages(ctx context.Context) error {
	starting, cancel := context.WithCancel(ctx)
	stop := r.startTraffic(starting)
	r.stage = "warm-up"
	err := r.waitWhileOpen(ctx, time.Duration(r.generator.windowStart.Load())-r.generator.now())
	r.stage = "window"
	if err == nil {
		err = r.measureWindow(ctx)
	}
	r.generator.endMeasuringWindow()
	cancel()
	stop()
	r.stage = "drain"
	if !errors.Is(err, errStalled) && !r.cfg.Unprompted && (!r.cfg.awaitsNoAnswers() || r.generator.isOpenLoop()) {
		err = cmp.Or(err, r.drainAnswers(ctx))
	}
	r.abandonUnsent()
	if r.generator.pubsub != nil && r.cfg.Published != nil && ignoreStalled(err) == nil {
		err = r.generator.pubsub.awaitSharedDeliveries(ctx, r)
	}
	if r.generator.pubsub != nil && r.cfg.PubSub.Slow > 0 && ignoreStalled(err) == nil {
		err = r.generator.pubsub.drainSlowSubscribers(ctx, r)
	}
	return ignoreStalled(err)
}

// startTraffic starts the traffic, and in an early run the dialer. Once ctx has ended, stop waits
// for the helper that was started.
func (r *run) startTraffic(ctx context.Context) (stop func()) {
	t := r.generator
	if r.cfg.Early {
		r.scheduleWindow(0)
		t.trafficStarted.Store(true)
		return r.startDialer(ctx)
	}
	lead := time.Duration(0)
	if t.isOpenLoop() {
		lead = planLead + time.Duration(t.table.allocatedCount()-t.nudgedConns)*planLeadPerConn
	}
	r.scheduleWindow(lead)
	t.trafficStarted.Store(true)
	var starter sync.WaitGroup
	starter.Go(func() { t.nudgeAllConns(ctx) })
	return starter.Wait
}

// The plan of an open loop starts this long before its first message is due: longer than the pacing
// sleeps, and than it takes to start the plans of connections.
const (
	planLead        = 2 * paceInterval
	planLeadPerConn = 2 * time.Microsecond // for each connection
)

// scheduleWindow sets the window and starts the plan of an open loop, lead from now.
func (r *run) scheduleWindow(lead time.Duration) {
	t := r.generator
	begin := max(t.now()+lead, 1)
	from := begin + r.cfg.Warmup
	until := from + r.cfg.Duration
	switch {
	case r.cfg.Messages > 0:
		until = pacer.Never
	case r.cfg.Steady:
		until = from + maxWindowFactor*r.cfg.Duration
	}
	r.windowParts = rateSampler{interval: r.cfg.Duration / steadyParts, lastSample: from}
	t.planDeadline.Store(int64(pacer.Never))
	rate := r.cfg.Rate
	t.curve = pacer.Curve{
		Begin: begin, PerSecond: rate.PerSecond, Poisson: rate.Poisson,
		To: rate.To, Hold: r.cfg.Warmup, Over: r.cfg.Duration,
	}
	t.setMeasuringWindow(from, until)
	t.trafficStart.Store(int64(begin)) // last: it publishes the other fields
	if t.mode == openLoop {
		t.sharedPlan.Start(t.curve, deriveSeed(r.cfg.Seed, seedPlan+uint64(r.cfg.NumberFrom)<<8), from, until)
	}
}

func (r *run) abandonUnsent() {
	r.generator.planDeadline.Store(math.MinInt64)
	if r.generator.isOpenLoop() {
		r.skipped = r.generator.skipUnsentPlans()
	}
}

func (r *run) measureWindow(ctx context.Context) error {
	before := sample.OwnCPU()
	stalled := readCPUStallTime()
	r.emitEvent(Event{Phase: Measuring})
	err := r.waitUntil(ctx, r.windowWaitCondition())
	from, until := r.generator.endMeasuringWindow()
	r.cpuUsed = sample.OwnCPU()
	r.cpuUsed.User -= before.User
	r.cpuUsed.System -= before.System
	r.cpuStallTime = readCPUStallTime() - stalled
	r.window = until - from
	s := r.sumTotals()
	if r.cfg.Messages > 0 && s.lastAnswer > from {
		r.window = s.lastAnswer - from
	}
	if r.cfg.Messages > 0 && s.run[nExchanged] == s.run[nOpened] {
		r.emitEvent(Event{Phase: Exchanged})
	}
	r.emitEvent(Event{Phase: Measured})
	return err
}

func (r *run) windowWaitCondition() waitCondition {
	if r.cfg.Messages == 0 {
		return waitCondition{timeout: max(r.generator.windowLeft(), 1), done: r.isWindowDone, stop: r.cfg.Enough} // it can be over already
	}
	return waitCondition{
		done:         func(s totals) bool { return s.run[nFinished] == s.run[nOpened] },
		stallTimeout: r.cfg.Drain + r.cfg.Think,
		progress:     func(s totals) int64 { return s.run[nAnswered] + s.run[nClosed] },
	}
}

// isWindowDone reports whether the window is over or steady. It also samples the receive rate.
func (r *run) isWindowDone(current totals) bool {
	if r.windowParts.sampleRate(r.generator.now(), current.window[nBytesReceived]) && r.cfg.Enough != nil {
		r.emitEvent(Event{Phase: Part, Received: r.windowParts.lastRate()})
	}
	return r.noConnsLeft(current) || r.cfg.Steady && r.cfg.Enough == nil && r.windowParts.Steady()
}

// noConnsLeft reports whether no connection is open and none will come.
func (r *run) noConnsLeft(s totals) bool {
	return s.openConns() == 0 && r.cfg.Lifetime == 0 && r.attemptsFinished(s) >= int64(r.cfg.totalConns())
}

// drainAnswers waits for missing answers, and in an open loop for overdue messages. Once ctx has
// ended, it waits at most canceledDrain.
func (r *run) drainAnswers(ctx context.Context) error {
	w := waitCondition{
		done: func(totals) bool {
			behind := r.generator.isOpenLoop() && r.generator.hasOverdue() // before the totals: messages taken in between are due in them
			s := r.sumTotals()
			return s.openConns() == 0 || !behind && s.run[nDue] == 0 && (s.messagesInFlight() == 0 || r.cfg.awaitsNoAnswers())
		},
		stallTimeout: r.cfg.Drain,
		progress:     func(s totals) int64 { return s.run[nAnswered] + s.run[nDelivered] + s.run[nSent] },
	}
	if r.generator.isOpenLoop() {
		w.timeout = r.cfg.Drain // limits the wait even if a slow server keeps making progress
	}
	err := r.waitUntil(ctx, w)
	if err == nil || errors.Is(err, errStalled) {
		return nil
	}
	w.timeout = min(r.cfg.Drain, canceledDrain)
	_ = r.waitUntil(context.WithoutCancel(ctx), w)
	return err
}

// nudgeRetryInterval is how long the starter waits when a mailbox is full.
const nudgeRetryInterval = time.Millisecond

// nudgeAllConns nudges every connection once, so that its owner sends the first messages. It runs
// when no more connections are added, and ends early with ctx; the next call, in the next step of a
// search, continues from there.
func (g *generator) nudgeAllConns(ctx context.Context) {
	if g.mode == holding || g.cfg.Unprompted {
		return
	}
	tick := time.NewTicker(nudgeRetryInterval)
	defer tick.Stop()
	for ; g.nudgedConns < g.table.allocatedCount(); g.nudgedConns++ {
		if !nudgeWithRetry(ctx, g.table.conns[g.nudgedConns].ref, tick) {
			return
		}
	}
}

// nudgeWithRetry nudges a connection, and repeats that while its mailbox is full. It returns false
// if ctx ends first.
func nudgeWithRetry(ctx context.Context, ref engine.Ref, retryTick *time.Ticker) bool {
	for errors.Is(ref.Nudge(), engine.ErrFull) {
		select {
		case <-ctx.Done():
			return false
		case <-retryTick.C:
		}
	}
	return ctx.Err() == nil
}

const (
	// SteadyVariation is the largest Result.Variation of a steady window.
	SteadyVariation = 0.25
	// The variation is that of steadyParts parts, each a tenth of Duration. A window lasts at most
	// maxWindowFactor times Duration to become steady.
	steadyParts     = 10
	maxWindowFactor = 3
)

// rateSampler samples the receive rate at equal intervals of the window.
type rateSampler struct {
	interval   time.Duration
	lastSample time.Duration // the end of the last interval, or the beginning of the window
	lastBytes  int64         // received by then
	Steadiness
}

// sampleRate adds the rate of an interval if one has passed, and reports whether it has. received
// is the total of the window.
func (p *rateSampler) sampleRate(now time.Duration, received int64) bool {
	if now-p.lastSample < p.interval {
		return false
	}
	p.Add(float64(received-p.lastBytes) / float64(now-p.lastSample) * float64(time.Second))
	p.lastSample, p.lastBytes = now, received
	return true
}

// Steadiness judges whether a rate is steady, from its value in each tenth of a Duration. It is not
// safe for concurrent use. The zero Steadiness is ready.
type Steadiness struct {
	rates [steadyParts]float64
	n     int
}

// Add adds the rate of the next tenth: of one generator, or of several together.
func (s *Steadiness) Add(rate float64) {
	s.rates[s.n%steadyParts] = rate
	s.n++
}

func (s *Steadiness) lastRate() float64 { return s.rates[(s.n+steadyParts-1)%steadyParts] }

// Steady reports whether a whole Duration has passed, with a variation of at most SteadyVariation.
func (s *Steadiness) Steady() bool {
	return s.n >= steadyParts && s.Variation() <= SteadyVariation
}

// Variation returns the standard deviation of the last ten rates divided by their mean, 0 if there
// are fewer than two or all are 0.
func (s *Steadiness) Variation() float64 {
	rates := s.rates[:min(s.n, steadyParts)]
	sum, squares := 0.0, 0.0
	for _, r := range rates {
		sum += r
	}
	mean := sum / float64(len(rates))
	if len(rates) < 2 || mean == 0 {
		return 0
	}
	for _, r := range rates {
		squares += (r - mean) * (r - mean)
	}
	return math.Sqrt(squares/float64(len(rates)-1)) / mean
}

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

func (r *loadRun) runAllPhases(ctx context.Context) error {
	if r.cfg.Early {
		return r.runWarmupWindowAndDrain(ctx)
	}
	if err := r.runConnectPhase(ctx); err != nil {
		return err
	}
	r.emitEventWithSnapshot(Event{Phase: Connected})
	if s := r.sumTotals(); s.openConns() == 0 {
		return nil
	}
	for _, step := range []func(context.Context) error{
		r.waitForBeginIfCoordinated,
		r.verifyHeldConnsRecordingFaults,
		func(ctx context.Context) error { return r.holdDurationOrAllClosed(ctx, r.cfg.HoldBefore) },
		r.runWarmupWindowAndDrain,
		r.verifyHeldConnsRecordingFaults,
		func(ctx context.Context) error { return r.holdDurationOrAllClosed(ctx, r.cfg.HoldAfter) },
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *loadRun) waitForBeginIfCoordinated(ctx context.Context) error {
	if r.cfg.Begin == nil {
		return nil
	}
	r.stage = "hold"
	return r.waitEmittingProgress(ctx, waitCondition{values: r.cfg.Begin, done: r.allConnsClosedForGood})
}

func (r *loadRun) holdDurationOrAllClosed(ctx context.Context, d time.Duration) error {
	if d > 0 {
		r.stage = "hold"
	}
	return r.waitDurationOrAllClosed(ctx, d)
}

func (r *loadRun) startDialingInBackground(ctx context.Context) (stopAndEndConnectPhase func()) {
	dialing, cancel := context.WithCancel(ctx)
	var dialer sync.WaitGroup
	r.connectStart = r.generator.now()
	dialer.Go(func() {
		if err := r.dialer.dialAndReplaceClosed(dialing); err != nil && dialing.Err() == nil {
			r.generator.faults.recordConnectFailureUnlessEnded(err)
		}
	})
	return func() {
		cancel()
		dialer.Wait()
		r.endConnectPhase("not established by the end of the run")
	}
}

// runConnectPhase opens the connections. It returns nil when all attempts have succeeded or failed. It also returns nil
// if no attempt has finished for the time connectStallTimeout. Attempts that are still in progress then count as
// failed. If ctx ends or attempts cannot be started, it returns an error.
func (r *loadRun) runConnectPhase(ctx context.Context) (errUnlessStalled error) {
	dialing, cancel := context.WithCancelCause(ctx)
	var dialer sync.WaitGroup
	r.connectStart = r.generator.now()
	dialer.Go(func() {
		if err := r.dialer.dialAndReplaceClosed(dialing); err != nil {
			cancel(fmt.Errorf("load: connecting: %w", err))
		}
	})
	err := r.waitEmittingProgress(dialing, waitCondition{
		stallTimeout: r.connectStallTimeout(),
		progress:     r.countFinishedAttempts,
		done:         func(s totals) bool { return r.countFinishedAttempts(s) == int64(r.cfg.totalConns()) },
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

// connectStallTimeout returns the longest time for which the connect phase waits without a finished attempt. It is
// Config.ConnectTimeout. If the connect rate or the ramp is so slow that attempts start at longer intervals, it is
// twice the interval.
func (r *loadRun) connectStallTimeout() time.Duration {
	timeout := r.cfg.ConnectTimeout
	if r.cfg.ConnectRate > 0 {
		timeout = max(timeout, 2*time.Second/time.Duration(r.cfg.ConnectRate))
	}
	if more := r.cfg.Ramp.To - r.cfg.Ramp.From; more > 0 {
		timeout = max(timeout, 2*r.cfg.Ramp.Over/time.Duration(more))
	}
	return timeout
}

// endConnectPhase makes the shards refuse new connections, and sets r.connectTime. If pendingCauseOrEmpty is not empty,
// pending attempts count as failed with this cause.
func (r *loadRun) endConnectPhase(pendingCauseOrEmpty string) {
	for _, s := range r.generator.shards {
		s.refuseNewConns()
	}
	sum := r.sumTotals()
	r.generator.faults.stopCountingConnectsAndFailPending(int64(r.dialer.issued), sum.run[nOpened], pendingCauseOrEmpty)
	if sum.run[nOpened] > 0 {
		r.connectTime = sum.lastOpened - r.connectStart
	}
}

func ignoreStalled(err error) error {
	if errors.Is(err, errStalled) {
		return nil
	}
	return err
}

func (r *loadRun) waitDurationOrAllClosed(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	return r.waitEmittingProgress(ctx, waitCondition{timeout: d, done: r.allConnsClosedForGood})
}

func (r *loadRun) runWarmupWindowAndDrain(ctx context.Context) (errUnlessStalled error) {
	starting, cancel := context.WithCancel(ctx)
	stop := r.startTrafficOrEarlyDialing(starting)
	r.stage = "warm-up"
	err := r.waitDurationOrAllClosed(ctx, time.Duration(r.generator.windowStart.Load())-r.generator.now())
	r.stage = "window"
	if err == nil {
		err = r.measureUntilWindowEnds(ctx)
	}
	r.generator.endMeasuringWindowAndPlan()
	cancel()
	stop()
	r.stage = "drain"
	if !errors.Is(err, errStalled) && !r.cfg.Unprompted && (!r.cfg.awaitsNoAnswers() || r.generator.isOpenLoop()) {
		err = cmp.Or(err, r.awaitUnsentAndUnanswered(ctx))
	}
	r.stopPlanAndSkipUnsent()
	if r.generator.pubsub != nil && r.cfg.Published != nil && ignoreStalled(err) == nil {
		err = r.generator.pubsub.exchangeCountsAndAwaitDeliveries(ctx, r)
	}
	if r.generator.pubsub != nil && r.cfg.PubSub.Slow > 0 && ignoreStalled(err) == nil {
		err = r.generator.pubsub.resumeAndDrainSlowSubscribers(ctx, r)
	}
	return ignoreStalled(err)
}

// startTrafficOrEarlyDialing sets the times of the warm-up and the window. It then starts a goroutine that makes the
// connections begin to send. With Config.Early, the goroutine opens the connections instead. To end the goroutine, the
// caller must cancel ctx and then call stopDialingOrWait.
func (r *loadRun) startTrafficOrEarlyDialing(ctx context.Context) (stopDialingOrWait func()) {
	t := r.generator
	if r.cfg.Early {
		r.scheduleWarmupWindowAndPlan(0)
		t.trafficStarted.Store(true)
		return r.startDialingInBackground(ctx)
	}
	lead := time.Duration(0)
	if t.isOpenLoop() {
		lead = planLead + time.Duration(t.table.allocatedCount()-t.nudgedConns)*planLeadPerConn
	}
	r.scheduleWarmupWindowAndPlan(lead)
	t.trafficStarted.Store(true)
	var starter sync.WaitGroup
	starter.Go(func() { t.nudgeConnsToStartSending(ctx) })
	return starter.Wait
}

// Parts of the delay before the first planned message of an open loop. The delay is planLead, plus planLeadPerConn for
// each connection.
const (
	planLead        = 2 * paceInterval
	planLeadPerConn = 2 * time.Microsecond
)

// scheduleWarmupWindowAndPlan sets the times of the warm-up and the window, and starts the shared plan of an open loop.
// The warm-up begins after warmupDelay.
func (r *loadRun) scheduleWarmupWindowAndPlan(warmupDelay time.Duration) {
	t := r.generator
	begin := max(t.now()+warmupDelay, 1)
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
	t.curve = pacer.RateCurve{
		Begin: begin, PerSecond: rate.PerSecond, Poisson: rate.Poisson,
		To: rate.To, Hold: r.cfg.Warmup, Over: r.cfg.Duration,
	}
	t.setMeasuringWindow(from, until)
	t.trafficStart.Store(int64(begin)) // stored last, because it publishes the other fields
	if t.mode == openLoop {
		t.sharedPlan.Start(t.curve, deriveSeed(r.cfg.Seed, seedPlan+uint64(r.cfg.NumberFrom)<<8), from, until)
	}
}

func (r *loadRun) stopPlanAndSkipUnsent() {
	r.generator.planDeadline.Store(math.MinInt64)
	if r.generator.isOpenLoop() {
		r.skipped = r.generator.skipAndCountUntakenMessages()
	}
}

func (r *loadRun) measureUntilWindowEnds(ctx context.Context) error {
	before := sample.OwnCPUTime()
	stalled := readCPUStallTime()
	r.emitEventWithSnapshot(Event{Phase: Measuring})
	err := r.waitEmittingProgress(ctx, r.windowOrAllExchangedCondition())
	from, until := r.generator.endMeasuringWindowAndPlan()
	r.cpuUsed = sample.OwnCPUTime()
	r.cpuUsed.User -= before.User
	r.cpuUsed.System -= before.System
	r.cpuStallTime = readCPUStallTime() - stalled
	r.window = until - from
	s := r.sumTotals()
	if r.cfg.Messages > 0 && s.lastAnswer > from {
		r.window = s.lastAnswer - from
	}
	if r.cfg.Messages > 0 && s.run[nExchanged] == s.run[nOpened] {
		r.emitEventWithSnapshot(Event{Phase: Exchanged})
	}
	r.emitEventWithSnapshot(Event{Phase: Measured})
	return err
}

func (r *loadRun) windowOrAllExchangedCondition() waitCondition {
	if r.cfg.Messages == 0 {
		// At least 1, because a timeout of 0 would be no limit.
		return waitCondition{timeout: max(r.generator.windowLeft(), 1), done: r.sampleRateAndCheckWindowDone, stop: r.cfg.Enough}
	}
	return waitCondition{
		done:         func(s totals) bool { return s.run[nFinished] == s.run[nOpened] },
		stallTimeout: r.cfg.Drain + r.cfg.Think,
		progress:     func(s totals) int64 { return s.run[nAnswered] + s.run[nClosed] },
	}
}

// sampleRateAndCheckWindowDone reports whether the window must end. This is the case when the rate is steady or when
// all connections are closed. After each tenth of Config.Duration, sampleRateAndCheckWindowDone also records the rate
// of received bytes. If Config.Enough is set, it then emits the event Part.
func (r *loadRun) sampleRateAndCheckWindowDone(current totals) (steadyOrAllClosed bool) {
	if r.windowParts.addRateIfIntervalPassed(r.generator.now(), current.window[nBytesReceived]) && r.cfg.Enough != nil {
		r.emitEventWithSnapshot(Event{Phase: Part, Received: r.windowParts.lastRate()})
	}
	return r.allConnsClosedForGood(current) || r.cfg.Steady && r.cfg.Enough == nil && r.windowParts.Steady()
}

func (r *loadRun) allConnsClosedForGood(s totals) bool {
	return s.openConns() == 0 && r.cfg.Lifetime == 0 && r.countFinishedAttempts(s) >= int64(r.cfg.totalConns())
}

// awaitUnsentAndUnanswered waits until all overdue messages are sent and all missing answers have arrived. Config.Drain
// limits the wait. If ctx ends, the wait continues for at most canceledDrain, and the result is the cause of ctx.
func (r *loadRun) awaitUnsentAndUnanswered(ctx context.Context) (ctxErr error) {
	w := waitCondition{
		done: func(totals) bool {
			// Read the plan before the totals, so that a message taken in between is not missed: the totals include it.
			behind := r.generator.isOpenLoop() && r.generator.hasUntakenMessagePlannedInWindow()
			s := r.sumTotals()
			return s.openConns() == 0 || !behind && s.run[nDue] == 0 && (s.messagesInFlight() == 0 || r.cfg.awaitsNoAnswers())
		},
		stallTimeout: r.cfg.Drain,
		progress:     func(s totals) int64 { return s.run[nAnswered] + s.run[nDelivered] + s.run[nSent] },
	}
	if r.generator.isOpenLoop() {
		w.timeout = r.cfg.Drain // limits the wait even if a slow server makes progress
	}
	err := r.waitEmittingProgress(ctx, w)
	if err == nil || errors.Is(err, errStalled) {
		return nil
	}
	w.timeout = min(r.cfg.Drain, canceledDrain)
	_ = r.waitEmittingProgress(context.WithoutCancel(ctx), w)
	return err
}

const nudgeRetryInterval = time.Millisecond

// nudgeConnsToStartSending makes all connections start to send. It must be called after the connect phase. If ctx ends
// before all connections have been reached, the next call continues with the remaining ones.
func (g *generator) nudgeConnsToStartSending(ctx context.Context) {
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

// nudgeWithRetry repeats ref.Nudge at each tick while the mailbox is full. It reports false if ctx has ended.
func nudgeWithRetry(ctx context.Context, ref engine.Ref, retryTick *time.Ticker) (completed bool) {
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
	// steadyParts is the number of parts of the window from whose rates Result.Variation is computed.
	steadyParts     = 10
	maxWindowFactor = 3
)

type rateSampler struct {
	interval   time.Duration
	lastSample time.Duration // end of the last interval; at first, the beginning of the window
	lastBytes  int64         // bytes received until lastSample
	Steadiness
}

// addRateIfIntervalPassed adds a sample of the receive rate if p.interval has passed since the last one.
// bytesSinceWindowStart counts bytes since the window began.
func (p *rateSampler) addRateIfIntervalPassed(now time.Duration, bytesSinceWindowStart int64) (added bool) {
	if now-p.lastSample < p.interval {
		return false
	}
	p.Add(float64(bytesSinceWindowStart-p.lastBytes) / float64(now-p.lastSample) * float64(time.Second))
	p.lastSample, p.lastBytes = now, bytesSinceWindowStart
	return true
}

// Steadiness decides whether a rate is steady. The caller measures the rate during each tenth of Config.Duration and
// passes it to Add. A Steadiness is not safe for concurrent use. The zero Steadiness is ready for use.
type Steadiness struct {
	rates [steadyParts]float64
	n     int
}

// Add adds the rate of the next tenth of Config.Duration. With several generators, rate is the sum of their rates.
func (s *Steadiness) Add(rate float64) {
	s.rates[s.n%steadyParts] = rate
	s.n++
}

func (s *Steadiness) lastRate() float64 { return s.rates[(s.n+steadyParts-1)%steadyParts] }

// Steady reports whether at least ten rates have been added and Variation is at most SteadyVariation.
func (s *Steadiness) Steady() bool {
	return s.n >= steadyParts && s.Variation() <= SteadyVariation
}

// Variation returns the standard deviation of the last ten rates, divided by the mean of these rates. It returns 0 if
// there are fewer than two rates or if all rates are 0.
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

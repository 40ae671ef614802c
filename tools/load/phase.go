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

// phases takes the run from the first connection to the last hold.
func (r *run) phases(ctx context.Context) error {
	if r.cfg.Early {
		return r.exchange(ctx)
	}
	if err := r.connect(ctx); err != nil {
		return err
	}
	r.tell(Event{Phase: Connected})
	if s := r.sum(); s.open() == 0 {
		return nil
	}
	for _, step := range []func(context.Context) error{
		r.together,
		r.verify,
		func(ctx context.Context) error { return r.idle(ctx, r.cfg.HoldBefore) },
		r.exchange,
		r.verify,
		func(ctx context.Context) error { return r.idle(ctx, r.cfg.HoldAfter) },
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// together waits for other generators.
func (r *run) together(ctx context.Context) error {
	if r.cfg.Begin == nil {
		return nil
	}
	r.stage = "hold"
	return r.await(ctx, wait{until: r.cfg.Begin, done: r.over})
}

// idle is a hold that is a stage of its own.
func (r *run) idle(ctx context.Context, d time.Duration) error {
	if d > 0 {
		r.stage = "hold"
	}
	return r.hold(ctx, d)
}

// dial starts the dialer. What it returns ends the dialer, waits for it, and ends
// the counting of connections.
func (r *run) dial(ctx context.Context) (stop func()) {
	dialing, cancel := context.WithCancel(ctx)
	var dialer sync.WaitGroup
	r.begun = r.traffic.now()
	dialer.Go(func() {
		if err := r.dialer.run(dialing); err != nil && dialing.Err() == nil {
			r.traffic.faults.refused(err)
		}
	})
	return func() {
		cancel()
		dialer.Wait()
		r.settle("not established by the end of the run")
	}
}

// connect opens the connections, as many as there will be.
func (r *run) connect(ctx context.Context) error {
	dialing, cancel := context.WithCancelCause(ctx)
	var dialer sync.WaitGroup
	r.begun = r.traffic.now()
	dialer.Go(func() {
		if err := r.dialer.run(dialing); err != nil {
			cancel(fmt.Errorf("load: connecting: %w", err))
		}
	})
	err := r.await(dialing, wait{
		stall: r.connectStall(),
		moved: r.settled,
		done:  func(s sum) bool { return r.settled(s) == int64(r.cfg.total()) },
	})
	cancel(nil)
	dialer.Wait()
	cause := ""
	if errors.Is(err, errStalled) {
		cause = fmt.Sprintf("not established within %v", r.cfg.ConnectTimeout)
	}
	r.settle(cause)
	return unlessStalled(err)
}

// connectStall is the bound of the connect phase; a slow rate alone does not
// pass it.
func (r *run) connectStall() time.Duration {
	bound := r.cfg.ConnectTimeout
	if r.cfg.ConnectRate > 0 {
		bound = max(bound, 2*time.Second/time.Duration(r.cfg.ConnectRate))
	}
	if more := r.cfg.Ramp.To - r.cfg.Ramp.From; more > 0 {
		bound = max(bound, 2*r.cfg.Ramp.Over/time.Duration(more))
	}
	return bound
}

// settle ends the counting of connections. Attempts that are missing have failed,
// if there is a cause.
func (r *run) settle(cause string) {
	for _, s := range r.traffic.shards {
		s.shutConns()
	}
	sum := r.sum()
	r.traffic.faults.settle(int64(r.dialer.issued), sum.run[nOpened], cause)
	if sum.run[nOpened] > 0 {
		r.connected = sum.lastOpened - r.begun
	}
}

// unlessStalled drops errStalled: what is missing is counted, and the run goes
// on with what there is.
func unlessStalled(err error) error {
	if errors.Is(err, errStalled) {
		return nil
	}
	return err
}

// hold leaves the connections alone for a while, or until none is left.
func (r *run) hold(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	return r.await(ctx, wait{most: d, done: r.over})
}

// exchange has the connections exchange messages.
func (r *run) exchange(ctx context.Context) error {
	starting, cancel := context.WithCancel(ctx)
	stop := r.start(starting)
	r.stage = "warm-up"
	err := r.hold(ctx, time.Duration(r.traffic.from.Load())-r.traffic.now())
	r.stage = "window"
	if err == nil {
		err = r.measure(ctx)
	}
	r.traffic.endWindow()
	cancel()
	stop()
	r.stage = "drain"
	if !errors.Is(err, errStalled) && !r.cfg.Unprompted && (!r.cfg.noReply() || r.traffic.open()) {
		err = cmp.Or(err, r.drain(ctx))
	}
	r.skipUnsent()
	if r.traffic.pubsub != nil && r.cfg.Published != nil && unlessStalled(err) == nil {
		err = r.traffic.pubsub.settle(ctx, r)
	}
	if r.traffic.pubsub != nil && r.cfg.PubSub.Slow > 0 && unlessStalled(err) == nil {
		err = r.traffic.pubsub.wake(ctx, r)
	}
	return unlessStalled(err)
}

// start begins the traffic, and where it is early the connecting. What it returns
// waits, once ctx has ended, for the helper that does it.
func (r *run) start(ctx context.Context) (stop func()) {
	t := r.traffic
	if r.cfg.Early {
		r.schedule(0)
		t.going.Store(true)
		return r.dial(ctx)
	}
	lead := time.Duration(0)
	if t.open() { // connections are ready when the first message is due
		lead = startAhead + time.Duration(t.table.used()-t.nudged)*planTime
	}
	r.schedule(lead)
	t.going.Store(true)
	var starter sync.WaitGroup
	starter.Go(func() { t.startTraffic(ctx) })
	return starter.Wait
}

// How long an open loop's plan is known before its first message is due: longer than
// the pacing rests, and than it takes to begin the plans of connections.
const (
	startAhead = 2 * paceEvery
	planTime   = 2 * time.Microsecond // for each connection
)

// schedule sets the window, and begins the plan of an open loop, in a while.
func (r *run) schedule(lead time.Duration) {
	t := r.traffic
	begin := max(t.now()+lead, 1)
	from := begin + r.cfg.Warmup
	until := from + r.cfg.Duration
	switch {
	case r.cfg.Messages > 0:
		until = pacer.Never
	case r.cfg.Steady:
		until = from + steadyTimes*r.cfg.Duration
	}
	r.parts = parts{each: r.cfg.Duration / steadyParts, at: from}
	t.draining.Store(int64(pacer.Never))
	rate := r.cfg.Rate
	t.curve = pacer.Curve{
		Begin: begin, PerSecond: rate.PerSecond, Poisson: rate.Poisson,
		To: rate.To, Hold: r.cfg.Warmup, Over: r.cfg.Duration,
	}
	t.window(from, until)
	t.begin.Store(int64(begin)) // last: who knows it knows the others
	if t.mode == openLoop {
		t.plan.Start(t.curve, seedOf(r.cfg.Seed, seedPlan+uint64(r.cfg.NumberFrom)<<8), from, until)
	}
}

// skipUnsent gives up what an open loop has not sent.
func (r *run) skipUnsent() {
	r.traffic.draining.Store(math.MinInt64)
	if r.traffic.open() {
		r.skipped = r.traffic.skipAll()
	}
}

func (r *run) measure(ctx context.Context) error {
	before := sample.OwnCPU()
	stalled := readPressure()
	r.tell(Event{Phase: Measuring})
	err := r.await(ctx, r.windowWait())
	from, until := r.traffic.endWindow()
	r.used = sample.OwnCPU()
	r.used.User -= before.User
	r.used.System -= before.System
	r.stalled = readPressure() - stalled
	r.window = until - from
	s := r.sum()
	if r.cfg.Messages > 0 && s.lastAnswer > from {
		r.window = s.lastAnswer - from
	}
	if r.cfg.Messages > 0 && s.run[nExchanged] == s.run[nOpened] {
		r.tell(Event{Phase: Exchanged})
	}
	r.tell(Event{Phase: Measured})
	return err
}

func (r *run) windowWait() wait {
	if r.cfg.Messages == 0 {
		return wait{most: max(r.traffic.left(), 1), done: r.measured, enough: r.cfg.Enough} // it can be over already
	}
	return wait{
		done:  func(s sum) bool { return s.run[nFinished] == s.run[nOpened] },
		stall: r.cfg.Drain + r.cfg.Think,
		moved: func(s sum) int64 { return s.run[nAnswered] + s.run[nClosed] },
	}
}

// measured says that a window is over, or steady. It looks at the parts of the window.
func (r *run) measured(s sum) bool {
	if r.parts.add(r.traffic.now(), s.window[nBytesReceived]) && r.cfg.Enough != nil {
		r.tell(Event{Phase: Part, Received: r.parts.last()})
	}
	return r.over(s) || r.cfg.Steady && r.cfg.Enough == nil && r.parts.Steady()
}

// over says that no connection is left, and that none will come.
func (r *run) over(s sum) bool {
	return s.open() == 0 && r.cfg.Lifetime == 0 && r.settled(s) >= int64(r.cfg.total())
}

// drain waits for the answers that are missing, and in an open loop for what was
// to be sent before: not for long once ctx has ended.
func (r *run) drain(ctx context.Context) error {
	w := wait{
		done: func(sum) bool {
			behind := r.traffic.open() && r.traffic.behind() // before the sum: what is taken in between is due in it
			s := r.sum()
			return s.open() == 0 || !behind && s.run[nDue] == 0 && (s.inFlight() == 0 || r.cfg.noReply())
		},
		stall: r.cfg.Drain,
		moved: func(s sum) int64 { return s.run[nAnswered] + s.run[nDelivered] + s.run[nSent] },
	}
	if r.traffic.open() {
		w.most = r.cfg.Drain // or as long as a server is behind
	}
	err := r.await(ctx, w)
	if err == nil || errors.Is(err, errStalled) {
		return nil
	}
	w.most = min(r.cfg.Drain, cancelDrain)
	_ = r.await(context.WithoutCancel(ctx), w)
	return err
}

// startEvery is how long the starter waits when a mailbox is full.
const startEvery = time.Millisecond

// startTraffic nudges every connection once, so that its owner sends the first
// messages. It runs when connections are no longer given, and ends early with ctx; the next
// call, of a search's next step, goes on from there.
func (t *traffic) startTraffic(ctx context.Context) {
	if t.mode == holding || t.cfg.Unprompted {
		return
	}
	tick := time.NewTicker(startEvery)
	defer tick.Stop()
	for ; t.nudged < t.table.used(); t.nudged++ {
		if !nudge(ctx, t.table.conns[t.nudged].ref, tick) {
			return
		}
	}
}

// nudge has a connection nudged as soon as there is room for that, false if ctx ends before.
func nudge(ctx context.Context, ref engine.Ref, tick *time.Ticker) bool {
	for errors.Is(ref.Nudge(), engine.ErrFull) {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return ctx.Err() == nil
}

const (
	// SteadyVariation is the largest Result.Variation of a window that is steady.
	SteadyVariation = 0.25
	// steadyParts is of how many parts the variation is, each a tenth of Duration, and
	// steadyTimes how many times Duration a window lasts at most that is to be steady.
	steadyParts = 10
	steadyTimes = 3
)

// parts are the last parts of a window: at what rate bytes were received in each.
type parts struct {
	each  time.Duration
	at    time.Duration // the end of the last part, or the beginning of the window
	bytes int64         // received by then
	Steadiness
}

// add takes how many bytes of the window had been received at a time, and says whether that
// is the end of a part.
func (p *parts) add(now time.Duration, bytes int64) bool {
	if now-p.at < p.each {
		return false
	}
	p.Add(float64(bytes-p.bytes) / float64(now-p.at) * float64(time.Second))
	p.at, p.bytes = now, bytes
	return true
}

// Steadiness looks whether a rate is steady, by that of each tenth of a Duration. It is not safe
// for concurrent use. The zero Steadiness is ready.
type Steadiness struct {
	rates [steadyParts]float64
	n     int
}

// Add takes the rate of the next tenth: of one generator, or of several together.
func (s *Steadiness) Add(rate float64) {
	s.rates[s.n%steadyParts] = rate
	s.n++
}

// last is what was added last.
func (s *Steadiness) last() float64 { return s.rates[(s.n+steadyParts-1)%steadyParts] }

// Steady says that Duration has passed, and the rate varied by SteadyVariation at most since.
func (s *Steadiness) Steady() bool {
	return s.n >= steadyParts && s.Variation() <= SteadyVariation
}

// Variation is the standard deviation of the last ten rates, divided by their mean; 0 if there
// are fewer than two, or all are 0.
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

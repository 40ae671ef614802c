package load

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/tools/internal/pacer"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

const (
	// pollEvery is how often Run's goroutine looks how far a phase is.
	pollEvery = 10 * time.Millisecond
	// closeTimeout bounds closing in order, for all connections together.
	closeTimeout = 5 * time.Second
	// cancelDrain is the longest that a run whose context has ended waits
	// for the last answers.
	cancelDrain = time.Second
	// maxMail bounds the nudges that wait for a loop, at twice that: all
	// that a loop takes at once have an output buffer at the same time.
	// With the starter's wait it is half a million a second.
	maxMail = 256
	// wakes is how much more mail there is room for where connections are
	// encrypted: each handshake wakes its loop a few times. One that finds no
	// room is looked at all the same, a moment later.
	wakes = 4 * halfOpen
)

// errStalled says that nothing has moved for as long as a wait allows.
var errStalled = errors.New("load: nothing has moved")

// Run puts load on a server and says what it saw.
//
// The Result is nil if the configuration is wrong, if the target can't be
// resolved, if the process may not open that many descriptors, or if the I/O model
// can't run here. After that there is always a Result; it holds what went wrong with connections and
// answers, and Result.Err sums that up.
//
// When ctx ends, the run ends early: it sends no more, waits at most a second
// for the last answers, closes, and returns the Result so far with ctx's cause.
//
// With Rate.Goal the run is a search for a rate.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if cfg.Rate.Goal.Under != 0 {
		return runSearch(ctx, cfg)
	}
	r, err := prepare(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return r.run(ctx, r.phases)
}

// prepare makes a run and starts its engine, which dials nobody yet; run stops it.
func prepare(ctx context.Context, cfg Config) (*run, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	asked := cfg.Model != "" && cfg.Model != models.Auto
	cfg = cfg.filled()
	targets, err := resolveAll(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	model, err := models.Find(cfg.Model)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	r, err := newRun(cfg, targets)
	if err != nil {
		return nil, err
	}
	started, used, _, err := models.StartWithFallback(model, asked, r.engineConfig())
	if err != nil {
		return nil, fmt.Errorf("load: I/O model %s: %w", cfg.Model, err)
	}
	r.use(started, used.Name)
	return r, nil
}

// run is one run of the load generator, on Run's goroutine.
type run struct {
	cfg        Config
	engine     engine.Engine
	traffic    *traffic
	tls        *encryption // nil for none
	dialer     dialer
	aggregator *aggregator
	report     *time.Ticker // when to tell of the progress
	stage      string       // as in Interval

	complete bool // an early run has sent Connected

	begun     time.Duration // connecting, since the run's start
	connected time.Duration // how long that took
	window    time.Duration
	parts     parts
	stalled   time.Duration    // in it, see readPressure
	kernel    map[string]int64 // what the kernel counted in all of the run, see sample.Machine
	used      sample.Process   // processor time in the window
	skipped   pacer.Skipped    // messages of an open loop that were given up

	verifications []Verification
	allHeard      bool // Heard has been sent
	last          sum  // before the connections were closed
}

// newRun makes a run with all its memory, for the engine that use gives it.
func newRun(cfg Config, targets []target) (*run, error) {
	r := &run{cfg: cfg, stage: "connect", aggregator: newAggregator(cfg.Hold)}
	loops, _, err := cfg.shards()
	if err != nil {
		return nil, err
	}
	if m, _ := models.Find(cfg.Model); !m.HasLoops { // checked before
		loops = 0
	}
	if r.traffic, err = newTraffic(&r.cfg, loops); err != nil {
		return nil, err
	}
	encrypted, err := cfg.clientTLS()
	if err != nil {
		return nil, err
	}
	if encrypted != nil {
		r.tls = newEncryption(encrypted, cfg.ConnectTimeout, r.traffic.DialFailed)
	}
	r.dialer = dialer{
		targets:     targets,
		plan:        planSources(targets[0].addr.Addr(), cfg.total(), cfg.Sources, len(targets)*sourceRoom()),
		rate:        cfg.ConnectRate,
		ramp:        cfg.Ramp,
		connections: cfg.total(),
		churn:       cfg.Lifetime > 0,
		loops:       max(loops, 1),
		gone:        func() int64 { return r.sum().run[nClosed] },
		failed:      r.traffic.faults.failures,
		settled:     func() int64 { return r.settled(r.sum()) },
	}
	return r, nil
}

// use gives a run its engine.
func (r *run) use(e engine.Engine, model string) {
	r.engine, r.dialer.engine, r.cfg.Model = e, e, model
	if r.cfg.reconnects() {
		r.traffic.reconnector = &reconnector{engine: e, targets: r.dialer.targets, sources: r.dialer.plan, timeout: r.cfg.ConnectTimeout}
		if r.tls != nil {
			r.traffic.reconnector.layer = r.tls.first
		}
	}
}

func (r *run) script() *script { return r.traffic.script }

// settled counts attempts to connect that have succeeded or failed.
func (r *run) settled(s sum) int64 { return s.run[nOpened] + r.traffic.faults.failures() }

// engineConfig leaves room for all that can be in flight on a connection, so
// that reading never pauses for output.
func (r *run) engineConfig() engine.Config {
	most := 2*sealed(r.cfg.Pipeline, r.cfg.messageSize()) + engine.ReadSize
	if r.cfg.Match != "" {
		most += ruleBytes
	}
	if r.cfg.WebSocket != nil {
		most += r.cfg.Pipeline*frameBytes + upgradeBytes
	}
	if r.cfg.Flood {
		most += sealed(1, (floodTurn+2)*r.cfg.floodAhead())
	}
	if r.cfg.PubSub != nil {
		most += (r.cfg.Pipeline+1)*publishBytes + MaxLine
	}
	loops, shard, _ := r.cfg.shards() // checked before
	cfg := engine.Config{
		Network: "tcp",
		Handler: r.traffic,
		Limits: engine.Limits{
			MaxConns:     r.cfg.maxOpen(),
			MaxMessage:   most,
			MaxUnsent:    most,
			MaxMail:      maxMail,
			MaxMailBytes: maxMail, // nudges have no bytes
			CloseTimeout: closeTimeout,
			Linger:       time.Second,
		},
		Loops:            loops,
		MaxConnsPerShard: shard,
		ResetDialled:     !r.cfg.Graceful,
		Socket:           engine.Socket{SendBuffer: r.cfg.Socket.SendBuffer, ReceiveBuffer: r.cfg.Socket.ReceiveBuffer, Delay: r.cfg.Socket.Delay},
		Log:              slog.New(slog.DiscardHandler),
	}
	switch {
	case r.cfg.Check > 0:
		cfg.Scheduler = r.traffic.paceVerify
	case r.traffic.paced():
		cfg.Scheduler = r.traffic.pace
	}
	if r.cfg.Flood {
		cfg.Limits.HighWater, cfg.Limits.LowWater = r.cfg.floodAhead(), r.cfg.floodAhead()/2
		cfg.Drained, cfg.IgnoreHighWater = r.traffic.Drained, true
	}
	if r.cfg.reconnects() { // one that is closing may still have its place
		cfg.Limits.MaxConns += halfOpen
	}
	if r.tls != nil {
		cfg.NewLayer = r.tls.first
		cfg.Limits.HandshakeTimeout = r.cfg.ConnectTimeout
		cfg.Limits.MaxMail += wakes
	}
	if r.cfg.PubSub != nil {
		cfg.Limits.MaxMail += r.cfg.PubSub.Publishers // each has one nudge on its way at most
	}
	return cfg
}

// run goes through the phases and closes, whatever happens in them.
func (r *run) run(ctx context.Context, phases func(context.Context) error) (*Result, error) {
	r.report = time.NewTicker(r.cfg.ProgressEvery)
	defer r.report.Stop()
	if r.cfg.Observe != nil {
		r.aggregator.usage = newUsage(r.targets())
	}
	before, _ := sample.Take(sample.Network) // what can't be read is 0
	r.tell(Event{Phase: Began, Plan: r.plan()})
	err := phases(ctx)
	r.last = r.sum()
	r.tellBroadcast(r.last)
	now, _ := sample.Take(sample.Network)
	r.kernel = now.Since(&before).Machine.Counters
	r.stage = "close"
	r.close()
	if r.cfg.Observe != nil { // the rest, so that the intervals add up
		r.tell(Event{Phase: Progress, Interval: r.interval()})
	}
	result := r.result(r.sum()) // nothing changes any more
	result.Interrupted = err != nil && ctx.Err() != nil
	r.tell(Event{Phase: Done, Result: result})
	return result, err
}

// wait is how a phase waits: until done says so, at most for a time, at most
// for as long as something moves. A zero bound is none.
type wait struct {
	most   time.Duration
	done   func(sum) bool
	stall  time.Duration
	moved  func(sum) int64
	enough <-chan struct{} // closed, it is done; nil for none
	until  <-chan float64  // something comes, or it is closed: it is done; nil for none
	came   *float64        // what has come; nil if nobody wants to know
}

// await returns nil when the wait is done or its time is over, errStalled when
// it stalled, and ctx's cause when ctx ended. It tells of the progress.
func (r *run) await(ctx context.Context, w wait) error {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	var over <-chan time.Time
	if w.most > 0 {
		over = time.After(w.most)
	}
	moved, since := int64(-1), time.Now()
	for s := r.sum(); !w.done(s); s = r.sum() {
		if r.cfg.Early && !r.complete && r.settled(s) >= int64(r.cfg.Connections) {
			r.complete = true
			r.tell(Event{Phase: Connected})
		}
		r.tellBroadcast(s)
		if w.stall > 0 {
			if now := w.moved(s); now != moved {
				moved, since = now, time.Now()
			} else if time.Since(since) >= w.stall {
				return errStalled
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-over:
			return nil
		case came := <-w.until:
			if w.came != nil {
				*w.came = came
			}
			return nil
		case <-w.enough:
			return nil
		case <-r.report.C:
			r.tell(Event{Phase: Progress, Interval: r.interval()})
		case <-poll.C:
			if reconnects := r.traffic.reconnector; reconnects != nil {
				reconnects.poll(r.traffic.now())
			}
		}
	}
	return nil
}

func (r *run) sum() sum { return sumOf(r.traffic.shards) }

// tell completes an event and hands it to the observer.
func (r *run) tell(e Event) {
	if r.cfg.Observe == nil {
		return
	}
	s := r.sum()
	e.Snapshot = Snapshot{
		Open:     s.open(),
		Failed:   r.traffic.faults.failures(),
		Sent:     s.run[nSent],
		Answered: s.run[nAnswered],
	}
	r.cfg.Observe(e)
}

// publishBytes is more than a protocol of publish/subscribe adds to a message.
const publishBytes = 128

// frameBytes is what a WebSocket adds to a message, upgradeBytes what its upgrade
// takes at most.
// ruleBytes is what an answer that a rule delimits leaves unused at most,
// such as the header of an HTTP response.
const (
	frameBytes   = 14
	upgradeBytes = 32 << 10
	ruleBytes    = 128 << 10
)

// close closes all connections and waits until they and the engine are gone.
func (r *run) close() {
	r.traffic.closing.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if !r.cfg.Graceful {
		cancel() // stop at once
	}
	// The error says only that ctx has ended first.
	_ = r.engine.Stop(ctx)
	if r.traffic.reconnector != nil {
		r.traffic.reconnector.stop()
	}
	if r.tls != nil {
		r.tls.wait()
	}
}

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
	pollInterval = 10 * time.Millisecond
	// closeTimeout limits the graceful close of all connections together.
	closeTimeout = 5 * time.Second
	// canceledDrain limits the wait for the last answers after the run's context has ended.
	canceledDrain = time.Second
	// maxPendingNudges is the mailbox limit for requests (engine.Limits.MaxMail). The mailbox doubles the limit for
	// requests without a message, such as nudges.
	maxPendingNudges = 256
	tlsHandshakeMail = 4 * maxHalfOpen
)

// errStalled means that a wait ended because nothing changed for its stallTimeout; see waitCondition.
var errStalled = errors.New("load: no progress")

// Run puts load on a server and returns the measurements. If cfg.Rate.Goal is set, Run searches for a rate.
//
// Run returns no Result if the run cannot start. Possible reasons are a wrong configuration, a target that cannot be
// resolved, a limit of descriptors that is too low, and an I/O model that this system does not support. Failures of
// connections and answers are part of the Result; Result.Err summarizes them.
//
// When ctx ends, the run ends early. It stops sending, waits at most one second for the last answers and closes the
// connections. Run then returns the Result measured until that time, with ctx's cause as the error.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if cfg.Rate.Goal.Under != 0 {
		return searchOrTryReceivedRates(ctx, cfg)
	}
	r, err := validateAndStartEngine(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return r.runPhasesStopAndBuildResult(ctx, r.runAllPhases)
}

// validateAndStartEngine validates cfg and starts the engine. The caller must call runPhasesStopAndBuildResult, which
// stops the engine.
func validateAndStartEngine(ctx context.Context, cfg Config) (*loadRun, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	explicitModel := cfg.Model != "" && cfg.Model != models.Auto
	cfg = cfg.withDefaultsAndImplied()
	targets, err := resolveTargetsAndCheckSources(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	model, err := models.FindAvailable(cfg.Model)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	r, err := newRunWithoutEngine(cfg, targets)
	if err != nil {
		return nil, err
	}
	started, used, _, err := models.StartWithFallback(model, explicitModel, r.engineConfig())
	if err != nil {
		return nil, fmt.Errorf("load: I/O model %s: %w", cfg.Model, err)
	}
	r.attachEngine(started, used.Name)
	return r, nil
}

// loadRun is the state of one run. Only the goroutine of Run uses it.
type loadRun struct {
	cfg            Config
	engine         engine.Engine
	generator      *generator
	tls            *tlsClient // nil without TLS
	dialer         dialer
	aggregator     *aggregator
	progressTicker *time.Ticker
	stage          string // values as in Interval.Stage

	connectedSent bool // an early run has emitted Connected

	connectStart   time.Duration // since the run's start
	connectTime    time.Duration // time from connectStart to the last established connection
	window         time.Duration
	windowParts    rateSampler
	cpuStallTime   time.Duration                 // increase in the window, see readCPUStallTime
	kernelCounters map[string]int64              // counts of the whole run, see sample.Machine
	cpuUsed        sample.Process                // use in the window
	skipped        pacer.CountsBeforeAndInWindow // messages that an open loop gave up

	verifications     []Verification
	heardSent         bool // Heard has been emitted
	totalsBeforeClose totals
}

// newRunWithoutEngine returns a run that has no engine yet. The caller must call attachEngine.
func newRunWithoutEngine(cfg Config, targets []resolvedTarget) (*loadRun, error) {
	r := &loadRun{cfg: cfg, stage: "connect", aggregator: newAggregator(cfg.Hold)}
	loops, _, err := cfg.planLoops()
	if err != nil {
		return nil, err
	}
	if m, _ := models.FindAvailable(cfg.Model); !m.HasLoops { // checked earlier
		loops = 0
	}
	if r.generator, err = newGenerator(&r.cfg, loops); err != nil {
		return nil, err
	}
	encrypted, err := cfg.clientTLSConfig()
	if err != nil {
		return nil, err
	}
	if encrypted != nil {
		r.tls = newTLSClient(encrypted, cfg.ConnectTimeout, r.generator.DialFailed)
	}
	r.dialer = dialer{
		targets:          targets,
		sources:          planSources(targets[0].addr.Addr(), cfg.totalConns(), cfg.Sources, len(targets)*maxConnsPerLoopbackSourceAndTarget()),
		rate:             cfg.ConnectRate,
		ramp:             cfg.Ramp,
		connections:      cfg.totalConns(),
		replaceClosed:    cfg.Lifetime > 0,
		loops:            max(loops, 1),
		closedConns:      func() int64 { return r.sumTotals().run[nClosed] },
		failedAttempts:   r.generator.faults.countConnectFailures,
		finishedAttempts: func() int64 { return r.countFinishedAttempts(r.sumTotals()) },
	}
	return r, nil
}

func (r *loadRun) attachEngine(e engine.Engine, modelName string) {
	r.engine, r.dialer.engine, r.cfg.Model = e, e, modelName
	if r.cfg.reconnects() {
		r.generator.reconnector = &reconnector{engine: e, targets: r.dialer.targets, sources: r.dialer.sources, timeout: r.cfg.ConnectTimeout}
		if r.tls != nil {
			r.generator.reconnector.newLayer = r.tls.newReportingTLSLayer
		}
	}
}

func (r *loadRun) script() *trafficScript { return r.generator.script }

func (r *loadRun) countFinishedAttempts(t totals) int64 {
	return t.run[nOpened] + r.generator.faults.countConnectFailures()
}

func (r *loadRun) engineConfig() engine.Config {
	maxBuffered := 2*maxTLSBytesOfMessages(r.cfg.Pipeline, r.cfg.maxMessageSize()) + engine.ReadSize
	if r.cfg.Match != "" {
		maxBuffered += maxRuleBuffer
	}
	if r.cfg.WebSocket != nil {
		maxBuffered += r.cfg.Pipeline*frameOverhead + maxHandshakeResponse
	}
	if r.cfg.Flood {
		maxBuffered += maxTLSBytesOfMessages(1, (floodBatches+2)*r.cfg.floodBufferSize())
	}
	if r.cfg.PubSub != nil {
		maxBuffered += (r.cfg.Pipeline+1)*publishOverhead + MaxLine
	}
	loops, shard, _ := r.cfg.planLoops() // checked earlier
	cfg := engine.Config{
		Network: "tcp",
		Handler: r.generator,
		Limits: engine.Limits{
			MaxConns:     r.cfg.maxSimultaneousConns(),
			MaxMessage:   maxBuffered,
			MaxUnsent:    maxBuffered,
			MaxMail:      maxPendingNudges,
			MaxMailBytes: maxPendingNudges, // nudges contain no bytes
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
		cfg.Scheduler = r.generator.nudgeUnverifiedConns
	case r.generator.needsPaceTimer():
		cfg.Scheduler = r.generator.nudgeDueConnsOfLoop
	}
	if r.cfg.Flood {
		cfg.Limits.HighWater, cfg.Limits.LowWater = r.cfg.floodBufferSize(), r.cfg.floodBufferSize()/2
		cfg.Drained, cfg.IgnoreHighWater = r.generator.Drained, true
	}
	if r.cfg.reconnects() { // a closing connection may still be counted
		cfg.Limits.MaxConns += maxHalfOpen
	}
	if r.tls != nil {
		cfg.NewLayer = r.tls.newReportingTLSLayer
		cfg.Limits.HandshakeTimeout = r.cfg.ConnectTimeout
		cfg.Limits.MaxMail += tlsHandshakeMail
	}
	if r.cfg.PubSub != nil {
		cfg.Limits.MaxMail += r.cfg.PubSub.Publishers // each publisher has at most one nudge on its way
	}
	return cfg
}

// runPhasesStopAndBuildResult calls the function phases, stops the engine and returns the Result. If phases returns an
// error, it returns this error together with the Result.
func (r *loadRun) runPhasesStopAndBuildResult(ctx context.Context, phases func(context.Context) error) (*Result, error) {
	r.progressTicker = time.NewTicker(r.cfg.ProgressEvery)
	defer r.progressTicker.Stop()
	if r.cfg.Observe != nil {
		r.aggregator.usage = newGeneratorAndServerSampler(r.targetNames())
	}
	before, _ := sample.TakeSample(sample.Network) // unreadable values are 0
	r.emitEventWithSnapshot(Event{Phase: Began, Plan: r.buildPlanWithFirstUsageSample()})
	err := phases(ctx)
	r.totalsBeforeClose = r.sumTotals()
	r.emitHeardOnceIfBroadcastComplete(r.totalsBeforeClose)
	now, _ := sample.TakeSample(sample.Network)
	r.kernelCounters = now.DifferenceSince(&before).Machine.Counters
	r.stage = "close"
	r.closeConnsAndStopEngine()
	if r.cfg.Observe != nil { // the intervals then add up
		r.emitEventWithSnapshot(Event{Phase: Progress, Interval: r.buildIntervalSinceLast()})
	}
	result := r.buildResult(r.sumTotals()) // final: nothing changes any more
	result.Interrupted = err != nil && ctx.Err() != nil
	r.emitEventWithSnapshot(Event{Phase: Done, Result: result})
	return result, err
}

// waitCondition defines when a wait ends. It ends when the function done returns true, or when timeout has passed. It
// also ends when the result of the function progress has not changed for stallTimeout. If timeout or stallTimeout is 0,
// there is no such limit. The channels stop and values can also end the wait.
type waitCondition struct {
	timeout      time.Duration
	done         func(totals) bool
	stallTimeout time.Duration
	progress     func(totals) int64
	stop         <-chan struct{} // closing stop ends the wait; nil for none
	values       <-chan float64  // a value or a close ends the wait; nil for none
	value        *float64        // receives the value unless nil
}

// waitEmittingProgress waits until the condition w ends the wait. Meanwhile, it emits progress events. It returns
// errStalled if progress has not changed for w.stallTimeout, and ctx's cause if ctx ends. Otherwise, it returns nil.
func (r *loadRun) waitEmittingProgress(ctx context.Context, w waitCondition) (stallOrContextErr error) {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	var timedOut <-chan time.Time
	if w.timeout > 0 {
		timedOut = time.After(w.timeout)
	}
	progress, since := int64(-1), time.Now()
	for s := r.sumTotals(); !w.done(s); s = r.sumTotals() {
		if r.cfg.Early && !r.connectedSent && r.countFinishedAttempts(s) >= int64(r.cfg.Connections) {
			r.connectedSent = true
			r.emitEventWithSnapshot(Event{Phase: Connected})
		}
		r.emitHeardOnceIfBroadcastComplete(s)
		if w.stallTimeout > 0 {
			if now := w.progress(s); now != progress {
				progress, since = now, time.Now()
			} else if time.Since(since) >= w.stallTimeout {
				return errStalled
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timedOut:
			return nil
		case value := <-w.values:
			if w.value != nil {
				*w.value = value
			}
			return nil
		case <-w.stop:
			return nil
		case <-r.progressTicker.C:
			r.emitEventWithSnapshot(Event{Phase: Progress, Interval: r.buildIntervalSinceLast()})
		case <-poll.C:
			if reconnects := r.generator.reconnector; reconnects != nil {
				reconnects.queueDueRetriesAndDialFreeSlots(r.generator.now())
			}
		}
	}
	return nil
}

func (r *loadRun) sumTotals() totals { return sumShards(r.generator.shards) }

func (r *loadRun) emitEventWithSnapshot(e Event) {
	if r.cfg.Observe == nil {
		return
	}
	s := r.sumTotals()
	e.Snapshot = Snapshot{
		Open:     s.openConns(),
		Failed:   r.generator.faults.countConnectFailures(),
		Sent:     s.run[nSent],
		Answered: s.run[nAnswered],
	}
	r.cfg.Observe(e)
}

// publishOverhead is the maximum number of bytes that a publish/subscribe protocol adds to a message.
const publishOverhead = 128

// Limits in bytes. frameOverhead is the maximum size of the header of a WebSocket frame. maxHandshakeResponse is the
// maximum size of a handshake response. maxRuleBuffer limits the input that is buffered for a match rule.
const (
	frameOverhead        = 14
	maxHandshakeResponse = 32 << 10
	maxRuleBuffer        = 128 << 10
)

func (r *loadRun) closeConnsAndStopEngine() {
	r.generator.closing.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if !r.cfg.Graceful {
		cancel() // Stop then ends immediately
	}
	// Stop fails only if ctx ends first.
	_ = r.engine.Stop(ctx)
	if r.generator.reconnector != nil {
		r.generator.reconnector.abandonPendingAsClosed()
	}
	if r.tls != nil {
		r.tls.waitHandshakesAndClose()
	}
}

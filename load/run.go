package load

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/models"
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
// resolved, if the process may not open that many descriptors, if the I/O model
// can't run here, or if an HTTP server's answer can't be learned. After that
// there is always a Result; it holds what went wrong with connections and
// answers, and Result.Err sums that up.
//
// When ctx ends, the run ends early: it sends no more, waits at most a second
// for the last answers, closes, and returns the Result so far with ctx's cause.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.filled()
	model, err := models.Find(cfg.Model)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	target, err := resolve(ctx, cfg.Target)
	if err != nil {
		return nil, err
	}
	if err := checkFamily(cfg.Sources, target.Addr()); err != nil {
		return nil, err
	}
	if cfg.HTTP {
		if err := cfg.learn(ctx, target); err != nil {
			return nil, fmt.Errorf("load: learning what %s answers: %w", target, err)
		}
	}
	r := newRun(cfg, target)
	eng, err := model.Start(r.engineConfig())
	if err != nil {
		return nil, fmt.Errorf("load: I/O model %s: %w", cfg.Model, err)
	}
	r.use(eng)
	return r.run(ctx)
}

// run is one run of the load generator, on Run's goroutine.
type run struct {
	cfg     Config
	engine  engine.Engine
	traffic *traffic
	tls     *encryption // nil for none
	dialer  dialer
	report  *time.Ticker // when to tell of the progress

	connected time.Duration // how long connecting took
	window    time.Duration
	user      time.Duration // processor time in the window
	system    time.Duration
}

func newRun(cfg Config, target netip.AddrPort) *run {
	r := &run{
		cfg:     cfg,
		traffic: newTraffic(cfg),
		dialer: dialer{
			target:  target,
			sources: planSources(target.Addr(), cfg.Connections, cfg.Sources, sourceRoom()),
			rate:    cfg.ConnectRate,
		},
	}
	if c := cfg.clientTLS(); c != nil {
		r.tls = newEncryption(c, cfg.ConnectTimeout, r.traffic.DialFailed)
	}
	return r
}

// use gives the run its engine, which was started with its engineConfig.
func (r *run) use(e engine.Engine) {
	r.engine = e
	r.traffic.serve(e.Loops(), r.cfg.Connections)
	r.dialer.engine = e
	r.dialer.loops = max(e.Loops(), 1)
	r.dialer.settled = func() int64 { return r.settled(r.sum()) }
}

// settled counts attempts to connect that have succeeded or failed.
func (r *run) settled(s sum) int64 { return s.opened + r.traffic.faults.failures() }

// engineConfig leaves room for all that can be in flight on a connection, so
// that reading never pauses for output.
func (r *run) engineConfig() engine.Config {
	most := 2*sealed(r.cfg.Pipeline, r.cfg.messageSize()) + engine.ReadSize
	loops, shard, _ := r.cfg.shards() // checked before
	cfg := engine.Config{
		Network: "tcp",
		Handler: r.traffic,
		Limits: engine.Limits{
			MaxConns:     r.cfg.Connections,
			MaxMessage:   most,
			MaxUnsent:    most,
			MaxMail:      maxMail,
			MaxMailBytes: maxMail, // nudges have no bytes
			CloseTimeout: closeTimeout,
			Linger:       time.Second,
		},
		Loops: loops,
		Shard: shard,
		Reset: !r.cfg.Graceful,
		Log:   slog.New(slog.DiscardHandler),
	}
	if r.tls != nil {
		cfg.NewLayer = r.tls.first
		cfg.Limits.HandshakeTimeout = r.cfg.ConnectTimeout
		cfg.Limits.MaxMail += wakes
	}
	return cfg
}

// run goes through the phases and closes, whatever happens in them.
func (r *run) run(ctx context.Context) (*Result, error) {
	r.report = time.NewTicker(r.cfg.ProgressEvery)
	defer r.report.Stop()
	err := r.phases(ctx)
	end := r.sum()
	r.close()
	result := r.result(end)
	r.tell(Event{Phase: Done, Result: result})
	return result, err
}

// wait is how a phase waits: until done says so, at most for a time, at most
// for as long as something moves. A zero bound is none.
type wait struct {
	most  time.Duration
	done  func(sum) bool
	stall time.Duration
	moved func(sum) int64
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
		case <-r.report.C:
			r.tell(Event{Phase: Progress})
		case <-poll.C:
		}
	}
	return nil
}

// sum is how far the run is.
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
		Sent:     s.whole.sent,
		Answered: s.whole.answered,
	}
	r.cfg.Observe(e)
}

// closedAtLeast is how many connections are closed in the time that a Stop waits
// for them, on a slow machine.
const closedAtLeast = 10_000

// close closes all connections and waits until they and the engine are gone.
func (r *run) close() {
	r.traffic.closing.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if !r.cfg.Graceful {
		cancel() // stop at once
	}
	for range 1 + r.cfg.Connections/closedAtLeast {
		// The error says only that ctx has ended first.
		_ = r.engine.Stop(ctx)
		if r.engine.Counters()[engine.Open] == 0 {
			break
		}
	}
	if r.tls != nil {
		r.tls.wait()
	}
}

// result puts together what the run saw; end is the sum before it closed.
func (r *run) result(end sum) *Result {
	size := r.cfg.messageSize()
	cpus := runtime.GOMAXPROCS(0)
	if loops := r.engine.Loops(); loops > 0 {
		cpus = min(cpus, loops)
	}
	result := &Result{
		Target:        r.dialer.target.String(),
		Model:         r.cfg.Model,
		TLS:           r.tls.describe(),
		CPUs:          cpus,
		Connections:   r.cfg.Connections,
		Connected:     int(end.opened),
		ConnectTime:   r.connected,
		Pipeline:      r.cfg.Pipeline,
		Messages:      r.cfg.Messages,
		MessageSize:   size,
		Window:        r.window,
		Sent:          end.window.sent,
		Answered:      end.window.answered,
		BytesSent:     end.window.sent * int64(size),
		BytesReceived: end.window.bytesIn,
		Latency:       latencyOf(r.traffic.shards),
		UserCPU:       r.user,
		SystemCPU:     r.system,
		Unanswered:    end.whole.sent - end.whole.answered,
	}
	if r.cfg.Unprompted {
		result.Unanswered = 0
	}
	r.traffic.faults.fill(result)
	return result
}

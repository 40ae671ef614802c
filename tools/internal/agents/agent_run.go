package agents

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/tools/load"
)

// agentRun is the state of one agent in one run. The mutex mu guards some of the fields. Only the goroutine of Serve
// may use the other fields.
type agentRun struct {
	agent   *agentWorker
	id      string
	heard   time.Time // time of the coordinator's last message
	silence time.Duration

	cfg            *load.Config // nil until the plan arrives
	started        bool
	step           int           // last step of traffic that has begun
	begin          chan float64  // delivers the rate of each step
	enough         chan struct{} // closed when the rate is steady
	steady         bool
	published      chan []int64 // delivers the message counts of all publishers once
	totalsReceived bool
	cancel         context.CancelFunc
	ended          <-chan struct{} // closed when the load is cancelled
	running        sync.WaitGroup
	over           chan report // delivers the last report
	last           *report     // the last report; nil until the load has ended
	endReason      string      // reason for an early end

	mu          sync.Mutex
	stepsTried  int     // number of load.Tried events so far
	unconfirmed *report // report that is repeated until the coordinator confirms it, or nil
	state       agentState
}

func shortID(id string) string { return id[:min(len(id), 8)] }

// processMessageJoiningIfIdle processes a message from a coordinator. If the agent is in no run and the message is a
// clockRequest, the agent joins the run of this coordinator.
func (w *agentWorker) processMessageJoiningIfIdle(ctx context.Context, msg *nats.Msg, now time.Time) {
	m, err := decodeMessageHeader(msg.Data, w.version)
	if err != nil {
		return
	}
	if w.run == nil {
		var c clockRequest
		if m.Kind != clockKind || m.decodeBodyStrictly(&c) != nil || w.Once && w.served || ctx.Err() != nil {
			return
		}
		w.run = &agentRun{
			agent: w, id: m.From, silence: min(max(c.Silence, minSilence), maxSilence),
			begin: make(chan float64, 1), enough: make(chan struct{}), published: make(chan []int64, 1), over: make(chan report, 1), cancel: func() {},
		}
		w.heartbeat.Reset(w.run.silence / heartbeats)
	}
	if m.From == w.run.id {
		w.run.heard = now
		w.run.processCoordinatorMessage(ctx, m, msg.Reply, now)
	}
}

func (r *agentRun) processCoordinatorMessage(ctx context.Context, m *message, replyTo string, now time.Time) {
	switch m.Kind {
	case clockKind:
		_ = r.sendMessage(replyTo, replyKind, clock{now.UnixNano(), time.Now().UnixNano()}) // if the reply is lost, the request is repeated
	case planKind:
		var p plan
		if r.started || m.decodeBodyStrictly(&p) != nil {
			return
		}
		cfg, err := r.agent.parseAndValidatePlan(ctx, p)
		var reply planReply
		if err != nil {
			reply.Refuses = err.Error()
			r.agent.Logf("run %s: refused: %v", shortID(r.id), err)
		} else {
			r.cfg = &cfg
		}
		_ = r.sendMessage(replyTo, replyKind, reply) // if the reply is lost, the request is repeated
	case heartbeatKind:
		var o orders
		if m.decodeBodyStrictly(&o) == nil {
			r.applyCoordinatorOrders(ctx, o)
		}
	}
}

func (r *agentRun) applyCoordinatorOrders(ctx context.Context, o orders) {
	if o.Start > 0 && !r.started && r.cfg != nil && !o.Stop && !o.Over {
		r.startLoadInBackground(ctx, time.Unix(0, o.Start))
	}
	if o.Begin > 0 && r.started && r.step < o.Step {
		r.step = o.Step
		r.clearUnconfirmedReport()
		r.running.Go(func() {
			waitUntilDeadlineEndedOrMaxSilence(r.ended, time.Unix(0, o.Begin))
			select {
			case r.begin <- o.Rate:
			case <-r.ended:
			}
		})
	}
	if o.Steady && !r.steady {
		r.steady = true
		close(r.enough)
	}
	if o.Published != nil && !r.totalsReceived {
		r.totalsReceived = true
		r.clearUnconfirmedReport()
		r.published <- o.Published
	}
	if o.Stop && r.started {
		r.cancelLoadForReason("the coordinator has stopped it")
	} else if o.Stop {
		r.started = true
		r.over <- report{Failed: "it was stopped before it began"}
	}
	if o.Over {
		r.agent.cancelAndLeaveRun("")
	}
}

func waitUntilDeadlineEndedOrMaxSilence(ended <-chan struct{}, deadline time.Time) {
	select {
	case <-time.After(min(time.Until(deadline), maxSilence)):
	case <-ended:
	}
}

func (r *agentRun) startLoadInBackground(ctx context.Context, startAt time.Time) {
	r.started = true
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx)) // cancelLoadForReason calls r.cancel
	r.agent.Logf("run %s: %d connections to %s", shortID(r.id), r.cfg.Total(), sanitizeAndTruncate(r.cfg.Target))
	r.ended = ctx.Done()
	r.running.Go(func() { r.over <- r.waitAndRunLoad(ctx, startAt) })
}

func (r *agentRun) waitAndRunLoad(ctx context.Context, startAt time.Time) (finalReport report) {
	keep, closeFile := r.openEventFile()
	defer closeFile()
	r.cfg.Begin, r.cfg.Histograms = r.begin, true
	if r.cfg.Steady {
		r.cfg.Enough = r.enough
	}
	if r.cfg.PubSub != nil {
		r.cfg.Published = r.published
	}
	r.cfg.Observe = func(e load.Event) {
		r.sendNonFinalEvent(e)
		if r.agent.Observe != nil {
			r.agent.Observe(e)
		}
		keep(e)
	}
	waitUntilDeadlineEndedOrMaxSilence(r.ended, startAt)
	result, err := load.Run(ctx, *r.cfg)
	finalReport.At = time.Now().UnixNano()
	if err != nil {
		finalReport.Failed = err.Error()
	}
	if result != nil {
		finalReport.Event = &load.Event{Phase: load.Done, Result: result}
	}
	return finalReport
}

// openEventFile creates the file in Agent.EventDir that stores the run's events. If this fails, it logs the error. If
// there is no file, the returned functions do nothing.
func (r *agentRun) openEventFile() (write func(load.Event), closeFile func()) {
	if r.agent.EventDir == "" {
		return func(load.Event) {}, func() {}
	}
	file, err := os.OpenFile(filepath.Join(r.agent.EventDir, r.id+".jsonl"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		r.agent.Logf("run %s: cannot store its events: %v", shortID(r.id), err)
		return func(load.Event) {}, func() {}
	}
	lines := json.NewEncoder(file)
	write = func(e load.Event) {
		if err == nil {
			err = lines.Encode(e)
		}
	}
	return write, func() {
		if e := file.Close(); err == nil {
			err = e
		}
		if err != nil {
			r.agent.Logf("run %s: stored events are incomplete: %v", shortID(r.id), err)
		}
	}
}

// sendNonFinalEvent sends an event to the coordinator. It ignores the final event, Done. If the event is Connected or
// the coordinator must confirm the event, sendNonFinalEvent also stores it in r, because sendPendingReportOrHeartbeat
// sends it again.
func (r *agentRun) sendNonFinalEvent(e load.Event) {
	if e.Phase == load.Done {
		return
	}
	t := report{At: time.Now().UnixNano(), Event: &e}
	r.mu.Lock()
	switch e.Phase {
	case load.Connected:
		r.state.Connected = true
	case load.Tried:
		r.stepsTried++
		fallthrough
	case load.Published:
		t.Step = r.stepsTried
		r.unconfirmed = &t
	}
	r.mu.Unlock()
	_ = r.sendMessage(runSubject+r.id, eventKind, t) // sendPendingReportOrHeartbeat repeats important events
}

func (r *agentRun) clearUnconfirmedReport() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unconfirmed = nil
}

func (r *agentRun) cancelLoadForReason(reason string) {
	if r.endReason == "" {
		r.endReason = reason
	}
	r.cancel()
}

// sendPendingReportOrHeartbeat sends one message to the coordinator. If the load has ended, the message is the last
// report. Otherwise, if a report is unconfirmed, the message is that report. In all other cases, the message is a
// heartbeat. If the last report cannot be sent, for example because it is too large, a report of this failure replaces
// it.
func (r *agentRun) sendPendingReportOrHeartbeat() {
	r.mu.Lock()
	kind, body := heartbeatKind, any(r.state)
	if r.unconfirmed != nil {
		kind, body = eventKind, r.unconfirmed
	}
	r.mu.Unlock()
	if r.last == nil {
		_ = r.sendMessage(runSubject+r.id, kind, body) // the next heartbeat repeats the message
		return
	}
	if err := r.sendMessage(runSubject+r.id, eventKind, r.last); err != nil && r.agent.conn.IsConnected() {
		r.last = &report{At: r.last.At, Failed: fmt.Sprintf("its result can't be sent: %v", err)}
	}
}

// sendMessage publishes a message to a NATS subject. It is safe for concurrent use.
func (r *agentRun) sendMessage(subject, kind string, body any) error {
	data, err := encodeMessage(r.agent.version, kind, r.agent.id, body)
	if err != nil {
		return err
	}
	return publishIfNotTooLarge(r.agent.conn, subject, data)
}

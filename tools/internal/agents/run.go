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

// agentRun is an agent's part in a run. It belongs to the goroutine of Serve, except for the fields under mu.
type agentRun struct {
	agent   *worker
	id      string
	heard   time.Time // when the coordinator's last message came
	silence time.Duration

	cfg       *load.Config // nil before the plan
	started   bool
	step      int           // the last one that has begun
	begin     chan float64  // receives the rate of each step
	enough    chan struct{} // closed when the rate is steady
	steady    bool
	published chan []int64 // receives the numbers of messages of all publishers, once
	totals    bool         // it has
	cancel    context.CancelFunc
	ended     <-chan struct{} // closed by cancel
	running   sync.WaitGroup
	over      chan report // receives the last report
	last      *report     // that report
	why       string      // the reason why the run was ended early

	mu          sync.Mutex
	tried       int     // the last step that load.Run has tried
	unconfirmed *report // repeated until the coordinator reacts; nil for none
	state       agentState
}

// short returns the beginning of a run's ID, for people.
func short(id string) string { return id[:min(len(id), 8)] }

// handle processes a message to this agent, and joins the run of its sender if the agent is free.
func (w *worker) handle(ctx context.Context, msg *nats.Msg, now time.Time) {
	m, err := decode(msg.Data, w.version)
	if err != nil {
		return
	}
	if w.run == nil {
		var c clockRequest
		if m.Kind != clockKind || m.read(&c) != nil || w.Once && w.served || ctx.Err() != nil {
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
		w.run.handle(ctx, m, msg.Reply, now)
	}
}

// handle processes a message of the run's coordinator.
func (r *agentRun) handle(ctx context.Context, m *message, replyTo string, now time.Time) {
	switch m.Kind {
	case clockKind:
		_ = r.send(replyTo, replyKind, clock{now.UnixNano(), time.Now().UnixNano()}) // it asks again
	case planKind:
		var p plan
		if r.started || m.read(&p) != nil {
			return
		}
		cfg, err := r.agent.configure(ctx, p)
		var reply planReply
		if err != nil {
			reply.Refuses = err.Error()
			r.agent.Say("run %s: refused: %v", short(r.id), err)
		} else {
			r.cfg = &cfg
		}
		_ = r.send(replyTo, replyKind, reply) // it asks again
	case heartbeatKind:
		var o orders
		if m.read(&o) == nil {
			r.follow(ctx, o)
		}
	}
}

// follow brings the run into the ordered state.
func (r *agentRun) follow(ctx context.Context, o orders) {
	if o.Start > 0 && !r.started && r.cfg != nil && !o.Stop && !o.Over {
		r.start(ctx, time.Unix(0, o.Start))
	}
	if o.Begin > 0 && r.started && r.step < o.Step {
		r.step = o.Step
		r.confirm()
		r.running.Go(func() {
			wait(r.ended, time.Unix(0, o.Begin))
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
	if o.Published != nil && !r.totals {
		r.totals = true
		r.confirm()
		r.published <- o.Published
	}
	if o.Stop && r.started {
		r.end("the coordinator has stopped it")
	} else if o.Stop {
		r.started = true
		r.over <- report{Failed: "it was stopped before it began"}
	}
	if o.Over {
		r.agent.leave("")
	}
}

// wait waits until a time, for maxSilence at most, or until ended is closed.
func wait(ended <-chan struct{}, until time.Time) {
	select {
	case <-time.After(min(time.Until(until), maxSilence)):
	case <-ended:
	}
}

// start runs the load on a goroutine of its own, from a given time on.
func (r *agentRun) start(ctx context.Context, at time.Time) {
	r.started = true
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx)) // end ends it
	r.agent.Say("run %s: %d connections to %s", short(r.id), r.cfg.Total(), clean(r.cfg.Target))
	r.ended = ctx.Done()
	r.running.Go(func() { r.over <- r.load(ctx, at) })
}

// load runs the load and returns the last report.
func (r *agentRun) load(ctx context.Context, at time.Time) (last report) {
	keep, closeFile := r.keep()
	defer closeFile()
	r.cfg.Begin, r.cfg.Histograms = r.begin, true
	if r.cfg.Steady {
		r.cfg.Enough = r.enough
	}
	if r.cfg.PubSub != nil {
		r.cfg.Published = r.published
	}
	r.cfg.Observe = func(e load.Event) {
		r.observe(e)
		if r.agent.Observe != nil {
			r.agent.Observe(e)
		}
		keep(e)
	}
	wait(r.ended, at)
	result, err := load.Run(ctx, *r.cfg)
	last.At = time.Now().UnixNano()
	if err != nil {
		last.Failed = err.Error()
	}
	if result != nil {
		last.Event = &load.Event{Phase: load.Done, Result: result}
	}
	return last
}

// keep returns a function that writes events to the run's file in Agent.Keep, if there is one.
func (r *agentRun) keep() (write func(load.Event), closeFile func()) {
	if r.agent.Keep == "" {
		return func(load.Event) {}, func() {}
	}
	file, err := os.OpenFile(filepath.Join(r.agent.Keep, r.id+".jsonl"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		r.agent.Say("run %s is not kept: %v", short(r.id), err)
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
			r.agent.Say("run %s is not kept completely: %v", short(r.id), err)
		}
	}
}

// observe sends the events of the run, on its goroutine; tell sends the last one.
func (r *agentRun) observe(e load.Event) {
	if e.Phase == load.Done {
		return
	}
	t := report{At: time.Now().UnixNano(), Event: &e}
	r.mu.Lock()
	switch e.Phase {
	case load.Connected:
		r.state.Connected = true
	case load.Tried:
		r.tried++
		fallthrough
	case load.Published:
		t.Step = r.tried
		r.unconfirmed = &t
	}
	r.mu.Unlock()
	_ = r.send(runSubject+r.id, eventKind, t) // tell repeats the important ones
}

// confirm notes that the coordinator has received the unconfirmed report.
func (r *agentRun) confirm() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unconfirmed = nil
}

// end cancels the run. It does not wait for its end.
func (r *agentRun) end(why string) {
	if r.why == "" {
		r.why = why
	}
	r.cancel()
}

// tell sends a heartbeat, the unconfirmed report, or the last one until the coordinator ends the run.
func (r *agentRun) tell() {
	r.mu.Lock()
	kind, body := heartbeatKind, any(r.state)
	if r.unconfirmed != nil {
		kind, body = eventKind, r.unconfirmed
	}
	r.mu.Unlock()
	if r.last == nil {
		_ = r.send(runSubject+r.id, kind, body) // the next one repeats it
		return
	}
	if err := r.send(runSubject+r.id, eventKind, r.last); err != nil && r.agent.conn.IsConnected() {
		r.last = &report{At: r.last.At, Failed: fmt.Sprintf("its result can't be sent: %v", err)}
	}
}

// send sends a message. It is safe for concurrent use.
func (r *agentRun) send(subject, kind string, body any) error {
	data, err := encode(r.agent.version, kind, r.agent.id, body)
	if err != nil {
		return err
	}
	return publish(r.agent.conn, subject, data)
}

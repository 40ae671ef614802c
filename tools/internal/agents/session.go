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

// session is an agent's part in a run. It belongs to the goroutine of Serve, but for what is named.
type session struct {
	agent   *servant
	run     string
	key     key
	heard   time.Time // when the coordinator was heard of last
	number  uint64    // of its last letter
	silence time.Duration

	cfg     *load.Config // its part, nil before it is known
	remove  func()       // what the plan has left in files
	started bool
	begun   int           // the last step that has
	begin   chan float64  // gets the rate of each
	enough  chan struct{} // closed when it is steady
	steady  bool
	all     chan []int64       // gets what all have published
	through bool               // it has
	cancel  context.CancelFunc // of the run
	ended   <-chan struct{}    // closed by cancel
	running sync.WaitGroup
	over    chan told // the last that the run has to tell
	last    *told     // that
	why     string    // the run was ended

	sending sync.Mutex // of the run's goroutine too
	sent    uint64     // the number of the last letter
	step    int        // the last that the run has tried
	asks    *told      // what it has told last and waits for an answer to, nil for nothing
	is      state
}

// short is enough of the run's name.
func (s *session) short() string { return short(s.run) }

func short(run string) string { return run[:min(len(run), 8)] }

// obey takes a letter to this agent.
func (s *servant) obey(ctx context.Context, m *nats.Msg, came time.Time) {
	var l letter
	if json.Unmarshal(m.Data, &l) != nil {
		return
	}
	k := newKey(s.Secret, "session", l.From, s.id, s.nonce)
	if s.session != nil {
		k = s.session.key
	}
	read, err := k.open(m.Data, s.version)
	if err != nil || s.session != nil && (read.From != s.session.run || read.Number <= s.session.number) {
		return
	}
	if s.session == nil {
		var t take
		if read.Kind != takeKind || read.read(&t) != nil || s.nonce == "" || ctx.Err() != nil {
			return
		}
		s.session = &session{
			agent: s, run: read.From, key: k, silence: min(max(t.Silence, leastSilence), mostSilence),
			begin: make(chan float64, 1), enough: make(chan struct{}), all: make(chan []int64, 1), over: make(chan told, 1), remove: func() {}, cancel: func() {},
		}
		s.beat.Reset(s.session.silence / beatEvery)
	}
	s.session.heard, s.session.number = came, read.Number
	s.session.follow(ctx, read, m.Reply, came)
}

// follow does what a letter of the coordinator says.
func (s *session) follow(ctx context.Context, l *letter, answerTo string, came time.Time) {
	switch l.Kind {
	case takeKind:
		s.send(answerTo, answered, reply{})
	case clockKind:
		s.send(answerTo, answered, clock{came.UnixNano(), time.Now().UnixNano()})
	case planKind:
		var p plan
		if s.started || l.read(&p) != nil {
			return
		}
		s.remove()
		cfg, remove, err := s.agent.configure(ctx, p)
		var r reply
		if s.remove = remove; err != nil {
			r.Refuses = err.Error()
			s.agent.Say("run %s: refused: %v", s.short(), err)
		} else {
			s.cfg = &cfg
		}
		s.send(answerTo, answered, r)
	case beatKind:
		var o orders
		if l.read(&o) == nil {
			s.order(ctx, o)
		}
	}
}

// order has the run be as it is wanted.
func (s *session) order(ctx context.Context, o orders) {
	if o.Start > 0 && !s.started && s.cfg != nil && !o.Stop && !o.Over {
		s.start(ctx, time.Unix(0, o.Start))
	}
	if o.Begin > 0 && s.started && s.begun < o.Step {
		s.begun = o.Step
		s.confirmed()
		s.running.Go(func() {
			select {
			case <-time.After(min(time.Until(time.Unix(0, o.Begin)), mostSilence)):
			case <-s.ended:
			}
			select {
			case s.begin <- o.Rate:
			case <-s.ended:
			}
		})
	}
	if o.Enough && !s.steady {
		s.steady = true
		close(s.enough)
	}
	if o.Published != nil && !s.through {
		s.through = true
		s.confirmed()
		s.all <- o.Published
	}
	switch {
	case !o.Stop:
	case s.started:
		s.end("the coordinator has stopped it")
	default:
		s.started = true
		s.over <- told{Failed: "it was stopped before it began"}
	}
	if o.Over {
		s.agent.leave("")
	}
}

// start has the run begin at a time, on a goroutine of its own.
func (s *session) start(ctx context.Context, at time.Time) {
	s.started = true
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx)) // end ends it
	s.agent.Say("run %s: %d connections to %s", s.short(), s.cfg.Total(), clean(s.cfg.Target))
	s.ended = ctx.Done()
	s.running.Go(func() { s.over <- s.load(ctx, at) })
}

// load runs, on the run's goroutine.
func (s *session) load(ctx context.Context, at time.Time) (last told) {
	observers := []func(load.Event){s.observe}
	if s.agent.Observe != nil {
		observers = append(observers, s.agent.Observe)
	}
	if s.agent.Keep != "" {
		file, err := os.OpenFile(filepath.Join(s.agent.Keep, s.run+".jsonl"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			s.agent.Say("run %s is not kept: %v", s.short(), err)
		} else {
			defer func() {
				if e := file.Close(); err == nil && e != nil {
					err = e
				}
				if err != nil {
					s.agent.Say("run %s is not kept whole: %v", s.short(), err)
				}
			}()
			lines := json.NewEncoder(file)
			observers = append(observers, func(e load.Event) {
				if err == nil {
					err = lines.Encode(e)
				}
			})
		}
	}
	s.cfg.Begin, s.cfg.Histograms = s.begin, true
	if s.cfg.Steady {
		s.cfg.Enough = s.enough
	}
	if s.cfg.PubSub != nil {
		s.cfg.Published = s.all
	}
	s.cfg.Observe = func(e load.Event) {
		for _, o := range observers {
			o(e)
		}
	}
	select {
	case <-time.After(min(time.Until(at), mostSilence)):
	case <-ctx.Done():
	}
	result, err := load.Run(ctx, *s.cfg)
	last.At = time.Now().UnixNano()
	if err != nil {
		last.Failed = err.Error()
	}
	if result != nil {
		last.Event = &load.Event{Phase: load.Done, Result: result}
	}
	return last
}

// observe tells the coordinator of the run, on the run's goroutine; of its end tell does.
func (s *session) observe(e load.Event) {
	t := told{At: time.Now().UnixNano(), Event: &e}
	switch e.Phase {
	case load.Done:
		return
	case load.Connected:
		s.sending.Lock()
		s.is.Connected = true
		s.sending.Unlock()
	case load.Tried, load.Published:
		s.sending.Lock()
		if e.Phase == load.Tried {
			s.step++
		}
		t.Step = s.step
		s.asks = &t
		s.sending.Unlock()
	}
	s.send(runSubject+s.run, eventKind, t)
}

// confirmed says that the coordinator knows what the run has told.
func (s *session) confirmed() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.asks = nil
}

// end ends the run before its time. It does not wait for it.
func (s *session) end(why string) {
	if s.why == "" {
		s.why = why
	}
	s.cancel()
}

// tell says that the agent is there, and as long as the coordinator does not confirm it how the run has
// ended.
func (s *session) tell() {
	s.sending.Lock()
	asks, is := s.asks, s.is
	s.sending.Unlock()
	switch {
	case s.last != nil:
	case asks != nil:
		s.send(runSubject+s.run, eventKind, asks)
		return
	default:
		s.send(runSubject+s.run, beatKind, is)
		return
	}
	last := *s.last
	if last.Failed != "" && s.why != "" {
		last.Failed = s.why
	}
	if err := s.send(runSubject+s.run, eventKind, last); err != nil && s.agent.conn.IsConnected() {
		s.last = &told{At: last.At, Failed: fmt.Sprintf("its result can't be sent: %v", err)}
	}
}

// send sends a letter. It may be called by both goroutines.
func (s *session) send(subject, kind string, body any) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.sent++
	data, err := s.key.write(s.agent.version, kind, s.agent.id, s.sent, body)
	if err != nil {
		return err
	}
	return publish(s.agent.conn, subject, data)
}

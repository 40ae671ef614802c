package run

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/myriad-go/myriad/internal/lab/app"
	"github.com/myriad-go/myriad/internal/lab/scenario"
	"github.com/myriad-go/myriad/load"
)

const (
	// floodBuffer is SO_SNDBUF of the connections of a flood, in bytes: what they have sent
	// is to be the server's soon.
	floodBuffer = 16 << 10
	// floodHold is how long connections stay open when the window has ended: they are
	// counted meanwhile.
	floodHold = time.Second
	// verifyDrain is how long an answer may not come.
	verifyDrain = 2 * time.Second
	// announcement is the line that is broadcast.
	announcement = "an announcement to all"
)

// config is what the load generator is to do in a stage.
func (m *measurement) config(s scenario.Stage) load.Config {
	w := m.workload
	c := load.Config{Target: m.server.addr, Connections: s.Connections, ConnectRate: s.Rate, Loops: w.LoadLoops}
	if n := len(m.pinning.Load); n > 0 && c.Loops == 0 {
		c.Loops = n
	}
	if w.TLS {
		c.TLS = &load.TLS{CAFile: m.cert}
	}
	if s.Held {
		return heldConfig(c, s)
	}
	message := app.MessageOf(w.App)
	if message.Text != "" {
		c.Message, c.Answer = []byte(message.Text), []byte(message.Answer)
	}
	c.Size, c.HTTP = w.Size, w.App == app.HTTP
	for i, p := range s.Phases {
		switch {
		case p.Do == scenario.Hold && i == 0:
			c.HoldBefore = p.For.Std()
		case p.Do == scenario.Hold:
			c.HoldAfter = p.For.Std()
		case p.Do == scenario.Verify:
			c.Messages, c.Pipeline = int64(p.Messages), p.Messages
			if p.Messages > 1 {
				c.Drain = verifyDrain
			}
		default:
			c.Warmup, c.Duration, c.Pipeline = p.WarmUp.Std(), p.For.Std(), w.Pipeline
			c.Unprompted = p.Heartbeat > 0
		}
		if p.Do == scenario.Flood {
			c.Flood, c.Pipeline, c.Socket.SendBuffer, c.HoldAfter = true, 0, floodBuffer, floodHold
			c.Message, c.Answer, c.Size = []byte(app.Ping), nil, 0
		}
	}
	if w.Phase(scenario.Flood) != nil && len(c.Message) == 0 {
		c.Message = []byte(app.Ping)
	}
	return c
}

// heldConfig is that of connections that are held, verified twice, with a broadcast.
func heldConfig(c load.Config, s scenario.Stage) load.Config {
	c.Hold, c.Check = true, s.Phases[0].InFlight
	c.Heartbeat, c.HeartbeatAnswer, c.Broadcast = app.Heartbeat, app.HeartbeatAnswer, announcement+"\n"
	alone, beats, after := s.Phases[1].For.Std(), s.Phases[3], s.Phases[5].For.Std()
	slack := scenario.HeartbeatSlack(beats.Heartbeat.Std())
	c.Duration = alone + time.Duration(beats.For/beats.Heartbeat)*(beats.Heartbeat.Std()+slack) + slack // and as much for the answers
	c.HoldAfter = after
	c.ProgressEvery = min(max(alone/20, 20*time.Millisecond), time.Second)
	return c
}

// generate runs the load generator on its CPUs and calls at with each of its events, in
// order; it may be nil. When ctx ends or at returns an error the generator is ended. It has
// ended in any case when generate returns. A generator that fails because of what its result
// says has not failed here: the result is marked.
func (m *measurement) generate(ctx context.Context, c load.Config, at func(load.Event) error) (seen *load.Result, err error) {
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	run := command{args: []string{m.self, "load", "--json", "--config", "-"}, in: bytes.NewReader(config), cpus: m.pinning.loadCPUs(), grace: outputGrace}
	if c.Hold {
		run.args[1], run.grace = "hold", heldGrace
	}
	started := func(p *process) {
		m.generator = p
		m.timeline.generator(p.pid())
	}
	p, err := m.launcher.lines(ctx, run, started, func(line []byte) error {
		var e load.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("the load generator said %.100q: %w", line, err)
		}
		m.timeline.hear(e)
		if e.Result != nil {
			seen = e.Result
		}
		if at == nil {
			return nil
		}
		return at(e)
	})
	m.timeline.generator(0)
	switch {
	case err != nil:
		return nil, err
	case seen == nil, p.err != nil && seen.Err() == nil:
		return nil, p.failure("the load generator")
	}
	return seen, nil
}

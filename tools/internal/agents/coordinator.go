package agents

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/internal/version"
	"github.com/myriad-go/myriad/tools/load"
)

// Options say where a coordinator finds its agents.
type Options struct {
	// Agents is how many there are to be, 1 to load.MaxGenerators.
	Agents int
	// NATS is an external one. With no URL there is a server of its own, at Listen, which is
	// DefaultListen by default, and which ListenTLS has encrypt, nil for in clear.
	NATS
	Listen    string
	ListenTLS *tls.Config
	// Secret is what agents have to know, "" for none.
	Secret string
	// Wait is how long to wait for the agents. Default a minute.
	Wait time.Duration
	// Silence is how long an agent is not heard of until it is lost, and the coordinator until agents end
	// their runs: 100 ms to a minute. Default DefaultSilence.
	Silence time.Duration
	// Say is told what happens, a line at a time, on the goroutine of Run. Default: nobody is.
	Say func(format string, args ...any)
	// Local, if set, starts agents on this machine, which reach NATS at a URL, and returns what ends
	// them and waits for that. Default nil: agents come by themselves.
	Local func(url string) (stop func(), err error)

	version string // of Myriad, as tests have it
}

// coordinator is one run on several machines. It belongs to the goroutine of Run.
type coordinator struct {
	Options
	cfg     load.Config
	run     string
	conn    *nats.Conn
	letters chan *nats.Msg
	crew    []*member
	began   bool // the run has, as far as is told
	step    int  // of the traffic that has begun, from 1
	timers  *timers
	steady  load.Steadiness  // of what all receive
	shown   time.Duration    // up to when intervals have been
	losses  map[string]int64 // of agents since
}

// member is an agent of a run.
type member struct {
	here
	id          string
	key         key
	connections int // its part
	publishers  int // of these
	offset      time.Duration
	uncertainty time.Duration
	sent        uint64 // the number of the last letter to it
	number      uint64 // of the last one from it
	heard       time.Time
	orders      orders

	snapshot  load.Snapshot
	pending   map[load.Phase][]load.Event // that not all have told of
	connected bool
	intervals []load.Event // since the last that was shown
	measuring time.Time    // by our clock, when its window began
	tried     *load.Result // of the step, nil until it is here
	best      *load.Result // of the step that a search has found
	published []int64      // by its publishers, nil until it has told
	result    *load.Result
	ended     string // why its run ended early
	lost      string // why its result is missing
}

// there says that an agent has something more to tell.
func (m *member) there() bool { return m.result == nil && m.lost == "" }

// Run puts a load on its targets from agents, as load.Run does from this process. The Result says in
// Agents which of them were lost; their parts are missing in it. It is nil if the configuration is wrong
// or can't be divided, if there are too few agents, if one of them can't do its part, or if all are lost.
//
// When ctx ends, all agents end their runs early, and the Result so far is returned with ctx's
// cause.
func Run(ctx context.Context, o Options, cfg load.Config) (*load.Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if o.Agents < 1 || o.Agents > load.MaxGenerators {
		return nil, fmt.Errorf("agents: %d agents; expected 1 to %d", o.Agents, load.MaxGenerators)
	}
	if _, err := cfg.Divide(make1(o.Agents)...); err != nil {
		return nil, err
	}
	o.Wait, o.Silence = cmp.Or(o.Wait, time.Minute), cmp.Or(o.Silence, DefaultSilence)
	o.Silence = min(max(o.Silence, leastSilence), mostSilence)
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	if o.version == "" {
		o.version = version.Myriad()
	}
	c := &coordinator{Options: o, cfg: cfg, run: randomID(), letters: make(chan *nats.Msg, maxLetters)}
	stop, err := c.open()
	if err != nil {
		return nil, err
	}
	defer stop()
	defer c.release()
	for _, step := range []func(context.Context) error{c.gather, c.compareClocks, c.divide} {
		if err := step(ctx); err != nil {
			return nil, err
		}
		c.beat() // who was ready first has waited for the others
	}
	return c.watch(ctx)
}

// make1 are equal weights.
func make1(n int) []float64 {
	all := make([]float64, n)
	for i := range all {
		all[i] = 1
	}
	return all
}

// open connects to NATS, which it starts where that is asked for, and starts local agents. What it returns
// takes all that back.
func (c *coordinator) open() (stop func(), err error) {
	var stops []func()
	stopAll := func() {
		for _, stop := range slices.Backward(stops) {
			stop()
		}
	}
	defer func() {
		if err != nil {
			stopAll()
		}
	}()
	url := c.URL
	connect := func(all ...nats.Option) (*nats.Conn, error) { return nats.Connect(c.URL, all...) }
	if c.URL == "" {
		server, err := natsd.Start(natsd.Config{Addr: cmp.Or(c.Listen, DefaultListen), Token: token(c.Secret), MaxPayload: maxLetter, TLS: c.ListenTLS})
		if err != nil {
			return nil, fmt.Errorf("agents: %w", err)
		}
		stops = append(stops, server.Close)
		connect, url = server.Connect, "nats://"+reachable(server.Addr())
		if c.ListenTLS != nil {
			url = "tls" + strings.TrimPrefix(url, "nats")
		}
	}
	unsaid := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}) // what is lost is said again
	if c.conn, err = connect(append(c.NATS.options("myriad load", c.Secret), unsaid)...); err != nil {
		return nil, fmt.Errorf("agents: NATS at %s: %s", redact(url), explain(err))
	}
	stops = append(stops, c.conn.Close)
	if _, err = c.conn.ChanSubscribe(runSubject+c.run, c.letters); err != nil {
		return nil, fmt.Errorf("agents: NATS: %w", err)
	}
	if c.Local == nil {
		c.Say("waiting on %s for agents: %d are wanted", redact(url), c.Agents)
		return stopAll, nil
	}
	end, err := c.Local(url)
	if err != nil {
		return nil, fmt.Errorf("agents: %w", err)
	}
	stops = append(stops, end)
	return stopAll, nil
}

// reachable is an address that this machine reaches.
func reachable(a net.Addr) string {
	at, ok := a.(*net.TCPAddr)
	if !ok || !at.IP.IsUnspecified() {
		return a.String()
	}
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(at.Port))
}

// call is what the doctors of the agents are asked.
func (c *coordinator) call() call {
	q := call{Targets: append([]string{c.cfg.Target}, c.cfg.Also...), Model: c.cfg.Model, Connections: c.cfg.Total()}
	if c.cfg.Graceful && c.cfg.Lifetime > 0 {
		q.Closing = int(float64(q.Connections) / c.cfg.Lifetime.Seconds() / float64(c.Agents))
	}
	return q
}

const (
	callEvery = 500 * time.Millisecond
	// maxRefused is how many agents that can't take part are named.
	maxRefused = load.MaxGenerators
)

// gather calls until there are enough agents, and takes them.
func (c *coordinator) gather(ctx context.Context) error {
	answers := make(chan *nats.Msg, maxLetters)
	inbox := nats.NewInbox()
	sub, err := c.conn.ChanSubscribe(inbox, answers)
	if err != nil {
		return fmt.Errorf("agents: NATS: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	k := newKey(c.Secret, "call")
	letter, err := k.write(c.version, callKind, c.run, 0, c.call())
	if err != nil {
		return fmt.Errorf("agents: %w", err)
	}
	again := time.NewTicker(min(callEvery, c.Silence/beatEvery))
	defer again.Stop()
	patience := time.After(c.Wait)
	refused := make(map[string]string)
	for _ = c.conn.PublishRequest(callSubject, inbox, letter); len(c.crew) < c.Agents; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-patience:
			return c.tooFew(refused)
		case now := <-again.C:
			c.crew = slices.DeleteFunc(c.crew, func(m *member) bool {
				gone := now.Sub(m.heard) > c.Silence
				if gone {
					c.Say("agent %s is gone", m.Name)
				}
				return gone
			})
			c.beat()
			_ = c.conn.PublishRequest(callSubject, inbox, letter) // what fails is said again
		case m := <-c.letters:
			c.hear(m)
		case m := <-answers:
			c.answered(ctx, k, m.Data, refused)
		}
	}
	return nil
}

// answered takes an agent that is there.
func (c *coordinator) answered(ctx context.Context, k key, data []byte, refused map[string]string) {
	l, err := k.open(data, c.version)
	if l == nil || l.Kind != hereKind {
		return
	}
	var h here
	if l.read(&h) != nil || c.member(l.From) != nil {
		return
	}
	h.Name, h.Host, h.Refuses = clean(h.Name), clean(h.Host), clean(h.Refuses)
	if err != nil && h.Refuses == "" {
		h.Refuses = err.Error()
	}
	if h.Refuses != "" {
		if refused[l.From] != h.Refuses && len(refused) < maxRefused {
			refused[l.From] = h.Refuses
			c.Say("agent %s can't take part: %s", h.Name, h.Refuses)
		}
		return
	}
	m := &member{
		here: h, id: l.From, key: newKey(c.Secret, "session", c.run, l.From, h.Nonce), heard: time.Now(),
		pending: make(map[load.Phase][]load.Event),
	}
	for n := 2; c.named(m.Name); n++ {
		m.Name = fmt.Sprintf("%s-%d", h.Name, n)
	}
	var r reply
	// Those who are there already hear nothing meanwhile.
	if err := c.ask(ctx, m, c.Silence/2, takeKind, take{c.Silence}, &r); err != nil {
		c.Say("agent %s can't take part: %v", m.Name, err)
		return
	}
	c.crew = append(c.crew, m)
	text := "any number of connections"
	if m.Holds > 0 {
		text = format.Count(m.Holds) + " connections (" + clean(m.Wall) + ")"
	}
	if m.Most > 0 {
		text += fmt.Sprintf(", takes %s at most", format.Count(m.Most))
	}
	c.Say("agent %s, %s, carries %s", m.Name, m.Host, text)
}

func (c *coordinator) named(name string) bool {
	for _, m := range c.crew {
		if m.Name == name {
			return true
		}
	}
	return false
}

func (c *coordinator) member(id string) *member {
	for _, m := range c.crew {
		if m.id == id {
			return m
		}
	}
	return nil
}

// tooFew says who is there.
func (c *coordinator) tooFew(refused map[string]string) error {
	var names []string
	for _, m := range c.crew {
		names = append(names, m.Name)
	}
	text := ""
	if len(names) > 0 {
		text = ": " + strings.Join(names, ", ")
	}
	if len(refused) > 0 {
		text += fmt.Sprintf("; %d more can't take part", len(refused))
	}
	return fmt.Errorf("%d of %d agents after %v%s; start them with `myriad agent --nats URL`, with the same secret", len(c.crew), c.Agents, c.Wait, text)
}

const (
	askEvery = time.Second
	maxClock = 16 // round trips
)

// ask asks an agent until it answers, for a time at most.
func (c *coordinator) ask(ctx context.Context, m *member, most time.Duration, kind string, body, answer any) error {
	for end := time.Now().Add(most); ; {
		m.sent++
		data, err := m.key.write(c.version, kind, c.run, m.sent, body)
		if err != nil {
			return err
		}
		if longest := min(c.conn.MaxPayload(), maxLetter); int64(len(data)) > longest {
			return fmt.Errorf("its part of the configuration takes %d bytes; expected at most %d, the max_payload of NATS", len(data), longest)
		}
		one, cancel := context.WithTimeout(ctx, min(askEvery, most))
		msg, err := c.conn.RequestWithContext(one, agentSubject+m.id, data)
		cancel()
		if err == nil {
			var l *letter
			if l, err = m.key.open(msg.Data, c.version); err == nil && l.Kind == answered && l.Number > m.number {
				m.number, m.heard = l.Number, time.Now()
				return l.read(answer)
			}
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !time.Now().Before(end):
			return fmt.Errorf("it has not answered for %v", most)
		case errors.Is(err, nats.ErrNoResponders):
			time.Sleep(c.Silence / beatEvery) // at once, otherwise
		}
	}
}

// each calls f for each agent, at the same time, and names the first that fails.
func (c *coordinator) each(f func(i int, m *member) error) error {
	errs := make(chan error, len(c.crew))
	for i, m := range c.crew {
		go func() {
			err := f(i, m)
			if err != nil {
				err = fmt.Errorf("agent %s: %w", m.Name, err)
			}
			errs <- err
		}()
	}
	var first error
	for range c.crew {
		first = cmp.Or(first, <-errs)
	}
	return first
}

// compareClocks finds out what time it is at each agent.
func (c *coordinator) compareClocks(ctx context.Context) error {
	return c.each(func(_ int, m *member) error {
		var trips []trip
		for range maxClock {
			left := time.Now()
			var there clock
			if err := c.ask(ctx, m, c.Silence, clockKind, struct{}{}, &there); err != nil {
				return err
			}
			trips = append(trips, trip{left.Round(0), time.Now().Round(0), time.Unix(0, there.Came), time.Unix(0, there.Left)})
		}
		m.offset, m.uncertainty = compare(trips)
		return nil
	})
}

// divide gives each agent its part, and says which.
func (c *coordinator) divide(ctx context.Context) error {
	var all []here
	for _, m := range c.crew {
		all = append(all, m.here)
	}
	weights, err := shares(c.cfg.Total(), all)
	if err != nil {
		return err
	}
	own, ca := c.cfg, []byte(nil)
	if own.TLS != nil && own.TLS.CAFile != "" {
		if ca, err = os.ReadFile(own.TLS.CAFile); err != nil {
			return fmt.Errorf("agents: %w", err)
		}
		without := *own.TLS
		without.CAFile, own.TLS = "", &without
	}
	parts, err := own.Divide(weights...)
	if err != nil {
		return err
	}
	now := time.Now().Round(0)
	for i, m := range c.crew {
		m.connections = parts[i].Total()
		if p := parts[i].PubSub; p != nil {
			m.publishers, p.Since = max(p.Publishers, 1), now.Add(m.offset)
		}
	}
	err = c.each(func(i int, m *member) error {
		text, err := parts[i].MarshalJSON()
		if err != nil {
			return err
		}
		var r reply
		if err := c.ask(ctx, m, c.Silence, planKind, plan{text, ca}, &r); err != nil {
			return err
		}
		if r.Refuses != "" {
			return errors.New(clean(r.Refuses))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, m := range c.crew {
		ahead, way := m.offset, "ahead"
		if ahead < 0 {
			ahead, way = -ahead, "behind"
		}
		c.Say("agent %s: %s connections; its clock is %v ± %v %s", m.Name, format.Count(m.connections), format.Round(ahead), format.Round(m.uncertainty), way)
	}
	return nil
}

// beat tells each agent what is wanted of it.
func (c *coordinator) beat() {
	for _, m := range c.crew {
		c.order(m)
	}
}

func (c *coordinator) order(m *member) {
	m.sent++
	data, err := m.key.write(c.version, beatKind, c.run, m.sent, m.orders)
	if err == nil {
		_ = publish(c.conn, agentSubject+m.id, data) // it is said again
	}
}

// release lets the agents go.
func (c *coordinator) release() {
	for _, m := range c.crew {
		m.orders = orders{Stop: m.there(), Over: true}
		c.order(m)
	}
	_ = c.conn.FlushTimeout(writeTimeout) // who has not heard it hears nothing more
}

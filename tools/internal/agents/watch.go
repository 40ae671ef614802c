package agents

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/load"
)

// lead is how long ahead a common time is: longer than it takes to tell everybody.
func (c *coordinator) lead() time.Duration {
	most := time.Duration(0)
	for _, m := range c.crew {
		most = max(most, m.uncertainty)
	}
	return leastLead + 4*most
}

const leastLead = 50 * time.Millisecond

// watch has the agents load, and makes one run of what they tell.
func (c *coordinator) watch(ctx context.Context) (*load.Result, error) {
	start := time.Now().Add(c.lead()).Round(0)
	for _, m := range c.crew {
		m.heard = time.Now()
		m.orders.Start = start.Add(m.offset).UnixNano()
	}
	c.beat()
	c.timers = newTimers(ctx, time.Until(start), cmp.Or(c.cfg.ProgressEvery, time.Second), c.Silence/beatEvery)
	defer c.timers.stop()
	c.attend(func(m *member) bool { return !m.connected })
	conclude, failed := func(end *load.Result) *load.Result { return end }, error(nil)
	if c.cfg.Goal.Under > 0 {
		conclude, failed = c.search(ctx)
	}
	c.begin(0)
	c.attend(func(*member) bool { return true })
	result, err := c.conclude(ctx, conclude)
	return result, cmp.Or(err, failed)
}

// timers are what a coordinator waits for besides letters.
type timers struct {
	stopping <-chan struct{}  // closed, the run is to end; nil from then on
	patience <-chan time.Time // nil until then
	every    time.Duration
	first    *time.Timer // for intervals to be shown
	show     *time.Ticker
	beat     *time.Ticker
}

// newTimers makes timers for a run that begins in a while. Agents tell at times that follow from its start, so
// what all tell is here half an interval later.
func newTimers(ctx context.Context, in, every, beat time.Duration) *timers {
	t := &timers{stopping: ctx.Done(), every: every, first: time.NewTimer(in + every + every/2), show: time.NewTicker(time.Hour), beat: time.NewTicker(beat)}
	t.show.Stop()
	return t
}

func (t *timers) stop() {
	t.first.Stop()
	t.show.Stop()
	t.beat.Stop()
}

// attend listens to the agents as long as it waits for one that has something more to tell.
func (c *coordinator) attend(waits func(*member) bool) {
	t := c.timers
	for slices.ContainsFunc(c.crew, func(m *member) bool { return m.there() && waits(m) }) {
		select {
		case <-t.stopping:
			t.stopping, t.patience = nil, time.After(stopTime)
			for _, m := range c.crew {
				m.orders.Stop = true
			}
			c.beat()
		case <-t.patience:
			c.lose(func(*member) string { return fmt.Sprintf("no result within %v of the end", stopTime) })
		case m := <-c.letters:
			c.hear(m)
		case <-t.first.C:
			t.show.Reset(t.every)
			c.catchUp()
			c.show()
		case <-t.show.C:
			c.catchUp()
			c.show()
		case now := <-t.beat.C:
			c.catchUp()
			c.lose(func(m *member) string {
				if silent := now.Sub(m.heard); silent > c.Silence {
					return fmt.Sprintf("not heard of for %v", silent.Round(time.Millisecond))
				}
				return ""
			})
			c.beat()
		}
	}
}

// catchUp takes the letters that wait: to show intervals takes a while.
func (c *coordinator) catchUp() {
	for range len(c.letters) {
		c.hear(<-c.letters)
	}
}

// begin has the traffic begin on all at the same time: in a search so many messages a second, 0 for nothing
// more.
func (c *coordinator) begin(rate float64) {
	c.step++
	connections := 0
	for _, m := range c.crew {
		if m.there() {
			connections += m.connections
		}
	}
	begin := time.Now().Add(c.lead()).Round(0)
	for _, m := range c.crew {
		m.tried = nil
		m.orders.Begin, m.orders.Step = begin.Add(m.offset).UnixNano(), c.step
		m.orders.Rate = rate * float64(m.connections) / float64(max(connections, 1))
	}
	c.beat()
}

// errAlone ends a search that nobody is left for, as the results and the losses say.
var errAlone = errors.New("agents: nobody is left")

// search tries rates on all, and returns what makes of the last result that of the search.
func (c *coordinator) search(ctx context.Context) (conclude func(*load.Result) *load.Result, err error) {
	s, steps := load.NewSearch(c.cfg), 0
	err = s.Seek(func(rate float64) (*load.Result, int64, error) { return c.try(ctx, rate) }, func(step load.Step) {
		for _, m := range c.crew {
			if steps == 0 || step.Kept {
				m.best = m.tried
			}
		}
		steps++
		c.observe(&load.Event{Phase: load.Tried, Step: &step})
	})
	if errors.Is(err, errAlone) {
		err = nil
	}
	return s.Conclude, err
}

// try has all try a rate: once more with those who are left, where one is gone meanwhile.
func (c *coordinator) try(ctx context.Context, rate float64) (result *load.Result, open int64, err error) {
	for {
		there := func() (n int) {
			for _, m := range c.crew {
				if m.there() {
					n++
				}
			}
			return n
		}
		before := there()
		c.begin(rate)
		c.attend(func(m *member) bool { return m.tried == nil })
		switch {
		case ctx.Err() != nil:
			return nil, 0, context.Cause(ctx)
		case there() == 0:
			return nil, 0, errAlone
		case there() < before:
			continue
		}
		var results []*load.Result
		for _, m := range c.crew {
			if m.there() {
				results, open = append(results, m.tried), open+m.snapshot.Open
			}
		}
		result, err = load.Merge(results...)
		return result, open, err
	}
}

// lose gives up the agents that there is a reason for.
func (c *coordinator) lose(why func(*member) string) {
	for _, m := range c.crew {
		if !m.there() {
			continue
		}
		if reason := why(m); reason != "" {
			c.loseOne(m, reason)
		}
	}
	c.pass()
}

// loseOne gives up an agent, which is told to stop if it hears that.
func (c *coordinator) loseOne(m *member, why string) {
	m.lost, m.orders.Stop, m.orders.Over = why, true, true
	c.Say("agent %s is lost, with %s connections: %s", m.Name, format.Count(m.connections), why)
	if c.losses == nil {
		c.losses = make(map[string]int64)
	}
	c.losses["agent "+m.Name+" lost"] = 1
	c.order(m)
}

// hear takes a letter of an agent.
func (c *coordinator) hear(msg *nats.Msg) {
	var from letter
	if json.Unmarshal(msg.Data, &from) != nil {
		return
	}
	m := c.member(from.From)
	if m == nil || !m.there() {
		return
	}
	l, err := m.key.open(msg.Data, c.version)
	if err != nil || l.Number <= m.number {
		return
	}
	m.number, m.heard = l.Number, time.Now()
	var (
		t  told
		is state
	)
	switch {
	case l.Kind == eventKind && l.read(&t) == nil:
		c.told(m, t)
	case l.Kind == beatKind && l.read(&is) == nil:
		m.connected = m.connected || is.Connected
	}
}

// told takes an event of an agent.
func (c *coordinator) told(m *member, t told) {
	e := t.Event
	if e == nil {
		c.loseOne(m, cmp.Or(clean(t.Failed), "it has told nothing of its end"))
		c.pass()
		return
	}
	if e.Phase == load.Done {
		c.finished(m, e.Result, clean(t.Failed))
		c.pass()
		return
	}
	m.snapshot = e.Snapshot
	switch {
	case e.Phase == load.Measuring:
		m.measuring = ours(t.At, m.offset)
	case e.Phase == load.Began && e.Plan != nil:
		e.Plan.Host = m.Name + ": " + clean(e.Plan.Host)
	}
	if e.Phase == load.Progress {
		if e.Interval == nil {
			return
		}
		if len(m.intervals) == maxIntervals { // nobody has shown them
			m.intervals = m.intervals[1:]
		}
		m.intervals = append(m.intervals, *e)
		return
	}
	switch e.Phase {
	case load.Published:
		if len(e.Published) == m.publishers {
			m.published = e.Published
		}
		c.pass()
		return
	case load.Tried:
		if t.Step == c.step && m.tried == nil && e.Result != nil {
			m.tried = m.ours(e.Result)
		}
		return
	}
	if len(m.pending[e.Phase]) < maxIntervals {
		m.pending[e.Phase] = append(m.pending[e.Phase], *e)
	}
	m.connected = m.connected || e.Phase == load.Connected
	c.pass()
}

// finished takes a result, and lets the agent go.
func (c *coordinator) finished(m *member, result *load.Result, early string) {
	if result == nil {
		c.loseOne(m, "it has no result")
		return
	}
	m.result, m.ended, m.orders.Over = m.ours(result), early, true
	c.order(m)
}

// ours is a result that begins when it did by our clock, and whose limits name the agent.
func (m *member) ours(result *load.Result) *load.Result {
	result.Start = result.Start.Add(-m.offset)
	for i := range result.Limits {
		result.Limits[i].Evidence = "agent " + m.Name + ": " + result.Limits[i].Evidence
	}
	return result
}

// maxIntervals is how many events of a kind wait for those of other agents.
const maxIntervals = 256

// pass tells of the phases that all agents have come to.
func (c *coordinator) pass() {
	c.passPublished()
	for _, phase := range []load.Phase{load.Began, load.Connected, load.Checking, load.Checked, load.Heard, load.Measuring, load.Part, load.Measured, load.Exchanged} {
		for {
			var of []load.Event
			waits := false
			for _, m := range c.crew {
				switch {
				case len(m.pending[phase]) > 0:
					of = append(of, m.pending[phase][0])
				case m.there():
					waits = true
				}
			}
			if waits || len(of) == 0 {
				break
			}
			for _, m := range c.crew {
				if len(m.pending[phase]) > 0 {
					m.pending[phase] = m.pending[phase][1:]
				}
			}
			c.began = true // the first phase of all
			e := load.MergeEvents(of...)
			if phase == load.Part {
				c.receive(e.Received)
				continue
			}
			c.observe(e)
		}
	}
}

// passPublished tells all what all have published, as soon as that is known.
func (c *coordinator) passPublished() {
	if c.cfg.PubSub == nil || c.crew[0].orders.Published != nil || slices.ContainsFunc(c.crew, func(m *member) bool { return m.there() && m.published == nil }) {
		return
	}
	var all []int64
	for _, m := range c.crew {
		if m.published == nil { // it is lost
			m.published = slices.Repeat([]int64{-1}, m.publishers)
		}
		all = append(all, m.published...)
	}
	for _, m := range c.crew {
		m.orders.Published = all
	}
	c.beat()
}

// receive takes how many bytes a second all have received in a part of the window, which is over when that is
// steady.
func (c *coordinator) receive(rate float64) {
	if c.steady.Add(rate); !c.steady.Steady() {
		return
	}
	for _, m := range c.crew {
		m.orders.Enough = true
	}
	c.beat()
}

// observe tells of an event with what all agents have come to.
func (c *coordinator) observe(e *load.Event) {
	if e == nil || c.cfg.Observe == nil {
		return
	}
	e.Snapshot = load.Snapshot{}
	for _, m := range c.crew {
		if m.lost == "" {
			e.Snapshot.Add(m.snapshot)
		}
	}
	if e.Plan != nil {
		e.Plan.Seed, e.Plan.Connections = c.cfg.Seed, c.cfg.Total()
		if c.cfg.Goal.Under > 0 {
			e.Plan.Rate.PerSecond /= float64(len(c.crew)) // each has said where a search begins
		}
	}
	c.cfg.Observe(*e)
}

// show tells of the intervals that have come since the last time.
func (c *coordinator) show() {
	if !c.began {
		return
	}
	var parts []load.Event
	for _, m := range c.crew {
		if len(m.intervals) == 0 {
			continue
		}
		own := m.intervals[0]
		for _, next := range m.intervals[1:] {
			own.Interval.Join(*next.Interval)
		}
		m.intervals, parts = nil, append(parts, own)
	}
	e := load.MergeEvents(parts...)
	if e == nil {
		return
	}
	i := *e.Interval
	i.From, i.To = c.shown, max(c.shown, i.To)
	if i.Errors = maps.Clone(i.Errors); len(c.losses) > 0 && i.Errors == nil {
		i.Errors = make(map[string]int64)
	}
	maps.Copy(i.Errors, c.losses)
	if !c.cfg.Histograms {
		i.Histograms = nil // it has done its work
	}
	c.shown, c.losses, e.Interval = i.To, nil, &i
	c.observe(e)
}

// conclude makes one result of those of all.
func (c *coordinator) conclude(ctx context.Context, of func(end *load.Result) *load.Result) (*load.Result, error) {
	c.show()
	var results []*load.Result
	var early error
	first := time.Time{}
	for _, m := range c.crew {
		if m.result != nil {
			results = append(results, m.result)
			if m.ended != "" && early == nil {
				early = fmt.Errorf("agent %s: %s", m.Name, m.ended)
			}
		}
		if !m.measuring.IsZero() && (first.IsZero() || m.measuring.Before(first)) {
			first = m.measuring
		}
	}
	if len(results) == 0 {
		return nil, cmp.Or(context.Cause(ctx), fmt.Errorf("agents: all agents are lost; %s: %s", c.crew[0].Name, c.crew[0].lost))
	}
	result, err := load.Merge(results...)
	if err != nil {
		return nil, err
	}
	if result = of(result); c.cfg.Steady {
		result.Variation = c.steady.Variation()
	}
	result.Connections = c.cfg.Total()
	for _, m := range c.crew {
		result.Agents = append(result.Agents, m.about(first))
	}
	c.observe(&load.Event{Phase: load.Done, Result: result})
	return result, cmp.Or(context.Cause(ctx), early)
}

// about is what the result says of an agent.
func (m *member) about(first time.Time) load.Agent {
	a := load.Agent{
		Name: m.Name, Host: m.Host, CPUs: m.CPUs, Connections: m.connections,
		Offset: m.offset, Uncertainty: m.uncertainty, Lost: m.lost,
	}
	if !m.measuring.IsZero() {
		a.Behind = m.measuring.Sub(first)
	}
	if r := cmp.Or(m.best, m.result); r != nil {
		a.Connected, a.Rate, a.Latency, a.CPUShare = r.Connected, r.Rate(), r.Latency, r.CPUShare()
	} else {
		last := m.snapshot
		a.Last = &last
	}
	return a
}

package agents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/load"
)

// startLead returns how far in the future a common start is scheduled: longer than an order takes
// to reach all agents.
func (c *coordinator) startLead() time.Duration {
	worst := time.Duration(0)
	for _, m := range c.members {
		worst = max(worst, m.uncertainty)
	}
	return minLead + 4*worst
}

const minLead = 50 * time.Millisecond

func (c *coordinator) runAndMerge(ctx context.Context) (*load.Result, error) {
	start := time.Now().Add(c.startLead()).Round(0)
	for _, m := range c.members {
		m.heard = time.Now()
		m.orders.Start = start.Add(m.offset).UnixNano()
	}
	c.sendOrders()
	c.timers = newTimers(ctx, start, cmp.Or(c.cfg.ProgressEvery, time.Second), c.Silence/heartbeats)
	defer c.timers.stop()
	c.processWhile(func(m *member) bool { return !m.connected })
	conclude, failed := func(end *load.Result) *load.Result { return end }, error(nil)
	if c.cfg.Rate.Goal.Under > 0 {
		conclude, failed = c.searchRate(ctx)
	}
	c.beginStep(0)
	c.processWhile(func(*member) bool { return true })
	result, err := c.mergeResults(ctx, conclude)
	return result, cmp.Or(err, failed)
}

// timers are the coordinator's events other than messages.
type timers struct {
	stopping  <-chan struct{}  // closed when the run must end; nil afterwards
	patience  <-chan time.Time // nil until then
	every     time.Duration    // between observed intervals
	showAt    time.Time
	show      *time.Timer
	heartbeat *time.Ticker
}

// newTimers returns timers for a run that starts at a given time. Agents report at multiples of
// every after the start; half an interval later all reports have arrived.
func newTimers(ctx context.Context, start time.Time, every, heartbeat time.Duration) *timers {
	showAt := start.Add(every + every/2)
	return &timers{stopping: ctx.Done(), every: every, showAt: showAt, show: time.NewTimer(time.Until(showAt)), heartbeat: time.NewTicker(heartbeat)}
}

func (t *timers) stop() {
	t.show.Stop()
	t.heartbeat.Stop()
}

// processWhile processes messages while waiting returns true for an active agent.
func (c *coordinator) processWhile(waiting func(*member) bool) {
	t := c.timers
	for slices.ContainsFunc(c.activeMembers(), waiting) {
		select {
		case <-t.stopping:
			t.stopping, t.patience = nil, time.After(stopTime)
			for _, m := range c.members {
				m.orders.Stop = true
			}
			c.sendOrders()
		case <-t.patience:
			c.dropMembers(func(*member) string { return fmt.Sprintf("no result within %v of the end", stopTime) })
		case m := <-c.messages:
			c.handleMessage(m)
		case <-t.show.C:
			t.showAt = t.showAt.Add(t.every)
			t.show.Reset(time.Until(t.showAt))
			c.processQueued()
			c.observeInterval()
		case now := <-t.heartbeat.C:
			c.logWarning()
			c.processQueued()
			insecure := c.checkServer()
			c.dropMembers(func(m *member) string {
				if insecure != nil {
					return insecure.Error()
				}
				if silent := now.Sub(m.heard); silent > c.Silence {
					return fmt.Sprintf("not heard of for %v", silent.Round(time.Millisecond))
				}
				return ""
			})
			c.sendOrders()
		}
	}
}

// processQueued processes messages that queued up while intervals were observed.
func (c *coordinator) processQueued() {
	for range len(c.messages) {
		c.handleMessage(<-c.messages)
	}
}

// beginStep orders all agents to begin the next step of traffic at the same time. In a search, rate
// is the total of messages a second, 0 after the last step.
func (c *coordinator) beginStep(rate float64) {
	c.step++
	connections := 0
	for _, m := range c.activeMembers() {
		connections += m.connections
	}
	begin := time.Now().Add(c.startLead()).Round(0)
	for _, m := range c.members {
		m.tried = nil
		m.orders.Begin, m.orders.Step = begin.Add(m.offset).UnixNano(), c.step
		m.orders.Rate = rate * float64(m.connections) / float64(max(connections, 1))
	}
	c.sendOrders()
}

// errNoAgents ends a search without agents; the result, or mergeResults, reports why.
var errNoAgents = errors.New("agents: no agent is left")

// searchRate searches for the goal's rate. conclude derives the result of the search from the last
// result.
func (c *coordinator) searchRate(ctx context.Context) (conclude func(*load.Result) *load.Result, err error) {
	s, steps := load.NewSearch(c.cfg), 0
	err = s.Seek(func(rate float64) (*load.Result, int64, error) { return c.tryRate(ctx, rate) }, func(step load.Step) {
		for _, m := range c.members {
			if steps == 0 || step.Kept {
				m.best = m.tried
			}
		}
		steps++
		c.observeEvent(&load.Event{Phase: load.Tried, Step: &step})
	})
	if errors.Is(err, errNoAgents) {
		err = nil
	}
	return s.Conclude, err
}

// tryRate tries a rate, again if an agent was lost meanwhile.
func (c *coordinator) tryRate(ctx context.Context, rate float64) (result *load.Result, open int64, err error) {
	for {
		before := len(c.activeMembers())
		c.beginStep(rate)
		c.processWhile(func(m *member) bool { return m.tried == nil })
		switch {
		case ctx.Err() != nil:
			return nil, 0, context.Cause(ctx)
		case len(c.activeMembers()) == 0:
			return nil, 0, errNoAgents
		case len(c.activeMembers()) < before:
			continue
		}
		var results []*load.Result
		for _, m := range c.activeMembers() {
			results, open = append(results, m.tried), open+m.snapshot.Open
		}
		result, err = load.Merge(results...)
		return result, open, err
	}
}

func (c *coordinator) activeMembers() (active []*member) {
	for _, m := range c.members {
		if m.isActive() {
			active = append(active, m)
		}
	}
	return active
}

// dropMembers drops the active agents for which lossReason returns a reason.
func (c *coordinator) dropMembers(lossReason func(*member) string) {
	for _, m := range c.activeMembers() {
		if reason := lossReason(m); reason != "" {
			c.dropMember(m, reason)
		}
	}
	c.observeCommon()
}

// dropMember marks an agent as lost and orders it to stop, in case it still receives orders.
func (c *coordinator) dropMember(m *member, reason string) {
	m.lost, m.orders.Stop, m.orders.Over = reason, true, true
	c.Logf("agent %s is lost, with %s connections: %s", m.Name, format.Count(m.connections), reason)
	if c.losses == nil {
		c.losses = make(map[string]int64)
	}
	c.losses["agent "+m.Name+" lost"] = 1
	c.sendOrdersTo(m)
}

func (c *coordinator) handleMessage(msg *nats.Msg) {
	from, err := decodeMessage(msg.Data, c.version)
	if err != nil {
		return
	}
	m := c.findMember(from.From)
	if m == nil || !m.isActive() {
		return
	}
	m.heard = time.Now()
	var (
		t  report
		is agentState
	)
	switch {
	case from.Kind == eventKind && from.parseBody(&t) == nil:
		c.handleReport(m, t)
	case from.Kind == heartbeatKind && from.parseBody(&is) == nil:
		m.connected = m.connected || is.Connected
	}
}

// commonPhases are the phases that are observed once all agents have reported them.
var commonPhases = []load.Phase{load.Began, load.Connected, load.Checking, load.Checked, load.Heard, load.Measuring, load.Part, load.Measured, load.Exchanged}

func (c *coordinator) handleReport(m *member, t report) {
	e := t.Event
	if e == nil {
		c.dropMember(m, cmp.Or(sanitizeText(t.Failed), "it ended without a result"))
		c.observeCommon()
		return
	}
	if e.Phase != load.Done {
		m.snapshot = e.Snapshot
	}
	switch e.Phase {
	case load.Done:
		c.storeResult(m, e.Result, sanitizeText(t.Failed))
	case load.Progress:
		if e.Interval == nil {
			return
		}
		if len(m.intervals) == maxIntervals { // none has been observed
			m.intervals = m.intervals[1:]
		}
		m.intervals = append(m.intervals, *e)
		return
	case load.Published:
		if len(e.Published) == m.publishers {
			m.published = e.Published
		}
	case load.Tried:
		if t.Step == c.step && m.tried == nil && e.Result != nil {
			m.tried = m.localizeResult(e.Result)
		}
		return
	default:
		if !slices.Contains(commonPhases, e.Phase) || (e.Phase == load.Began) != (e.Plan != nil) {
			return
		}
		if e.Phase == load.Began {
			e.Plan.Host = m.Name + ": " + sanitizeText(e.Plan.Host)
		}
		if e.Phase == load.Measuring {
			m.measuring = toLocalTime(t.At, m.offset)
		}
		if len(m.pending[e.Phase]) < maxIntervals {
			m.pending[e.Phase] = append(m.pending[e.Phase], *e)
		}
		m.connected = m.connected || e.Phase == load.Connected
	}
	c.observeCommon()
}

func (c *coordinator) storeResult(m *member, result *load.Result, early string) {
	if result == nil {
		c.dropMember(m, "it has no result")
		return
	}
	m.result, m.ended, m.orders.Over = m.localizeResult(result), early, true
	c.sendOrdersTo(m)
}

// localizeResult converts the start of a result to the local clock, and adds the agent's name to
// its limits.
func (m *member) localizeResult(result *load.Result) *load.Result {
	result.Start = result.Start.Add(-m.offset)
	for i := range result.Limits {
		result.Limits[i].Evidence = "agent " + m.Name + ": " + result.Limits[i].Evidence
	}
	return result
}

// maxIntervals limits the events of a phase that wait for those of other agents.
const maxIntervals = 256

// observeCommon observes the phases that all active agents have reached.
func (c *coordinator) observeCommon() {
	c.sendPublishedTotals()
	for _, phase := range commonPhases {
		for events := c.takeCommonEvents(phase); events != nil; events = c.takeCommonEvents(phase) {
			c.began = true // the first phase of all
			if e := load.MergeEvents(events...); phase == load.Part {
				c.addReceiveRate(e.Received)
			} else {
				c.observeEvent(e)
			}
		}
	}
}

// takeCommonEvents removes and returns the next event of each agent in a phase, or nil if an active
// agent has not reported it.
func (c *coordinator) takeCommonEvents(phase load.Phase) (events []load.Event) {
	if slices.ContainsFunc(c.activeMembers(), func(m *member) bool { return len(m.pending[phase]) == 0 }) {
		return nil
	}
	for _, m := range c.members {
		if waiting := m.pending[phase]; len(waiting) > 0 {
			events, m.pending[phase] = append(events, waiting[0]), waiting[1:]
		}
	}
	return events
}

// sendPublishedTotals sends all agents the numbers of published messages, once all are known.
func (c *coordinator) sendPublishedTotals() {
	if c.cfg.PubSub == nil || c.members[0].orders.Published != nil || slices.ContainsFunc(c.activeMembers(), func(m *member) bool { return m.published == nil }) {
		return
	}
	var all []int64
	for _, m := range c.members {
		if m.published == nil { // it is lost
			m.published = slices.Repeat([]int64{-1}, m.publishers)
		}
		all = append(all, m.published...)
	}
	for _, m := range c.members {
		m.orders.Published = all
	}
	c.sendOrders()
}

// addReceiveRate adds the total receive rate in a part of the window. The window ends when the rate
// is steady.
func (c *coordinator) addReceiveRate(rate float64) {
	if c.steady.Add(rate); !c.steady.Steady() {
		return
	}
	for _, m := range c.members {
		m.orders.Steady = true
	}
	c.sendOrders()
}

// observeEvent passes an event to the configuration's observer, with the sum of all agents'
// snapshots.
func (c *coordinator) observeEvent(e *load.Event) {
	if e == nil || c.cfg.Observe == nil {
		return
	}
	e.Snapshot = load.Snapshot{}
	for _, m := range c.members {
		if m.lost == "" {
			e.Snapshot.Add(m.snapshot)
		}
	}
	if e.Plan != nil {
		e.Plan.Seed, e.Plan.Connections = c.cfg.Seed, c.cfg.Total()
		if c.cfg.Rate.Goal.Under > 0 && e.Plan.Rate != nil {
			e.Plan.Rate.PerSecond /= float64(len(c.members)) // each plan has the first rate of the search
		}
	}
	c.cfg.Observe(*e)
}

// observeInterval observes the sum of the intervals that have arrived since the last call.
func (c *coordinator) observeInterval() {
	if !c.began {
		return
	}
	var parts []load.Event
	for _, m := range c.members {
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
	i.From, i.To = c.observedUntil, max(c.observedUntil, i.To)
	if i.Errors = maps.Clone(i.Errors); len(c.losses) > 0 && i.Errors == nil {
		i.Errors = make(map[string]int64)
	}
	maps.Copy(i.Errors, c.losses)
	if !c.cfg.Histograms {
		i.Histograms = nil
	}
	c.observedUntil, c.losses, e.Interval = i.To, nil, &i
	c.observeEvent(e)
}

// mergeResults merges the agents' results, and applies convert to the merged result.
func (c *coordinator) mergeResults(ctx context.Context, convert func(end *load.Result) *load.Result) (*load.Result, error) {
	c.observeInterval()
	var results []*load.Result
	var early error
	first := time.Time{}
	for _, m := range c.members {
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
		return nil, cmp.Or(context.Cause(ctx), fmt.Errorf("agents: all agents are lost; %s: %s", c.members[0].Name, c.members[0].lost))
	}
	result, err := load.Merge(results...)
	if err != nil {
		return nil, err
	}
	if result = convert(result); c.cfg.Steady {
		result.Variation = c.steady.Variation()
	}
	result.Connections = c.cfg.Total()
	for _, m := range c.members {
		result.Agents = append(result.Agents, m.resultEntry(first))
	}
	c.observeEvent(&load.Event{Phase: load.Done, Result: result})
	return result, cmp.Or(context.Cause(ctx), early)
}

// resultEntry returns the agent's entry in the result; first is when the first window began.
func (m *member) resultEntry(first time.Time) load.Agent {
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

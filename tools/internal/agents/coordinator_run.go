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

// startDelay returns the time between the coordinator's order to start and the common start of all agents.
func (c *coordinator) startDelay() time.Duration {
	worst := time.Duration(0)
	for _, m := range c.members {
		worst = max(worst, m.uncertainty)
	}
	return minLead + 4*worst
}

const minLead = 50 * time.Millisecond

func (c *coordinator) runStepsAndMergeResults(ctx context.Context) (*load.Result, error) {
	start := time.Now().Add(c.startDelay()).Round(0)
	for _, m := range c.members {
		m.heard = time.Now()
		m.orders.Start = start.Add(m.offset).UnixNano()
	}
	c.sendOrdersToAll()
	c.timers = newCoordinatorTimers(ctx, start, cmp.Or(c.cfg.ProgressEvery, time.Second), c.Silence/heartbeats)
	defer c.timers.stop()
	c.processEventsWhile(func(m *memberAgent) bool { return !m.connected })
	conclude, failed := func(end *load.Result) *load.Result { return end }, error(nil)
	if c.cfg.Rate.Goal.Under > 0 {
		conclude, failed = c.searchRate(ctx)
	}
	c.orderNextStep(0)
	c.processEventsWhile(func(*memberAgent) bool { return true })
	result, err := c.mergeReceivedResultsAndEmitDone(ctx, conclude)
	return result, cmp.Or(err, failed)
}

// coordinatorTimers contains everything that a coordinator waits for in addition to messages from agents.
type coordinatorTimers struct {
	stopping  <-chan struct{}  // closed when the run must end; nil after the agents have been told
	patience  <-chan time.Time // limits the wait for the end; nil until the run must end
	every     time.Duration    // time between observed intervals
	showAt    time.Time
	show      *time.Timer
	heartbeat *time.Ticker
}

// newCoordinatorTimers returns timers for a run that begins at the time start. Each agent sends a report every
// observeEvery. The timer in the field show fires half of observeEvery after the agents should have sent a report,
// because the messages may be late.
func newCoordinatorTimers(ctx context.Context, start time.Time, observeEvery, heartbeatEvery time.Duration) *coordinatorTimers {
	showAt := start.Add(observeEvery + observeEvery/2)
	return &coordinatorTimers{stopping: ctx.Done(), every: observeEvery, showAt: showAt, show: time.NewTimer(time.Until(showAt)), heartbeat: time.NewTicker(heartbeatEvery)}
}

func (t *coordinatorTimers) stop() {
	t.show.Stop()
	t.heartbeat.Stop()
}

// processEventsWhile processes messages and timers while isWaitingFor returns true for any active agent. An agent is
// active until its result has arrived or it is lost.
func (c *coordinator) processEventsWhile(isWaitingFor func(*memberAgent) bool) {
	t := c.timers
	for slices.ContainsFunc(c.activeMembers(), isWaitingFor) {
		select {
		case <-t.stopping:
			t.stopping, t.patience = nil, time.After(stopTime)
			for _, m := range c.members {
				m.orders.Stop = true
			}
			c.sendOrdersToAll()
		case <-t.patience:
			c.stopLostMembersAndProcessPhases(func(*memberAgent) string { return fmt.Sprintf("no result within %v of the end", stopTime) })
		case m := <-c.messages:
			c.processAgentMessage(m)
		case <-t.show.C:
			t.showAt = t.showAt.Add(t.every)
			t.show.Reset(time.Until(t.showAt))
			c.processQueuedMessages()
			c.mergeAvailableIntervalsAndEmit()
		case now := <-t.heartbeat.C:
			c.logQueuedNATSWarningUnlessRepeated()
			c.processQueuedMessages()
			insecure := c.requireServerAuthIfExternal()
			c.stopLostMembersAndProcessPhases(func(m *memberAgent) string {
				if insecure != nil {
					return insecure.Error()
				}
				if silent := now.Sub(m.heard); silent > c.Silence {
					return fmt.Sprintf("not heard of for %v", silent.Round(time.Millisecond))
				}
				return ""
			})
			c.sendOrdersToAll()
		}
	}
}

func (c *coordinator) processQueuedMessages() {
	for range len(c.messages) {
		c.processAgentMessage(<-c.messages)
	}
}

// orderNextStep orders all agents to begin the next step together. During a search, totalRate is the rate that the
// agents try together, in messages per second. After a search, and in a run without a search, totalRate is 0.
func (c *coordinator) orderNextStep(totalRate float64) {
	c.step++
	connections := 0
	for _, m := range c.activeMembers() {
		connections += m.connections
	}
	begin := time.Now().Add(c.startDelay()).Round(0)
	for _, m := range c.members {
		m.tried = nil
		m.orders.Begin, m.orders.Step = begin.Add(m.offset).UnixNano(), c.step
		m.orders.Rate = totalRate * float64(m.connections) / float64(max(connections, 1))
	}
	c.sendOrdersToAll()
}

var errNoAgents = errors.New("agents: no agent is left")

// searchRate searches for the highest message rate that meets cfg.Rate.Goal. The caller must pass the result of the
// whole run to the returned function conclude. conclude returns the result of the best step of the search. If no step
// has ended, conclude returns the result of the whole run.
func (c *coordinator) searchRate(ctx context.Context) (conclude func(*load.Result) *load.Result, err error) {
	s, steps := load.NewSearch(c.cfg), 0
	err = s.Seek(func(rate float64) (*load.Result, int64, error) { return c.measureRateUntilNoneLost(ctx, rate) }, func(step load.Step) {
		for _, m := range c.members {
			if steps == 0 || step.Kept {
				m.best = m.tried
			}
		}
		steps++
		c.emitEventWithTotals(&load.Event{Phase: load.Tried, Step: &step})
	})
	if errors.Is(err, errNoAgents) {
		err = nil
	}
	return s.BestStepOrWholeRunResult, err
}

// measureRateUntilNoneLost makes the agents send at a message rate and returns the merged result. If an agent is lost
// during the measurement, it repeats the measurement with the other agents. openConns is the number of open connections
// of all agents.
func (c *coordinator) measureRateUntilNoneLost(ctx context.Context, rate float64) (result *load.Result, openConns int64, err error) {
	for {
		before := len(c.activeMembers())
		c.orderNextStep(rate)
		c.processEventsWhile(func(m *memberAgent) bool { return m.tried == nil })
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
			results, openConns = append(results, m.tried), openConns+m.snapshot.Open
		}
		result, err = load.Merge(results...)
		return result, openConns, err
	}
}

func (c *coordinator) activeMembers() (active []*memberAgent) {
	for _, m := range c.members {
		if m.isReportPending() {
			active = append(active, m)
		}
	}
	return active
}

func (c *coordinator) stopLostMembersAndProcessPhases(lossReasonOrEmpty func(*memberAgent) string) {
	for _, m := range c.activeMembers() {
		if reason := lossReasonOrEmpty(m); reason != "" {
			c.markLostAndOrderItToStop(m, reason)
		}
	}
	c.processPhasesReachedByAll()
}

func (c *coordinator) markLostAndOrderItToStop(m *memberAgent, reason string) {
	m.lost, m.orders.Stop, m.orders.Over = reason, true, true
	c.Logf("agent %s is lost, with %s connections: %s", m.Name, format.Count(m.connections), reason)
	if c.losses == nil {
		c.losses = make(map[string]int64)
	}
	c.losses["agent "+m.Name+" lost"] = 1
	c.sendOrdersTo(m)
}

func (c *coordinator) processAgentMessage(msg *nats.Msg) {
	from, err := decodeMessageHeader(msg.Data, c.version)
	if err != nil {
		return
	}
	m := c.findMember(from.From)
	if m == nil || !m.isReportPending() {
		return
	}
	m.heard = time.Now()
	var (
		t  report
		is agentState
	)
	switch {
	case from.Kind == eventKind && from.decodeBodyStrictly(&t) == nil:
		c.processAgentReport(m, t)
	case from.Kind == heartbeatKind && from.decodeBodyStrictly(&is) == nil:
		m.connected = m.connected || is.Connected
	}
}

// commonPhases lists the phases that all agents go through together. When every active agent has sent its event of such
// a phase, the coordinator merges these events into one.
var commonPhases = []load.Phase{load.Began, load.Connected, load.Checking, load.Checked, load.Heard, load.Measuring, load.Part, load.Measured, load.Exchanged}

func (c *coordinator) processAgentReport(m *memberAgent, eventOrFailure report) {
	e := eventOrFailure.Event
	if e == nil {
		c.markLostAndOrderItToStop(m, cmp.Or(sanitizeAndTruncate(eventOrFailure.Failed), "it ended without a result"))
		c.processPhasesReachedByAll()
		return
	}
	if e.Phase != load.Done {
		m.snapshot = e.Snapshot
	}
	switch e.Phase {
	case load.Done:
		c.releaseWithResultOrMarkLost(m, e.Result, sanitizeAndTruncate(eventOrFailure.Failed))
	case load.Progress:
		if e.Interval == nil {
			return
		}
		if len(m.intervals) == maxIntervals { // no interval has been observed yet
			m.intervals = m.intervals[1:]
		}
		m.intervals = append(m.intervals, *e)
		return
	case load.Published:
		if len(e.Published) == m.publishers {
			m.published = e.Published
		}
	case load.Tried:
		if eventOrFailure.Step == c.step && m.tried == nil && e.Result != nil {
			m.tried = m.toLocalClockAndNameLimits(e.Result)
		}
		return
	default:
		if !slices.Contains(commonPhases, e.Phase) || (e.Phase == load.Began) != (e.Plan != nil) {
			return
		}
		if e.Phase == load.Began {
			e.Plan.Host = m.Name + ": " + sanitizeAndTruncate(e.Plan.Host)
		}
		if e.Phase == load.Measuring {
			m.measuring = peerTimeToLocal(eventOrFailure.At, m.offset)
		}
		if len(m.pending[e.Phase]) < maxIntervals {
			m.pending[e.Phase] = append(m.pending[e.Phase], *e)
		}
		m.connected = m.connected || e.Phase == load.Connected
	}
	c.processPhasesReachedByAll()
}

func (c *coordinator) releaseWithResultOrMarkLost(m *memberAgent, resultOrNil *load.Result, earlyEndReason string) {
	if resultOrNil == nil {
		c.markLostAndOrderItToStop(m, "it has no result")
		return
	}
	m.result, m.ended, m.orders.Over = m.toLocalClockAndNameLimits(resultOrNil), earlyEndReason, true
	c.sendOrdersTo(m)
}

// toLocalClockAndNameLimits converts result.Start from the agent's clock to the local clock, and adds the agent's name
// to the evidence in result.Limits. It changes result in place and returns it.
func (m *memberAgent) toLocalClockAndNameLimits(result *load.Result) *load.Result {
	result.Start = result.Start.Add(-m.offset)
	for i := range result.Limits {
		result.Limits[i].Evidence = "agent " + m.Name + ": " + result.Limits[i].Evidence
	}
	return result
}

// maxIntervals is the maximum number of events per agent and phase that the coordinator stores. The coordinator stores
// an event until the other agents have sent theirs, and then merges these events.
const maxIntervals = 256

func (c *coordinator) processPhasesReachedByAll() {
	c.sendPublishedCountsIfComplete()
	for _, phase := range commonPhases {
		for events := c.takeEventsIfAllReached(phase); events != nil; events = c.takeEventsIfAllReached(phase) {
			c.began = true // Began is the first of all phases
			if e := load.MergeEvents(events...); phase == load.Part {
				c.addRateAndNotifyMembersIfSteady(e.Received)
			} else {
				c.emitEventWithTotals(e)
			}
		}
	}
}

// takeEventsIfAllReached removes the next event of a phase from each agent's queue, and returns these events. If the
// queue of any active agent is empty, it removes nothing and returns nil.
func (c *coordinator) takeEventsIfAllReached(phase load.Phase) (events []load.Event) {
	if slices.ContainsFunc(c.activeMembers(), func(m *memberAgent) bool { return len(m.pending[phase]) == 0 }) {
		return nil
	}
	for _, m := range c.members {
		if waiting := m.pending[phase]; len(waiting) > 0 {
			events, m.pending[phase] = append(events, waiting[0]), waiting[1:]
		}
	}
	return events
}

// sendPublishedCountsIfComplete checks whether all active agents have reported how many messages their publishers sent.
// If so, it sends the counts of all publishers to all agents. It sends them only once. The counts of lost agents are
// -1.
func (c *coordinator) sendPublishedCountsIfComplete() {
	if c.cfg.PubSub == nil || c.members[0].orders.Published != nil || slices.ContainsFunc(c.activeMembers(), func(m *memberAgent) bool { return m.published == nil }) {
		return
	}
	var all []int64
	for _, m := range c.members {
		if m.published == nil { // a lost agent
			m.published = slices.Repeat([]int64{-1}, m.publishers)
		}
		all = append(all, m.published...)
	}
	for _, m := range c.members {
		m.orders.Published = all
	}
	c.sendOrdersToAll()
}

func (c *coordinator) addRateAndNotifyMembersIfSteady(rate float64) {
	if c.steady.Add(rate); !c.steady.Steady() {
		return
	}
	for _, m := range c.members {
		m.orders.Steady = true
	}
	c.sendOrdersToAll()
}

func (c *coordinator) emitEventWithTotals(e *load.Event) {
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
			e.Plan.Rate.PerSecond /= float64(len(c.members)) // the sum counts the search's first rate once per agent
		}
	}
	c.cfg.Observe(*e)
}

func (c *coordinator) mergeAvailableIntervalsAndEmit() {
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
	c.emitEventWithTotals(e)
}

func (c *coordinator) mergeReceivedResultsAndEmitDone(ctx context.Context, convertMerged func(end *load.Result) *load.Result) (*load.Result, error) {
	c.mergeAvailableIntervalsAndEmit()
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
		return nil, cmp.Or(context.Cause(ctx), fmt.Errorf("agents: all agents are lost; agent %s: %s", c.members[0].Name, c.members[0].lost))
	}
	result, err := load.Merge(results...)
	if err != nil {
		return nil, err
	}
	if result = convertMerged(result); c.cfg.Steady {
		result.Variation = c.steady.Variation()
	}
	result.Connections = c.cfg.Total()
	for _, m := range c.members {
		result.Agents = append(result.Agents, m.buildResultEntry(first))
	}
	c.emitEventWithTotals(&load.Event{Phase: load.Done, Result: result})
	return result, cmp.Or(context.Cause(ctx), early)
}

// buildResultEntry returns the agent's entry in Result.Agents. firstWindowStart is the start of the earliest window.
func (m *memberAgent) buildResultEntry(firstWindowStart time.Time) load.Agent {
	a := load.Agent{
		Name: m.Name, Host: m.Host, CPUs: m.CPUs, Connections: m.connections,
		Offset: m.offset, Uncertainty: m.uncertainty, Lost: m.lost,
	}
	if !m.measuring.IsZero() {
		a.Behind = m.measuring.Sub(firstWindowStart)
	}
	if r := cmp.Or(m.best, m.result); r != nil {
		a.Connected, a.Rate, a.Latency, a.CPUUtilization = r.Connected, r.Rate(), r.Latency, r.GeneratorCPUUtilization()
	} else {
		last := m.snapshot
		a.Last = &last
	}
	return a
}

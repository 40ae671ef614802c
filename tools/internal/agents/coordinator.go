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

// Options configures a coordinator and its connection to its agents.
type Options struct {
	// Agents is the number of agents, from 1 to load.MaxGenerators.
	Agents int
	// NATS is an external server. If its URL is empty, the coordinator starts a server at Listen (default
	// DefaultListen), with ListenTLS if that is set. That server requires Token. A Token is mandatory unless Listen
	// is on loopback.
	NATS
	Listen    string
	ListenTLS *tls.Config
	// JoinTimeout limits the time in which all agents must join. The default is one minute.
	JoinTimeout time.Duration
	// Silence is how long an agent or the coordinator may send nothing before its peer considers it lost. The default
	// is DefaultSilence. A value below 100 ms is raised to 100 ms. A value above one minute is lowered to one minute.
	Silence time.Duration
	// Logf receives one line per event, on the goroutine of RunOnAgents. Nil drops the lines.
	Logf func(format string, args ...any)
	// StartLocal starts agents on this machine and connects them to the NATS server at url. It returns a function that
	// stops these agents. If StartLocal is nil, agents must be started separately.
	StartLocal func(url string) (stop func(), err error)

	version string // replaces Myriad's version in tests
}

// coordinator is the state of one run on several agents. It belongs to the goroutine of RunOnAgents.
type coordinator struct {
	Options
	cfg           load.Config
	run           string
	server        *natsd.Server // nil with an external server
	conn          *nats.Conn
	stopLocal     func() // nil without local agents
	messages      chan *nats.Msg
	warnings      chan string // warnings of the coordinator's own server
	warned        string      // the last warning that was logged
	members       []*memberAgent
	began         bool // an event of the run has been observed
	step          int  // number of the current step of traffic, from 1
	timers        *coordinatorTimers
	steady        load.Steadiness  // decides whether the sum of all receive rates is steady
	observedUntil time.Duration    // end of the last observed interval
	losses        map[string]int64 // losses of agents since observedUntil
}

type memberAgent struct {
	agentInfo
	id          string
	connections int // number of connections assigned to the agent, including publishers
	publishers  int // number of publishers assigned to the agent
	offset      time.Duration
	uncertainty time.Duration
	heard       time.Time
	orders      orders

	snapshot  load.Snapshot
	pending   map[load.Phase][]load.Event // events that not all agents have reported
	connected bool
	intervals []load.Event // intervals since the last observed one
	measuring time.Time    // start of the agent's window, by the local clock
	tried     *load.Result // result of the current step, nil until received
	best      *load.Result // result of the best step of a search
	published []int64      // message counts of the agent's publishers, nil until received
	result    *load.Result
	ended     string // reason why the agent's run ended early
	lost      string // reason why the agent's result is missing
}

func (m *memberAgent) isReportPending() bool { return m.result == nil && m.lost == "" }

// RunOnAgents makes agents generate load together, and returns their merged result. It corresponds to load.Run, which
// generates load in this process. An agent that is lost during the run contributes nothing to the Result, except to the
// fields Agents and Connections.
//
// The Result is nil if all agents are lost, or if the run does not begin. The run does not begin if, for example, too
// few agents join, an agent refuses its part, or a NATS server that is not on a loopback address accepts clients
// without credentials.
//
// When ctx ends, all agents end their runs early. RunOnAgents then returns the Result so far, and the cause of ctx as
// the error.
func RunOnAgents(ctx context.Context, o Options, cfg load.Config) (resultSoFar *load.Result, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if o.Agents < 1 || o.Agents > load.MaxGenerators {
		return nil, fmt.Errorf("agents: %d agents; expected 1 to %d", o.Agents, load.MaxGenerators)
	}
	if _, err := cfg.Divide(slices.Repeat([]float64{1}, o.Agents)...); err != nil {
		return nil, err
	}
	o.JoinTimeout, o.Silence, o.Listen = cmp.Or(o.JoinTimeout, time.Minute), cmp.Or(o.Silence, DefaultSilence), cmp.Or(o.Listen, DefaultListen)
	o.Silence = min(max(o.Silence, minSilence), maxSilence)
	if err := o.RequireCredentialsUnlessLoopback(); err != nil {
		return nil, fmt.Errorf("agents: %w", err)
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	o.version = cmp.Or(o.version, version.MyriadVersion())
	c := &coordinator{Options: o, cfg: cfg, run: newRandomID(), messages: make(chan *nats.Msg, maxQueued), warnings: make(chan string, 1)}
	defer c.stopLocalAgentsAndClose()
	if err := c.startOrConnectNATSAndLocalAgents(); err != nil {
		return nil, err
	}
	defer c.stopAndReleaseAgents()
	if err := c.callAndAdmitAgents(ctx); err != nil {
		return nil, err
	}
	c.sendOrdersToAll() // the agents that joined first have waited for the others
	if err := c.divideLoadAndPrepareMembers(ctx); err != nil {
		return nil, err
	}
	return c.runStepsAndMergeResults(ctx)
}

// RequireCredentialsUnlessLoopback returns an error if o specifies a NATS server that is not on a loopback address, but
// no credentials for this server.
func (o *Options) RequireCredentialsUnlessLoopback() error {
	if o.URL != "" {
		return o.NATS.RequireCredentialsUnlessLoopback()
	}
	if listen := cmp.Or(o.Listen, DefaultListen); o.Token == "" && !isLoopbackAddr(listen) {
		return fmt.Errorf("the NATS server at %s is not on loopback, and any client that reaches it could control agents; expected a secret (%s) or a loopback address", listen, SecretVariable)
	}
	return nil
}

// startOrConnectNATSAndLocalAgents connects to NATS, and starts a NATS server and local agents if the options require
// them. The caller must call stopLocalAgentsAndClose afterwards, even if startOrConnectNATSAndLocalAgents returns an
// error.
func (c *coordinator) startOrConnectNATSAndLocalAgents() (err error) {
	url, connect := c.URL, func(all ...nats.Option) (*nats.Conn, error) { return nats.Connect(c.URL, all...) }
	if c.URL == "" {
		c.server, err = natsd.Start(natsd.Config{Addr: c.Listen, Token: c.Token, MaxPayload: maxMessage, TLS: c.ListenTLS, Warn: c.keepWarningIfNonePending})
		if err != nil {
			return fmt.Errorf("agents: %w", err)
		}
		connect, url = c.server.Connect, "nats://"+loopbackForUnspecified(c.server.Addr())
		if c.ListenTLS != nil {
			url = "tls" + strings.TrimPrefix(url, "nats")
		}
	}
	ignore := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}) // lost messages are sent again
	if c.conn, err = connect(append(c.natsConnOptions("myriad load"), ignore)...); err != nil {
		return fmt.Errorf("agents: NATS at %s: %s", RedactCredentialsInURLs(url), c.explainNATSAuthError(err))
	}
	if err := c.requireServerAuthIfExternal(); err != nil {
		return err
	}
	if _, err = c.conn.ChanSubscribe(runSubject+c.run, c.messages); err != nil {
		return fmt.Errorf("agents: NATS: %w", err)
	}
	if c.StartLocal == nil {
		c.Logf("waiting at %s for %d agents", RedactCredentialsInURLs(url), c.Agents)
		return nil
	}
	if c.stopLocal, err = c.StartLocal(url); err != nil {
		return fmt.Errorf("agents: %w", err)
	}
	return nil
}

func (c *coordinator) stopLocalAgentsAndClose() {
	if c.stopLocal != nil {
		c.stopLocal()
	}
	if c.conn != nil {
		c.conn.Close()
	}
	if c.server != nil {
		c.server.Close()
	}
}

// requireServerAuthIfExternal checks a NATS server that the coordinator has not started itself. It returns an error if
// this server accepts clients without credentials, unless the server is on a loopback address.
func (c *coordinator) requireServerAuthIfExternal() error {
	if c.server != nil {
		return nil
	}
	return requireServerAuthOrLoopback(c.conn)
}

// keepWarningIfNonePending stores a warning of the NATS server until the coordinator logs it. If a warning is already
// stored, the new one is dropped. keepWarningIfNonePending is safe for concurrent use.
func (c *coordinator) keepWarningIfNonePending(line string) {
	select {
	case c.warnings <- line:
	default:
	}
}

func (c *coordinator) logQueuedNATSWarningUnlessRepeated() {
	select {
	case line := <-c.warnings:
		if line != c.warned {
			c.Logf("NATS: %s", line)
		}
		c.warned = line
	default:
	}
}

func loopbackForUnspecified(a net.Addr) string {
	at, ok := a.(*net.TCPAddr)
	if !ok || !at.IP.IsUnspecified() {
		return a.String()
	}
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(at.Port))
}

func (c *coordinator) newCallMessage() call {
	q := call{Targets: append([]string{c.cfg.Target}, c.cfg.Also...), Model: c.cfg.Model, Connections: c.cfg.Total()}
	if c.cfg.Graceful && c.cfg.Lifetime > 0 {
		q.Closing = int(float64(q.Connections) / c.cfg.Lifetime.Seconds() / float64(c.Agents))
	}
	return q
}

const (
	callEvery  = 500 * time.Millisecond
	maxRefused = load.MaxGenerators
)

func (c *coordinator) callAndAdmitAgents(ctx context.Context) error {
	answers := make(chan *nats.Msg, maxQueued)
	inbox := nats.NewInbox()
	sub, err := c.conn.ChanSubscribe(inbox, answers)
	if err != nil {
		return fmt.Errorf("agents: NATS: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	question, err := encodeMessage(c.version, callKind, c.run, c.newCallMessage())
	if err != nil {
		return fmt.Errorf("agents: %w", err)
	}
	again := time.NewTicker(min(callEvery, c.Silence/heartbeats))
	defer again.Stop()
	patience := time.After(c.JoinTimeout)
	refused := make(map[string]string)
	for _ = c.conn.PublishRequest(callSubject, inbox, question); len(c.members) < c.Agents; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-patience:
			return c.errTooFewAgents(refused)
		case now := <-again.C:
			if err := c.requireServerAuthIfExternal(); err != nil {
				return err
			}
			c.logQueuedNATSWarningUnlessRepeated()
			c.members = slices.DeleteFunc(c.members, func(m *memberAgent) bool {
				gone := now.Sub(m.heard) > c.Silence
				if gone {
					c.Logf("agent %s has disconnected", m.Name)
				}
				return gone
			})
			c.sendOrdersToAll()
			_ = c.conn.PublishRequest(callSubject, inbox, question) // the next call of this loop repeats it
		case msg := <-c.messages:
			c.processAgentMessage(msg)
		case msg := <-answers:
			c.admitAgentFromReply(ctx, msg.Data, refused)
		}
	}
	return nil
}

func (c *coordinator) admitAgentFromReply(ctx context.Context, replyData []byte, refusalsByAgent map[string]string) {
	reply, err := decodeMessageHeader(replyData, c.version)
	if reply == nil || reply.Kind != infoKind || c.findMember(reply.From) != nil {
		return
	}
	var info agentInfo
	if e := reply.decodeBodyStrictly(&info); e != nil && err == nil {
		return
	}
	info.Name, info.Host, info.Wall, info.Refuses = sanitizeAndTruncate(info.Name), sanitizeAndTruncate(info.Host), sanitizeAndTruncate(info.Wall), sanitizeAndTruncate(info.Refuses)
	if err != nil {
		info.Refuses = cmp.Or(info.Refuses, err.Error())
	}
	if info.Refuses != "" {
		if refusalsByAgent[reply.From] != info.Refuses && len(refusalsByAgent) < maxRefused {
			refusalsByAgent[reply.From] = info.Refuses
			c.Logf("agent %s cannot take part: %s", info.Name, info.Refuses)
		}
		return
	}
	m := &memberAgent{agentInfo: info, id: reply.From, heard: time.Now(), pending: make(map[load.Phase][]load.Event)}
	for n := 2; slices.ContainsFunc(c.members, func(o *memberAgent) bool { return o.Name == m.Name }); n++ {
		m.Name = fmt.Sprintf("%s-%d", info.Name, n)
	}
	// Meanwhile, no heartbeat is sent to the other members, so the time is limited.
	if err := c.requestUntilAnswered(ctx, m, c.Silence/2, clockKind, clockRequest{c.Silence}, new(clock)); err != nil {
		c.Logf("agent %s cannot take part: %v", m.Name, err)
		return
	}
	c.members = append(c.members, m)
	text := "any number of connections"
	if m.Holds > 0 {
		text = format.Count(m.Holds) + " connections (" + m.Wall + ")"
	}
	if m.Most > 0 {
		text += fmt.Sprintf(", takes %s at most", format.Count(m.Most))
	}
	c.Logf("agent %s on %s can hold %s", m.Name, m.Host, text)
}

func (c *coordinator) findMember(id string) *memberAgent {
	for _, m := range c.members {
		if m.id == id {
			return m
		}
	}
	return nil
}

func (c *coordinator) errTooFewAgents(refusalsByAgent map[string]string) error {
	text, separator := "", ": "
	for _, m := range c.members {
		text, separator = text+separator+m.Name, ", "
	}
	if len(refusalsByAgent) > 0 {
		text += fmt.Sprintf("; %d more cannot take part", len(refusalsByAgent))
	}
	if c.warned != "" {
		text += "; " + c.warned
	}
	return fmt.Errorf("%d of %d agents joined within %v%s; start them with `myriad agent --nats URL` and the same secret", len(c.members), c.Agents, c.JoinTimeout, text)
}

const (
	askEvery = time.Second
	maxClock = 16 // maximum number of clock requests per agent
)

func (c *coordinator) requestUntilAnswered(ctx context.Context, m *memberAgent, timeout time.Duration, kind string, body, answer any) error {
	data, err := encodeMessage(c.version, kind, c.run, body)
	if err != nil {
		return err
	}
	if longest := min(c.conn.MaxPayload(), maxMessage); int64(len(data)) > longest {
		return fmt.Errorf("configuration for the agent has %d bytes; expected at most %d, the max_payload of the NATS server", len(data), longest)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	for {
		once, cancel := context.WithTimeout(ctx, askEvery)
		msg, err := c.conn.RequestWithContext(once, agentSubject+m.id, data)
		cancel()
		if err == nil {
			reply, err := decodeMessageHeader(msg.Data, c.version)
			if err != nil || reply.Kind != replyKind || reply.From != m.id || reply.decodeBodyStrictly(answer) != nil {
				return errors.New("malformed answer")
			}
			m.heard = time.Now()
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, nats.ErrNoResponders) {
			time.Sleep(c.Silence / heartbeats) // avoids a busy loop
		}
	}
}

func (c *coordinator) divideLoadAndPrepareMembers(ctx context.Context) error {
	var all []agentInfo
	for _, m := range c.members {
		all = append(all, m.agentInfo)
	}
	weights, err := divideConnsByCPUsWithinLimits(c.cfg.Total(), all)
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
	now, errs := time.Now().Round(0), make(chan error, len(parts))
	for i, m := range c.members {
		go func() { errs <- c.measureClockAndSendPart(ctx, m, parts[i], ca, now) }()
	}
	for range parts {
		err = cmp.Or(err, <-errs)
	}
	if err != nil {
		return err
	}
	for _, m := range c.members {
		ahead, way := m.offset, "ahead"
		if ahead < 0 {
			ahead, way = -ahead, "behind"
		}
		c.Logf("agent %s: %s connections; its clock is %v ± %v %s", m.Name, format.Count(m.connections), format.RoundToThreeDigits(ahead), format.RoundToThreeDigits(m.uncertainty), way)
	}
	return nil
}

// measureClockAndSendPart measures the clock offset of an agent, and sends the agent its part of the load. It may be
// called concurrently for different agents.
func (c *coordinator) measureClockAndSendPart(ctx context.Context, m *memberAgent, part load.Config, ca []byte, timeOrigin time.Time) error {
	var trips []roundTrip
	for range maxClock {
		var there clock
		left := time.Now()
		if err := c.requestUntilAnswered(ctx, m, c.Silence, clockKind, clockRequest{c.Silence}, &there); err != nil {
			return fmt.Errorf("agent %s: %w", m.Name, err)
		}
		trips = append(trips, roundTrip{left.Round(0), time.Now().Round(0), time.Unix(0, there.Came), time.Unix(0, there.Left)})
	}
	m.offset, m.uncertainty = mostCertainOffset(trips)
	m.connections = part.Total()
	if p := part.PubSub; p != nil {
		m.publishers, p.Since = max(p.Publishers, 1), timeOrigin.Add(m.offset)
	}
	text, err := part.MarshalJSON()
	if err != nil {
		return err
	}
	var r planReply
	if err := c.requestUntilAnswered(ctx, m, c.Silence, planKind, plan{text, ca}, &r); err != nil {
		return fmt.Errorf("agent %s: %w", m.Name, err)
	}
	if r.Refuses != "" {
		return fmt.Errorf("agent %s: %s", m.Name, sanitizeAndTruncate(r.Refuses))
	}
	return nil
}

func (c *coordinator) sendOrdersToAll() {
	for _, m := range c.members {
		c.sendOrdersTo(m)
	}
}

func (c *coordinator) sendOrdersTo(m *memberAgent) {
	if data, err := encodeMessage(c.version, heartbeatKind, c.run, m.orders); err == nil {
		_ = publishIfNotTooLarge(c.conn, agentSubject+m.id, data) // the next heartbeat repeats the orders
	}
}

func (c *coordinator) stopAndReleaseAgents() {
	for _, m := range c.members {
		m.orders = orders{Stop: m.isReportPending(), Over: true}
		c.sendOrdersTo(m)
	}
	_ = c.conn.FlushTimeout(writeTimeout) // agents that miss the message will notice the silence
}

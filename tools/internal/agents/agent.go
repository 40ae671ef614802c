package agents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/tools/internal/procfs"
	"github.com/myriad-go/myriad/tools/internal/version"
	"github.com/myriad-go/myriad/tools/load"
)

// Agent generates load for a coordinator, together with other agents. It waits for coordinators, and takes part in one
// run at a time. The fields must not be changed while Serve runs.
type Agent struct {
	// NATS is the server to which coordinators connect. The default URL is DefaultURL.
	NATS
	// Name is the agent's name in reports. The default is the name of the machine.
	Name string
	// Sources lists the local addresses from which the agent connects. It has the same meaning as load.Config.Sources.
	Sources []netip.Addr
	// Allow lists the permitted targets, at most MaxAllowed. An empty Allow permits all TCP servers and no unix
	// sockets.
	Allow []AllowedTarget
	// MaxConnections limits the agent's connections in a run. With 0, only the machine limits them.
	MaxConnections int
	// EventDir is a directory in which the agent stores the events of each run, in a file named ID.jsonl. ID is the
	// run's ID. If EventDir is "", events are not stored.
	EventDir string
	// Once makes Serve return after one run. If Once is set, Serve also returns an error if NATS is unreachable for
	// DefaultSilence while no run is in progress.
	Once bool
	// Logf receives one line per event. Several goroutines may call it concurrently. Nil drops the lines.
	Logf func(format string, args ...any)
	// Observe receives the events of each run, as load.Config.Observe does. It can be nil.
	Observe func(load.Event)

	version string // replaces Myriad's version in tests
}

type agentWorker struct {
	*Agent
	conn             *nats.Conn
	id               string
	calls            chan *nats.Msg
	messages         chan *nats.Msg
	run              *agentRun // nil without a run
	served           bool      // a run has ended
	lastCall         string    // ID of the run whose call was answered last; info is that answer
	info             agentInfo
	heartbeat        *time.Ticker
	lastLogged       atomic.Pointer[string] // last line that logUnlessRepeated has logged
	unreachableSince time.Time              // when NATS became unreachable; zero if it is reachable
}

// Serve takes part in runs until ctx ends, and then returns nil. If a run is in progress when ctx ends, Serve ends the
// agent's load early, sends the result to the coordinator, and waits up to 20 s for the coordinator to receive the
// result.
//
// If NATS is unreachable, Serve tries to connect at most twice per second. Serve returns an error if the NATS server is
// not on a loopback address and requires no credentials.
func (a *Agent) Serve(ctx context.Context) error {
	w := &agentWorker{Agent: new(*a), id: newRandomID(), calls: make(chan *nats.Msg, 16), messages: make(chan *nats.Msg, maxQueued)}
	w.URL, w.version = cmp.Or(a.URL, DefaultURL), cmp.Or(a.version, version.MyriadVersion())
	if w.Logf == nil {
		w.Logf = func(string, ...any) {}
	}
	host, _ := os.Hostname()
	w.Name = cmp.Or(a.Name, host, "agent")
	if len(w.Name) > maxName || strings.ContainsFunc(w.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("agents: --name is %q; expected at most %d bytes without control characters", w.Name, maxName)
	}
	if len(w.Allow) > MaxAllowed {
		return fmt.Errorf("agents: --allow is given %d times; expected at most %d", len(w.Allow), MaxAllowed)
	}
	if err := w.RequireCredentialsUnlessLoopback(); err != nil {
		return fmt.Errorf("agents: %w", err)
	}
	if err := w.connectNATSAndSubscribe(); err != nil {
		return err
	}
	defer w.conn.Close()
	return w.processUntilStopped(ctx)
}

const maxName = 64

func (w *agentWorker) connectNATSAndSubscribe() (err error) {
	ready := func(c *nats.Conn) {
		w.lastLogged.Store(nil)
		if requireServerAuthOrLoopback(c) == nil { // otherwise, processUntilStopped returns the error
			w.Logf("ready as %s for the coordinator at %s", w.Name, c.ConnectedAddr())
		}
	}
	w.conn, err = nats.Connect(w.URL, append(w.natsConnOptions("myriad agent "+w.Name),
		nats.RetryOnFailedConnect(true), nats.ConnectHandler(ready), nats.ReconnectHandler(ready),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { w.logUnreachable(err) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			w.logUnlessRepeated("NATS: %s", w.explainNATSAuthError(err))
		}))...)
	if err != nil {
		return fmt.Errorf("agents: NATS at %s: %w", RedactCredentialsInURLs(w.URL), err)
	}
	if _, err = w.conn.ChanSubscribe(callSubject, w.calls); err == nil {
		_, err = w.conn.ChanSubscribe(agentSubject+w.id, w.messages)
	}
	if err != nil {
		w.conn.Close()
		return fmt.Errorf("agents: NATS: %w", err)
	}
	return nil
}

func (w *agentWorker) logUnlessRepeated(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if last := w.lastLogged.Swap(&line); last == nil || *last != line {
		w.Logf("%s", line)
	}
}

func (w *agentWorker) logUnreachable(err error) {
	if err != nil && !errors.Is(err, nats.ErrNoServers) { // the cause is reported separately
		w.logUnlessRepeated("waiting for NATS at %s: %s", RedactCredentialsInURLs(w.URL), w.explainNATSAuthError(err))
	}
}

// processUntilStopped processes messages until ctx ends. If a run is in progress when ctx ends, processUntilStopped
// continues until the coordinator has the result, but at most for stopTime. With Agent.Once, it returns after one run.
func (w *agentWorker) processUntilStopped(ctx context.Context) error {
	w.heartbeat = time.NewTicker(DefaultSilence / heartbeats)
	defer w.heartbeat.Stop()
	defer w.cancelAndLeaveRun("")
	stopping, leaving := ctx.Done(), (<-chan time.Time)(nil)
	for {
		var over <-chan report
		if w.run != nil {
			over = w.run.over
		}
		var call, msg *nats.Msg
		select {
		case <-stopping:
			if w.run == nil || !w.run.started {
				return nil
			}
			stopping, leaving = nil, time.After(stopTime)
			w.run.cancelLoadForReason("the agent was stopped")
		case <-leaving:
			return nil
		case call = <-w.calls:
		case msg = <-w.messages:
		case last := <-over:
			w.recordAndSendFinalReport(&last)
		case now := <-w.heartbeat.C:
			w.sendHeartbeatOrLeaveLostRun(now)
		}
		if err := requireServerAuthOrLoopback(w.conn); err != nil { // before a message of the new server is processed
			return err
		}
		if call != nil {
			w.answerRollCall(ctx, call)
		}
		if msg != nil {
			w.processMessageJoiningIfIdle(ctx, msg, time.Now())
		}
		if w.run == nil && (ctx.Err() != nil || w.Once && w.served) {
			return nil
		}
		if w.Once && w.run == nil && !w.unreachableSince.IsZero() && time.Since(w.unreachableSince) > DefaultSilence {
			return fmt.Errorf("agents: cannot reach NATS at %s; expected the address of the coordinator or of a NATS server", RedactCredentialsInURLs(w.URL))
		}
	}
}

// stopTime limits the wait for results when a run must end early. An agent waits until the coordinator has its result,
// and the coordinator waits for the results of its agents.
const stopTime = 20 * time.Second

func (w *agentWorker) recordAndSendFinalReport(finalReport *report) {
	if w.run.last = finalReport; finalReport.Failed != "" {
		finalReport.Failed = cmp.Or(w.run.endReason, finalReport.Failed)
	}
	how := finalReport.Failed
	if finalReport.Event != nil {
		how = cmp.Or(how, fmt.Sprintf("%d answered", finalReport.Event.Result.Answered))
	}
	w.Logf("run %s has ended: %s", shortID(w.run.id), how)
	w.run.sendPendingReportOrHeartbeat()
}

func (w *agentWorker) sendHeartbeatOrLeaveLostRun(now time.Time) {
	if w.conn.IsConnected() {
		w.unreachableSince = time.Time{}
	} else {
		w.logUnreachable(w.conn.LastError()) // authorization errors are not reported elsewhere
		if w.unreachableSince.IsZero() {
			w.unreachableSince = now
		}
	}
	if w.run == nil {
		return
	}
	if silent := now.Sub(w.run.heard); silent > w.run.silence {
		w.Logf("run %s: no message from the coordinator for %v; ending the run", shortID(w.run.id), silent.Round(time.Millisecond))
		w.cancelAndLeaveRun("the coordinator is lost")
		return
	}
	w.run.sendPendingReportOrHeartbeat()
}

func (w *agentWorker) cancelAndLeaveRun(reason string) {
	if w.run == nil {
		return
	}
	w.run.cancelLoadForReason(reason)
	w.run.running.Wait()
	w.run, w.lastCall, w.served = nil, "", true
	w.heartbeat.Reset(DefaultSilence / heartbeats)
}

func (a *Agent) newAgentInfo() agentInfo {
	return agentInfo{Name: a.Name, Host: fmt.Sprintf("%d CPUs, %s", runtime.NumCPU(), runtime.GOOS), Machine: bootIDOrHostname(), CPUs: min(runtime.NumCPU(), runtime.GOMAXPROCS(0))}
}

func bootIDOrHostname() string {
	if boot, err := procfs.ReadSysctl("kernel.random.boot_id"); err == nil {
		return boot
	}
	host, _ := os.Hostname()
	return host
}

func (w *agentWorker) answerRollCall(ctx context.Context, msg *nats.Msg) {
	m, err := decodeMessageHeader(msg.Data, w.version)
	if m == nil || m.Kind != callKind || w.run != nil && w.run.id == m.From {
		return
	}
	var c call
	info := w.newAgentInfo()
	switch {
	case err != nil:
		info.Refuses = fmt.Sprintf("version %s differs from the version %s of the coordinator", cmp.Or(w.version, "(devel)"), cmp.Or(sanitizeAndTruncate(m.Version), "(devel)"))
		w.logUnlessRepeated("refused a coordinator: %s", info.Refuses)
	case w.run != nil:
		info.Refuses = "already in another run"
	case w.lastCall == m.From:
		info = w.info
	case m.decodeBodyStrictly(&c) != nil:
		return
	default:
		info = w.examineMachineForCall(ctx, c)
		w.lastCall, w.info = m.From, info
	}
	if data, err := encodeMessage(w.version, infoKind, w.id, info); err == nil {
		_ = publishIfNotTooLarge(w.conn, msg.Reply, data) // if the reply is lost, the call is repeated
	}
}

func sanitizeAndTruncate(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\ufffd' {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > maxText {
		text = text[:maxText] + "…"
	}
	return text
}

const maxText = 512

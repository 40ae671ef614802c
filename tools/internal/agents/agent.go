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

// Agent waits for coordinators and runs its parts of their loads, one after the other. Its fields must not be changed
// while it serves.
type Agent struct {
	// NATS is the server at which it meets coordinators. The default of its URL is DefaultURL.
	NATS
	// Name identifies the agent for people. Default: the name of the machine.
	Name string
	// Sources are the local addresses to connect from, as in load.Config.
	Sources []netip.Addr
	// Allow lists the targets that it may load, at most MaxAllowed. Default: every TCP server, and no unix socket.
	Allow []Allowed
	// MaxConnections limits the connections of a run. Default 0: the limit that its doctor finds.
	MaxConnections int
	// Keep is a directory to which the events of each run are written, as RUN.jsonl. Default: none.
	Keep string
	// Once makes Serve return after one run, or if NATS can't be reached for DefaultSilence.
	Once bool
	// Say receives a line for everything that happens, from several goroutines. Default: the lines are dropped.
	Say func(format string, args ...any)
	// Observe receives the events of each run, as that of load.Config does. Default: none.
	Observe func(load.Event)

	version string // of Myriad, for tests
}

// worker is an Agent that serves.
type worker struct {
	*Agent
	conn      *nats.Conn
	id        string
	calls     chan *nats.Msg
	messages  chan *nats.Msg
	run       *agentRun // nil for none
	served    bool      // a run has ended
	lastCall  string    // the run that called last, and info the reply to it
	info      agentInfo
	heartbeat *time.Ticker
	said      atomic.Pointer[string] // the last line of sayOnce
	lost      time.Time              // when NATS became unreachable, zero if it isn't
}

// Serve takes part in runs until ctx ends. That ends the current run too, and the coordinator gets its result first.
// Serve reconnects to NATS at most twice a second. It returns an error if NATS requires no credentials although it is
// not on loopback.
func (a *Agent) Serve(ctx context.Context) error {
	w := &worker{Agent: new(*a), id: newID(), calls: make(chan *nats.Msg, 16), messages: make(chan *nats.Msg, maxQueued)}
	w.URL, w.version = cmp.Or(a.URL, DefaultURL), cmp.Or(a.version, version.MyriadVersion())
	if w.Say == nil {
		w.Say = func(string, ...any) {}
	}
	host, _ := os.Hostname()
	w.Name = cmp.Or(a.Name, host, "agent")
	if len(w.Name) > maxName || strings.ContainsFunc(w.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("agents: the name %q; expected at most %d bytes, without control characters", w.Name, maxName)
	}
	if len(w.Allow) > MaxAllowed {
		return fmt.Errorf("agents: %d targets are allowed; expected at most %d", len(w.Allow), MaxAllowed)
	}
	if err := w.Check(); err != nil {
		return fmt.Errorf("agents: %w", err)
	}
	if err := w.connect(); err != nil {
		return err
	}
	defer w.conn.Close()
	return w.serve(ctx)
}

// maxName limits names, in bytes.
const maxName = 64

// connect starts to connect to NATS.
func (w *worker) connect() (err error) {
	ready := func(c *nats.Conn) {
		w.said.Store(nil)
		if checkServer(c) == nil { // otherwise serve returns
			w.Say("ready, as %s, for the coordinator at %s", w.Name, c.ConnectedAddr())
		}
	}
	w.conn, err = nats.Connect(w.URL, append(w.options("myriad agent "+w.Name),
		nats.RetryOnFailedConnect(true), nats.ConnectHandler(ready), nats.ReconnectHandler(ready),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { w.unreachable(err) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { w.sayOnce("NATS: %s", w.explain(err)) }))...)
	if err != nil {
		return fmt.Errorf("agents: NATS at %s: %w", redact(w.URL), err)
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

// sayOnce passes a line to Say unless it equals the last one.
func (w *worker) sayOnce(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if last := w.said.Swap(&line); last == nil || *last != line {
		w.Say("%s", line)
	}
}

// unreachable reports why NATS can't be reached.
func (w *worker) unreachable(err error) {
	if err != nil && !errors.Is(err, nats.ErrNoServers) { // that has a cause, which is reported too
		w.sayOnce("waiting for NATS at %s: %s", redact(w.URL), w.explain(err))
	}
}

// serve processes messages until ctx has ended and the coordinator has the result of the current run.
func (w *worker) serve(ctx context.Context) error {
	w.heartbeat = time.NewTicker(DefaultSilence / heartbeats)
	defer w.heartbeat.Stop()
	defer w.leave("")
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
			w.run.end("the agent was stopped")
		case <-leaving:
			return nil
		case call = <-w.calls:
		case msg = <-w.messages:
		case last := <-over:
			w.finished(&last)
		case now := <-w.heartbeat.C:
			w.tick(now)
		}
		if err := checkServer(w.conn); err != nil { // before a message of that server is processed
			return err
		}
		if call != nil {
			w.called(ctx, call)
		}
		if msg != nil {
			w.handle(ctx, msg, time.Now())
		}
		if w.run == nil && (ctx.Err() != nil || w.Once && w.served) {
			return nil
		}
		if w.Once && w.run == nil && !w.lost.IsZero() && time.Since(w.lost) > DefaultSilence {
			return fmt.Errorf("agents: NATS at %s can't be reached", redact(w.URL))
		}
	}
}

// stopTime limits the end of a run whose result is to be told.
const stopTime = 20 * time.Second

// finished tells the coordinator the result of the run.
func (w *worker) finished(last *report) {
	if w.run.last = last; last.Failed != "" {
		last.Failed = cmp.Or(w.run.why, last.Failed)
	}
	how := last.Failed
	if last.Event != nil {
		how = cmp.Or(how, fmt.Sprintf("%d answered", last.Event.Result.Answered))
	}
	w.Say("run %s: over, %s", short(w.run.id), how)
	w.run.tell()
}

// tick sends a heartbeat, and ends the run of a lost coordinator.
func (w *worker) tick(now time.Time) {
	if w.conn.IsConnected() {
		w.lost = time.Time{}
	} else {
		w.unreachable(w.conn.LastError()) // an authorization error is reported nowhere else
		if w.lost.IsZero() {
			w.lost = now
		}
	}
	if w.run == nil {
		return
	}
	if silent := now.Sub(w.run.heard); silent > w.run.silence {
		w.Say("run %s: nothing heard of the coordinator for %v; the run ends", short(w.run.id), silent.Round(time.Millisecond))
		w.leave("the coordinator is lost")
		return
	}
	w.run.tell()
}

// leave ends the run and waits for it.
func (w *worker) leave(why string) {
	if w.run == nil {
		return
	}
	w.run.end(why)
	w.run.running.Wait()
	w.run, w.lastCall, w.served = nil, "", true
	w.heartbeat.Reset(DefaultSilence / heartbeats)
}

// about returns the description of the agent and its machine.
func (a *Agent) about() agentInfo {
	return agentInfo{Name: a.Name, Host: fmt.Sprintf("%d CPUs, %s", runtime.NumCPU(), runtime.GOOS), Machine: machine(), CPUs: min(runtime.NumCPU(), runtime.GOMAXPROCS(0))}
}

// machine identifies the machine until it is restarted.
func machine() string {
	if boot, err := procfs.ReadSysctl("kernel.random.boot_id"); err == nil {
		return boot
	}
	host, _ := os.Hostname()
	return host
}

// called replies to a call.
func (w *worker) called(ctx context.Context, msg *nats.Msg) {
	m, err := decode(msg.Data, w.version)
	if m == nil || m.Kind != callKind || w.run != nil && w.run.id == m.From {
		return
	}
	var c call
	info := w.about()
	switch {
	case err != nil:
		info.Refuses = fmt.Sprintf("it has version %s, and the coordinator %s", cmp.Or(w.version, "(devel)"), cmp.Or(clean(m.Version), "(devel)"))
		w.sayOnce("refused a coordinator: %s", info.Refuses)
	case w.run != nil:
		info.Refuses = "it is in another run"
	case w.lastCall == m.From:
		info = w.info
	case m.read(&c) != nil:
		return
	default:
		info = w.examine(ctx, c)
		w.lastCall, w.info = m.From, info
	}
	if data, err := encode(w.version, infoKind, w.id, info); err == nil {
		_ = publish(w.conn, msg.Reply, data) // it calls again
	}
}

// clean makes a received text fit to be shown.
func clean(text string) string {
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

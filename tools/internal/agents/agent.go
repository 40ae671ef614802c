package agents

import (
	"bytes"
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

	"github.com/myriad-go/myriad/tools/internal/version"
	"github.com/myriad-go/myriad/tools/load"
)

// Agent loads what a coordinator has it load, one run after the other. Its fields are not to be changed
// while it serves.
type Agent struct {
	// NATS is where to meet. Its URL is DefaultURL by default.
	NATS
	// Name is what the coordinator calls it. Default: the name of the machine.
	Name string
	// Secret is what the coordinator has to know; "" for none.
	Secret string
	// Sources are the local addresses to connect from, as in load.Config.
	Sources []netip.Addr
	// Allow is what it may load, at most MaxAllowed. Default: every TCP server, and no unix socket.
	Allow []Allowed
	// MaxConnections is the most connections that it opens in a run. Default 0: as many as its
	// doctor says.
	MaxConnections int
	// Keep is a directory to which the events of each run are written, as RUN.jsonl. Default: none.
	Keep string
	// Once has Serve return after one run, or when NATS can't be reached for DefaultSilence.
	Once bool
	// Say is told what happens, a line at a time, on several goroutines; what strangers can cause, once a second.
	// Default: nobody is.
	Say func(format string, args ...any)
	// Observe gets the events of each run, as that of load.Config does. Default: nobody does.
	Observe func(load.Event)

	version string // of Myriad, as tests have it
}

// servant is an Agent that serves.
type servant struct {
	*Agent
	warn    func(format string, args ...any) // Say, for what strangers can cause
	conn    *nats.Conn
	id      string
	nonce   string // for the next session
	calls   chan *nats.Msg
	letters chan *nats.Msg
	session *session // nil for none
	// lastRun is the run that called last, and answer what it was told.
	lastRun string
	answer  here
	beat    *time.Ticker
	trouble atomic.Pointer[string] // why NATS can't be reached, as it was said last
	gone    time.Time              // since when NATS can't be reached, zero while it can
}

// Serve takes part in runs until ctx ends, which ends the run that is going on too: then what came of it
// is told the coordinator first. While NATS can't be reached it tries again, twice a second at the most.
func (a *Agent) Serve(ctx context.Context) error {
	own := *a
	own.URL = cmp.Or(a.URL, DefaultURL)
	if own.Say == nil {
		own.Say = func(string, ...any) {}
	}
	if own.version == "" {
		own.version = version.Myriad()
	}
	host, _ := os.Hostname()
	own.Name = cmp.Or(a.Name, host, "agent")
	if len(own.Name) > maxName || strings.ContainsFunc(own.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("agents: the name %q; expected at most %d bytes, without control characters", own.Name, maxName)
	}
	if len(own.Allow) > MaxAllowed {
		return fmt.Errorf("agents: %d targets are allowed; expected at most %d", len(own.Allow), MaxAllowed)
	}
	s := &servant{
		Agent: &own, warn: rateLimited(own.Say), id: randomID(), nonce: randomID(),
		calls: make(chan *nats.Msg, 16), letters: make(chan *nats.Msg, maxLetters),
	}
	if err := s.connect(); err != nil {
		return err
	}
	defer s.conn.Close()
	return s.serve(ctx)
}

// maxName is how long names are that are shown, in bytes.
const maxName = 64

// connect begins to connect.
func (s *servant) connect() (err error) {
	s.conn, err = nats.Connect(s.URL, append(s.NATS.options("myriad agent "+s.Name, s.Secret),
		nats.RetryOnFailedConnect(true), nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { s.unreachable(err) }),
		nats.ConnectHandler(func(c *nats.Conn) { s.Say("ready, as %s, for the coordinator at %s", s.Name, c.ConnectedAddr()) }),
		nats.ReconnectHandler(func(c *nats.Conn) { s.Say("ready again, for the coordinator at %s", c.ConnectedAddr()) }),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { s.trouble.Store(new("")) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { s.warn("NATS: %s", explain(err)) }))...)
	if err != nil {
		return fmt.Errorf("agents: NATS at %s: %w", s.shown(), err)
	}
	if _, err = s.conn.ChanSubscribe(callSubject, s.calls); err == nil {
		_, err = s.conn.ChanSubscribe(agentSubject+s.id, s.letters)
	}
	if err != nil {
		s.conn.Close()
		return fmt.Errorf("agents: NATS: %w", err)
	}
	return nil
}

// unreachable says why NATS can't be reached, once for each reason.
func (s *servant) unreachable(err error) {
	if err == nil || errors.Is(err, nats.ErrNoServers) { // that has a cause, which comes too
		return
	}
	if was := s.trouble.Swap(new(err.Error())); was == nil || *was != err.Error() {
		s.Say("waiting for NATS at %s: %s", s.shown(), explain(err))
	}
}

// explain says what an error of NATS may come from.
func explain(err error) string {
	text := strings.TrimPrefix(err.Error(), "nats: ")
	if errors.Is(err, nats.ErrAuthorization) {
		text += "; expected the secret of the coordinator, or in the URL the user of the server"
	}
	return text
}

// shown is the URL without what is not to be seen.
func (s *servant) shown() string { return redact(s.URL) }

// redact leaves passwords out of URLs.
func redact(urls string) string {
	var shown []string
	for u := range strings.SplitSeq(urls, ",") {
		if scheme, rest, ok := strings.Cut(u, "://"); ok {
			if _, host, found := strings.Cut(rest, "@"); found {
				u = scheme + "://…@" + host
			}
		}
		shown = append(shown, u)
	}
	return strings.Join(shown, ",")
}

// serve reads letters until ctx has ended, and then until the coordinator knows what came of the run.
func (s *servant) serve(ctx context.Context) error {
	s.beat = time.NewTicker(DefaultSilence / beatEvery)
	defer s.beat.Stop()
	defer s.leave("")
	stopping, leaving := ctx.Done(), (<-chan time.Time)(nil)
	for {
		var over <-chan told
		if s.session != nil {
			over = s.session.over
		}
		select {
		case <-stopping:
			if s.session == nil || !s.session.started {
				return nil
			}
			stopping, leaving = nil, time.After(stopTime)
			s.session.end("the agent was stopped")
		case <-leaving:
			return nil
		case m := <-s.calls:
			s.called(ctx, m)
		case m := <-s.letters:
			s.obey(ctx, m, time.Now())
		case last := <-over:
			s.session.last = &last
			how := last.Failed
			if last.Event != nil {
				how = cmp.Or(how, fmt.Sprintf("%d answered", last.Event.Result.Answered))
			}
			s.Say("run %s: over, %s", s.session.short(), how)
			s.session.tell()
		case now := <-s.beat.C:
			s.tick(now)
		}
		if s.session == nil && (ctx.Err() != nil || s.Once && s.nonce == "") {
			return nil
		}
		if s.Once && s.session == nil && !s.gone.IsZero() && time.Since(s.gone) > DefaultSilence {
			return fmt.Errorf("agents: NATS at %s can't be reached", s.shown())
		}
	}
}

// stopTime bounds how long an end takes whose results are to be told: the run's own, and the telling.
const stopTime = 20 * time.Second

// tick sends a beat, and ends the session of a coordinator that is gone.
func (s *servant) tick(now time.Time) {
	switch {
	case s.conn.IsConnected():
		s.gone = time.Time{}
	default:
		s.unreachable(s.conn.LastError()) // who is not let in isn't told otherwise
		if s.gone.IsZero() {
			s.gone = now
		}
	}
	if s.session == nil {
		return
	}
	if silent := now.Sub(s.session.heard); silent > s.session.silence {
		s.Say("run %s: nothing heard of the coordinator for %v; the run ends", s.session.short(), silent.Round(time.Millisecond))
		s.leave("the coordinator is gone")
		return
	}
	s.session.tell()
}

// leave ends the session, and waits for its run.
func (s *servant) leave(why string) {
	if s.session == nil {
		return
	}
	s.session.end(why)
	s.session.running.Wait()
	s.session.remove()
	s.session, s.lastRun = nil, ""
	s.beat.Reset(DefaultSilence / beatEvery)
	if s.nonce = randomID(); s.Once {
		s.nonce = "" // no more
	}
}

// about is what an agent says of itself.
func (a *Agent) about() here {
	return here{Name: a.Name, Host: fmt.Sprintf("%d CPUs, %s", runtime.NumCPU(), runtime.GOOS), Machine: machine(), CPUs: min(runtime.NumCPU(), runtime.GOMAXPROCS(0))}
}

// machine names the machine, as it is since it was started.
func machine() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil {
		return string(bytes.TrimSpace(boot))
	}
	host, _ := os.Hostname()
	return host
}

// called answers a call.
func (s *servant) called(ctx context.Context, m *nats.Msg) {
	k := newKey(s.Secret, "call")
	l, err := k.open(m.Data, s.version)
	answer := s.about()
	switch {
	case l == nil:
		return
	case s.session != nil && s.session.run == l.From:
		return // it is in it
	case err != nil:
		answer.Refuses = err.Error()
		if errors.Is(err, errVersion) {
			answer.Refuses = fmt.Sprintf("it has version %s, and the coordinator %s", cmp.Or(s.version, "(devel)"), cmp.Or(clean(l.Version), "(devel)"))
		}
		if s.lastRun != l.From {
			s.warn("refused a coordinator: %s", answer.Refuses)
		}
		s.lastRun = l.From
	case s.session != nil:
		answer.Refuses = "it is in another run"
	case s.lastRun != l.From:
		var c call
		if l.read(&c) != nil {
			return
		}
		s.lastRun, s.answer = l.From, s.examine(ctx, c)
		fallthrough
	default:
		answer = s.answer
		answer.Nonce = s.nonce
	}
	if data, err := k.write(s.version, hereKind, s.id, 0, answer); err == nil {
		_ = publish(s.conn, m.Reply, data) // it calls again
	}
}

// clean is a text that came from elsewhere, to be shown.
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

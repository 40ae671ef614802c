package tcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/activation"
	"github.com/myriad-go/myriad/internal/broadcastlog"
	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/secure"
	"github.com/myriad-go/myriad/internal/upgrade"
)

// ErrUpgrading answers Server.Upgrade while another one is under way.
var ErrUpgrading = errors.New("myriad: an upgrade is under way already")

// takeoverTimeout bounds the handing over when the context of Upgrade does not.
const takeoverTimeout = time.Minute

// upgradePatience is how long a new process has for each answer.
var upgradePatience = upgrade.Timeout

// Upgraded is the outcome of Server.Upgrade.
type Upgraded struct {
	// PID is the new process's.
	PID int
	// Moved is how many connections it has taken over, and Lost how many it had not confirmed
	// when it died; the rest have stayed, and are drained.
	Moved, Lost int
	// Took is the time from the first connection to the last.
	Took time.Duration
	// Stayed counts the connections that have not moved, by reason: "TLS", "value without
	// Migrator", "NetConn" (of a NetListener or Blocking handler), "handler of its own", "relay",
	// "half-closed", "not saved" (Save failed), "busy", and "not known" for those of worker
	// processes (Processes). This process drains them.
	Stayed map[string]int
	// Stays says that this process now passes signals on: see Server.Stay.
	Stays bool
	// Done reports whether the new process serves. It is false if Upgrade has failed.
	Done bool
}

// String describes the outcome, of a failed upgrade too, in a sentence.
func (u Upgraded) String() string {
	switch {
	case u.PID == 0:
		return "no process has taken over: none was started"
	case !u.Done:
		return fmt.Sprintf("process %d has not taken over; %d connections are lost", u.PID, u.Lost)
	}
	text := fmt.Sprintf("process %d has taken over with %d connections in %v; %d are lost", u.PID, u.Moved, u.Took/time.Millisecond*time.Millisecond, u.Lost)
	stayed, reasons := 0, make([]string, 0, len(u.Stayed))
	for _, reason := range slices.Sorted(maps.Keys(u.Stayed)) {
		stayed += u.Stayed[reason]
		reasons = append(reasons, fmt.Sprintf("%s: %d", reason, u.Stayed[reason]))
	}
	if stayed > 0 {
		text += fmt.Sprintf(", and %d stay until they are drained (%s)", stayed, strings.Join(reasons, ", "))
	}
	return text
}

// Upgrade has a new process take this one's place, without a connection being lost: it starts
// the new binary (Server.Successor), waits until that serves with these listeners, and hands it
// the connections, with the input that has come and was not used, the output that is not sent,
// their timers and limits of time, and what a Migrator saves. A peer notices nothing but a
// pause of milliseconds. Once Upgrade has returned without an error, the server drains the
// connections that have stayed and ends, as by Shutdown, so that ListenAndServe returns. By then
// the service manager has been told MAINPID, and Notify tells it nothing more. As process 1, or
// with Server.Stay, ListenAndServe returns only when the process that serves by then has ended.
//
// These connections stay: those with TLS, whose sessions can't be saved; those with a handler of
// their own (SetHandler, Adopt, Blocking, hijacked from package web) that no HandlerMigrator
// saves; relays; those whose peer has ended; and those with a Value if the handler is not a
// Migrator. Busy ones (in a handler on a worker, with a file to send, retained) have
// until ctx ends. For a connection that has moved, Closed gets ErrHandedOver.
//
// The new process gets this one's environment and one more descriptor. It must
// call ListenAndServe on one Server within 30 seconds; listeners are matched by their
// addresses. It may use another model and other numbers of loops. An upgrade back is
// an upgrade.
//
// If the new process does not start, hangs, dies, can't listen, is another program, or a
// version that does not understand this one, Upgrade says so, and this server goes on as
// if nothing had happened. If the new process dies midway, this one goes on with the connections
// that it still has; the others are lost, and counted in Lost. If ctx has no deadline, handing over
// has a minute. Upgrade returns ErrUpgrading during another one, ErrServerClosed before
// the start and after the end, and errors.ErrUnsupported on systems other than Linux and in
// worker processes, which their first process upgrades (Server.Processes).
func (s *Server) Upgrade(ctx context.Context) (u Upgraded, err error) {
	s.mu.Lock()
	e, err := s.started()
	m, ok := e.(engine.Migrator)
	switch {
	case err != nil:
	case s.closed || s.handedOver.Load():
		err = ErrServerClosed
	case !ok || s.worker != nil:
		err = fmt.Errorf("myriad: an upgrade of this server: %w", errors.ErrUnsupported)
	case !s.upgrading.CompareAndSwap(false, true):
		err = ErrUpgrading
	}
	where := s.where
	s.mu.Unlock()
	if err != nil {
		return u, err
	}
	defer s.upgrading.Store(false)
	_, _ = Notify(activation.ReloadingState()) // without a service manager there is nobody to tell
	if u, err = s.upgrade(ctx, e, m, where); err != nil {
		upgrade.ReportServingPID()
		_, _ = Notify("READY=1")
		s.log().Error("the upgrade has failed; this process goes on", "error", err, "lost", u.Lost)
		return u, fmt.Errorf("myriad: upgrade: %w", err)
	}
	u.Done = true
	stay := 0
	if open := int(e.Counters()[engine.Open]); open > 0 {
		u.Stayed = s.countStayed(ctx, open)
	}
	attrs := []any{"pid", u.PID, "connections", u.Moved, "lost", u.Lost, "took", u.Took}
	reasons := make([]any, 0, len(u.Stayed))
	for reason, n := range u.Stayed {
		stay += n
		reasons = append(reasons, slog.Int(reason, n))
	}
	if attrs = append(attrs, "stay", stay); stay > 0 {
		attrs = append(attrs, slog.Group("stay_reasons", reasons...))
	}
	s.log().Info("upgraded", attrs...)
	_, _ = Notify(fmt.Sprintf("MAINPID=%d\nREADY=1", u.PID))
	_ = os.Unsetenv("NOTIFY_SOCKET") // a valid name does not fail; the end of this process is not the service's
	s.handedOver.Store(true)
	go func() { _ = s.Drain() }()
	return u, nil
}

func (s *Server) upgrade(ctx context.Context, e engine.Engine, m engine.Migrator, where []Listener) (u Upgraded, err error) {
	if err = s.awaitArrival(ctx); err != nil {
		return u, err // the new process would have waited for that, and not for long
	}
	cmd, err := s.successor()
	if err != nil {
		return u, err
	}
	if s.Stay || os.Getpid() == 1 {
		if err = upgrade.KeepFirstProcessRunning(); err != nil {
			return u, err
		}
	}
	next, err := upgrade.StartSuccessor(cmd, upgradePatience)
	if err != nil {
		return u, err
	}
	u.PID = next.PID()
	defer func() {
		if err != nil {
			next.Abort()
		}
	}()
	if err = next.SendHello(s.hello(e, m, where), func(control *os.File) error { return m.SendListeners(control, upgrade.ListenersMessage) }); err != nil {
		return u, err
	}
	ready, err := next.WaitReady(ctx)
	if err != nil {
		return u, err
	}
	s.warnOfStaying(ctx, e)
	d, err := s.depart(ctx)
	if err != nil {
		return u, err
	}
	defer func() { d.end(err == nil) }()
	channels, err := next.OpenChannels(ctx, m.Ends(), max(ready.Loops, 1), d.state, d.theirs)
	if err != nil {
		return u, err
	}
	d.begin()
	moved, took, err := handOver(ctx, e, m, next, channels)
	u.Moved, u.Lost, u.Took = moved.Gone, moved.Unknown, took
	if err == nil {
		err = next.SendDone(d.done())
	}
	if err != nil && next.KillIfHung() {
		u.Lost = moved.Gone
		m.ShareListeners(false)
		return u, errors.Join(err, e.Hold(s.paused.Load()))
	}
	if err != nil { // the time was over, say: what is left is drained here
		_ = next.SendDone(d.done())
		s.log().Warn("not all connections could be handed over", "error", err)
		err = nil
	}
	if s.keeper = next.StartReaper(); s.keeper != nil {
		u.Stays = true
	}
	return u, nil
}

// countingTime bounds how long connections are counted before and after they are handed over.
const countingTime = time.Second

// netConnStays is the reason of connections that blocking code has as a net.Conn.
const netConnStays = "NetConn"

// warnOfStaying logs how many connections will stay, if that is because of what their handler is.
func (s *Server) warnOfStaying(ctx context.Context, e engine.Engine) {
	_, saves := extension[Migrator](s.Handler)
	_, savesHandlers := extension[HandlerMigrator](s.Handler) // such as web.HTTP, whose own Value is a request
	if saves || savesHandlers || e.Counters()[engine.Open] == 0 {
		return
	}
	counts := s.countStayed(ctx, 0)
	warn := func(reason, text string) {
		if n := counts[reason]; n > 0 {
			s.log().Warn(text, "connections", n, "handler", handlerType(s.Handler))
		}
	}
	warn(engine.ValueUnsaved, "connections with a Value will not move to the new process, because their handler is no Migrator: "+
		"implement its methods Save and Restore, or clients lose their connections when this process has drained")
	warn(netConnStays, "connections of a NetListener or Blocking handler will not move to the new process: clients lose them when this process has drained")
}

// countStayed counts the open connections by the reason for which they have not moved.
func (s *Server) countStayed(ctx context.Context, open int) map[string]int {
	if s.preforks() {
		return map[string]int{"not known": open}
	}
	var mu sync.Mutex
	counts := make(map[string]int)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countingTime)
	defer cancel()
	counted := 0
	_ = s.Each(ctx, func(c *Conn) { // those that it does not reach are busy
		reason := c.core().StayReason()
		if _, ok := c.Value().(*NetConn); ok && reason == engine.ValueUnsaved {
			reason = netConnStays
		}
		mu.Lock()
		defer mu.Unlock()
		counts[reason]++
		counted++
	})
	mu.Lock()
	defer mu.Unlock()
	if open > counted {
		counts["busy"] += open - counted
	}
	return maps.Clone(counts) // calls that are late don't change the result
}

// hello says what the new process serves: each listener, and the files that were activated.
func (s *Server) hello(e engine.Engine, m engine.Migrator, where []Listener) upgrade.Hello {
	hello := upgrade.Hello{PID: os.Getpid(), Paused: s.paused.Load()}
	sockets := m.Sockets()
	for i, at := range e.Listening() {
		l := upgrade.Listener{
			Name: where[i].Name, Network: at.Addr.Network(), Addr: listenerKey(&where[i], at.Addr), Sockets: sockets[i],
		}
		if t := s.tickets[&where[i]]; t != nil {
			l.Tickets = t.Keys()
		}
		hello.Listeners = append(hello.Listeners, l)
	}
	hello.Activated, hello.Files = activation.KeptSockets()
	return hello
}

// stay waits, where this process is one that stays, until whoever serves has ended, and says how.
// err is how this server has ended, which does not matter then.
func (s *Server) stay(err error) error {
	if !s.handedOver.Load() || s.keeper == nil {
		return err
	}
	if err != nil {
		s.log().Warn("the old process has ended, and stays", "error", err)
	}
	debug.FreeOSMemory()
	if err = s.keeper.WaitServerExit(); err != nil {
		return fmt.Errorf("myriad: %w", err)
	}
	return nil
}

// handOver hands the connections over. From its beginning the listeners are the new process's.
func handOver(ctx context.Context, e engine.Engine, m engine.Migrator, next *upgrade.Successor, channels []*os.File) (moved engine.Handover, took time.Duration, err error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, takeoverTimeout)
		defer cancel()
	}
	m.ShareListeners(true)
	var watching sync.WaitGroup
	during, over := context.WithCancel(context.WithoutCancel(ctx))
	watching.Go(func() { next.MonitorAndKillIfHung(during) })
	start := time.Now()
	if err = e.Hold(true); err == nil {
		moved, err = m.HandOver(ctx, channels)
	}
	took = time.Since(start)
	over()
	watching.Wait()
	for _, f := range channels {
		_ = f.Close()
	}
	return moved, took, err
}

// successor is the new process, not started.
func (s *Server) successor() (*exec.Cmd, error) {
	if s.Successor != nil {
		return s.Successor()
	}
	path, err := exec.LookPath(os.Args[0]) // follows links anew
	if err != nil {
		path, err = os.Executable()
	}
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd, nil
}

// listenerKey is what a listener is found again by: the address that was asked for.
func listenerKey(l *Listener, at net.Addr) string {
	if l.Listener != nil {
		return at.String()
	}
	return l.Addr
}

// inherit finds the process whose place this one takes, if there is one.
func (s *Server) inherit() error {
	p, err := upgrade.ClaimPredecessor()
	if p != nil {
		s.predecessor, s.ticketKeys = p, make(map[*Listener][]secure.TicketKey) // once in a process
		s.paused.Store(p.Paused)
		s.here, s.caughtUp = make(chan struct{}), make(chan struct{})
	}
	return err
}

// inherited gives the sockets of a listener that the old process has; nil if it has none.
func (s *Server) inherited(l *Listener) []net.Listener {
	if s.predecessor == nil {
		return nil
	}
	for i, in := range s.predecessor.Listeners {
		if len(in.Sockets) > 0 && listenerKey(l, in.Sockets[0].Addr()) == in.Addr {
			s.predecessor.Listeners[i].Sockets = nil
			s.ticketKeys[l] = in.Tickets
			return in.Sockets
		}
	}
	return nil
}

// succeed tells the old process that this one serves, and takes its connections over. Nothing is
// accepted before: the old process does, in case that it goes on. done waits for the end of that.
func (s *Server) succeed(e engine.Engine) (done func()) {
	p := s.predecessor
	if p == nil {
		return func() {}
	}
	for _, in := range p.Listeners { // at which this server does not listen
		engine.CloseAll(in.Sockets)
	}
	var over sync.WaitGroup
	started := make(chan struct{})
	over.Go(func() {
		defer s.arrived()
		m, ok := e.(engine.Migrator)
		err := errors.New("its engine can't take connections over")
		if ok {
			err = awaitWorkers(e, p)
		}
		failed := err != nil && !upgrade.IsAborted(err)
		if failed {
			_ = p.ReportFailure(err)
		}
		close(started)
		if err == nil {
			err = p.AnnounceReady(m.Ends(), s.arrive, m.TakeOver)
		}
		switch {
		case failed, errors.Is(err, os.ErrClosed): // this one has ended
			return
		case err != nil:
			s.aborted = fmt.Errorf("myriad: upgrade: %w", err)
			go func() { _ = s.Close() }()
			return
		}
		m.ShareListeners(false)
		if !s.paused.Load() {
			_ = e.Hold(false) // where it has ended, that does nothing
		}
		s.awaitDone(p)
	})
	return func() {
		<-started // what kept it from that has been said
		p.Close()
		over.Wait()
	}
}

// migration is a Server's part in upgrades.
type migration struct {
	upgrading   atomic.Bool
	handedOver  atomic.Bool                      // a new process serves at the listeners
	predecessor *upgrade.Predecessor             // nil if there was none
	keeper      *upgrade.Reaper                  // if this process stays; set before handedOver
	aborted     error                            // why this process is not to take its place
	paused      atomic.Bool                      // by PauseAccepting, here or in the old process
	ticketKeys  map[*Listener][]secure.TicketKey // of the old process
	tickets     map[*Listener]*secure.TicketKeyRing
	broadcasts  atomic.Pointer[broadcastlog.Log]
	travels
}

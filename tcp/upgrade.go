package tcp

import (
	"cmp"
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

// ErrUpgrading is returned by Server.Upgrade while another upgrade is in progress.
var ErrUpgrading = errors.New("myriad: an upgrade is already in progress")

// takeoverTimeout is the time limit for the transfer of connections if the context of Upgrade has no deadline.
const takeoverTimeout = time.Minute

// upgradeReplyTimeout is the time limit for each reply of the new process.
var upgradeReplyTimeout = upgrade.Timeout

// Upgraded is the result of Server.Upgrade.
type Upgraded struct {
	// PID is the process ID of the new process, or 0 if no process was started.
	PID int
	// Moved is the number of connections that the new process has taken over. Lost is the number of connections that
	// the new process had not confirmed when it died. All other connections have stayed in the old process and drain.
	Moved, Lost int
	// Took is the time that the transfer of connections took.
	Took time.Duration
	// Stayed counts the connections that have stayed in the old process, by reason:
	//   - "TLS": the TLS session could not be saved
	//   - "value without Migrator": the connection has a Value, but its handler is not a Migrator
	//   - "NetConn": the connection belongs to a NetListener or Blocking handler
	//   - "handler of its own": the connection has its own handler, and there is no HandlerMigrator
	//   - "relay": the connection is relayed
	//   - "half-closed": the peer or the server has closed its writing side
	//   - "not saved": Save has failed
	//   - "busy": the connection was busy; see Server.Upgrade
	//   - "not known": the connection belongs to a worker process
	Stayed map[string]int
	// Stays reports whether the old process stays and forwards signals; see Server.Stay.
	Stays bool
	// Done reports whether the new process has taken over. It is false if Upgrade has failed.
	Done bool
}

// String describes the result of the upgrade in a sentence.
func (u Upgraded) String() string {
	switch {
	case u.PID == 0:
		return "no process has taken over, because none was started"
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

// Upgrade replaces this process with a new process without losing a connection. It starts the new program
// (Server.Successor) and waits until the new process serves on the same listeners. It then transfers the connections.
// Unused input, unsent output, timers, timeouts and the state that a Migrator saves move with each connection.
//
// After Upgrade has returned nil, the server drains the remaining connections and shuts down. ListenAndServe then
// returns. In process 1, or with Server.Stay, ListenAndServe returns only after the serving process has ended. Upgrade
// reports the new process as MAINPID to the service manager. After this report, Notify sends nothing.
//
// These connections stay in the old process:
//   - TLS connections whose sessions can't be saved
//   - connections with their own handler (SetHandler, Dial, hijacked from package web), unless a HandlerMigrator saves
//     them
//   - relayed connections
//   - connections whose peer has closed its writing side
//   - connections with a Value, if the handler is not a Migrator
//   - connections of a NetListener
//   - connections of a Blocking handler, unless they are idle and have no Value
//
// A busy connection moves when it is no longer busy, unless ctx has ended. A connection is busy while its handler runs
// on a worker, while it sends a file, or while it is retained. When a connection has moved, the old process calls
// Closed for it with the reason ErrHandedOver.
//
// The new process inherits the environment and one more descriptor. It must call ListenAndServe on one Server within 30
// seconds. Each listener of the old process is matched with a listener of the new process, first by address and then by
// name. A moved connection gets the handler of the matching listener. If a listener with its own handler has no match,
// its connections close. The model and the number of loops may differ.
//
// Upgrade returns an error, and this server continues unchanged, in these cases:
//   - The new process does not start, hangs, dies or can't listen.
//   - The new binary is another program or an incompatible version.
//
// If the new process dies during the transfer, this server continues with the connections that have not moved. The
// other connections are lost and counted in Lost. If ctx has no deadline, the transfer is limited to a minute.
//
// Upgrade fails with
//   - ErrUpgrading during another upgrade
//   - ErrServerClosed before the start and after the end
//   - errors.ErrUnsupported on systems other than Linux
//   - errors.ErrUnsupported in a worker process (Server.Processes); upgrade the supervisor instead
func (s *Server) Upgrade(ctx context.Context) (u Upgraded, err error) {
	s.mu.Lock()
	e, err := s.startedEngineLocked()
	m, ok := e.(engine.Migrator)
	switch {
	case err != nil:
	case s.closed || s.handedOver.Load():
		err = ErrServerClosed
	case !ok || s.worker != nil:
		err = fmt.Errorf("myriad: this server cannot be upgraded; expected a process on Linux that is not a worker process: %w", errors.ErrUnsupported)
	case !s.upgrading.CompareAndSwap(false, true):
		err = ErrUpgrading
	}
	where := s.activeListeners
	s.mu.Unlock()
	if err != nil {
		return u, err
	}
	defer s.upgrading.Store(false)
	_, _ = Notify(activation.ReloadingState()) // fails without a service manager
	if u, err = s.runUpgrade(ctx, e, m, where); err != nil {
		upgrade.ReportOwnPIDServing()
		_, _ = Notify("READY=1")
		s.rateLimitedLogger().Error("upgrade failed; this process continues", "error", err, "lost", u.Lost)
		return u, fmt.Errorf("myriad: upgrade: %w", err)
	}
	u.Done = true
	stay := 0
	if open := int(e.Counters()[engine.Open]); open > 0 {
		u.Stayed = s.countConnsByObstacleOrBusy(ctx, open)
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
	s.rateLimitedLogger().Info("upgraded", attrs...)
	_, _ = Notify(fmt.Sprintf("MAINPID=%d\nREADY=1", u.PID))
	_ = os.Unsetenv("NOTIFY_SOCKET") // the new process now reports to the service manager; a valid name does not fail
	s.handedOver.Store(true)
	go func() { _ = s.Drain() }()
	return u, nil
}

func (s *Server) runUpgrade(ctx context.Context, e engine.Engine, m engine.Migrator, listeners []Listener) (u Upgraded, err error) {
	if err = s.awaitPredecessorHandover(ctx); err != nil {
		return u, err // a process started before this wait could time out
	}
	cmd, err := s.customOrDefaultSuccessorCommand()
	if err != nil {
		return u, err
	}
	if s.Stay || os.Getpid() == 1 {
		if err = upgrade.EnableKeepRunningIfFirst(); err != nil {
			return u, err
		}
	}
	next, err := upgrade.StartSuccessor(cmd, upgradeReplyTimeout)
	if err != nil {
		return u, err
	}
	u.PID = next.PID()
	defer func() {
		if err != nil {
			next.AbortOrKill()
		}
	}()
	if err = next.SendHelloAndListeners(s.newHelloMessage(e, m, listeners), func(control *os.File) error { return m.SendListenerSockets(control, upgrade.ListenersMessage) }); err != nil {
		return u, err
	}
	ready, err := next.WaitReady(ctx)
	if err != nil {
		return u, err
	}
	s.warnAboutUnmovableConns(ctx, e)
	d, err := s.pauseAndPrepareUpgrade(ctx)
	if err != nil {
		return u, err
	}
	defer func() { d.resumeAndClose(err == nil) }()
	channels, err := next.SendChannelsAndAwaitTakeOver(ctx, m.ChannelsNeeded(), max(ready.Loops, 1), d.state, d.peerSocket)
	if err != nil {
		return u, err
	}
	d.resumeBroadcastsAfterTimeout()
	moved, took, err := pauseAcceptAndExportConns(ctx, e, m, next, channels)
	u.Moved, u.Lost, u.Took = moved.Exported, moved.Unconfirmed, took
	if err == nil {
		err = next.SendDone(d.newDoneRememberingSentCounts())
	}
	if err != nil && next.ProbeAndKillIfHung() {
		u.Lost = moved.Exported
		m.SetListenersShared(false)
		return u, errors.Join(err, e.PauseAccept(s.paused.Load()))
	}
	if err != nil { // out of time: this process drains the connections that have not moved
		_ = next.SendDone(d.newDoneRememberingSentCounts())
		s.rateLimitedLogger().Warn("not all connections were handed over", "error", err)
		err = nil
	}
	if s.signalRelay = next.RelaySignalsIfFirstProcess(); s.signalRelay != nil {
		u.Stays = true
	}
	return u, nil
}

const countTimeout = time.Second

const netConnReason = "NetConn"

func (s *Server) warnAboutUnmovableConns(ctx context.Context, e engine.Engine) {
	var types []string
	for _, h := range s.handlers() {
		_, saves := handlerAs[Migrator](h)
		_, savesHandlers := handlerAs[HandlerMigrator](h) // such as web.HTTP, whose own Value is a request
		if !saves && !savesHandlers {
			types = append(types, handlerType(h))
		}
	}
	if len(types) == 0 || e.Counters()[engine.Open] == 0 {
		return
	}
	counts := s.countConnsByObstacleOrBusy(ctx, 0)
	warn := func(reason, text string) {
		if n := counts[reason]; n > 0 {
			s.rateLimitedLogger().Warn(text, "connections", n, "handler", strings.Join(types, ", "))
		}
	}
	warn(engine.ValueUnsaved, "connections with a Value will not move to the new process, because their handler is not a Migrator: "+
		"implement its methods Save and Restore, or clients lose their connections when this process has drained")
	warn(netConnReason, "connections of a NetListener or Blocking handler will not move to the new process: clients lose them when this process has drained")
}

func (s *Server) countConnsByObstacleOrBusy(ctx context.Context, totalConns int) map[string]int {
	if s.isSupervisor() {
		return map[string]int{"not known": totalConns}
	}
	var mu sync.Mutex
	counts := make(map[string]int)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countTimeout)
	defer cancel()
	counted := 0
	_ = s.Each(ctx, func(c *Conn) { // connections that Each does not reach are busy
		reason := c.core().ExportObstacle()
		if _, ok := c.Value().(*NetConn); ok && (reason == engine.ValueUnsaved || reason == "busy") {
			reason = netConnReason
		}
		mu.Lock()
		defer mu.Unlock()
		counts[reason]++
		counted++
	})
	mu.Lock()
	defer mu.Unlock()
	if totalConns > counted {
		counts["busy"] += totalConns - counted
	}
	return maps.Clone(counts) // a late call of the function above must not change the result
}

func (s *Server) newHelloMessage(e engine.Engine, m engine.Migrator, listeners []Listener) upgrade.Hello {
	hello := upgrade.Hello{PID: os.Getpid(), Paused: s.paused.Load(), WorkerTickets: supervisorTicketKeysOrNil(e)}
	sockets := m.SocketsPerListener()
	for i, at := range e.ListenerStats() {
		l := upgrade.Listener{
			Name: listeners[i].Name, Network: at.Addr.Network(), Addr: upgradeMatchAddr(&listeners[i], at.Addr), Sockets: sockets[i],
			OwnHandler: listeners[i].Handler != nil,
		}
		if t := s.tickets[&listeners[i]]; t != nil {
			l.Tickets = t.Keys()
		}
		hello.Listeners = append(hello.Listeners, l)
	}
	hello.Activated, hello.Files = activation.KeptActivationSockets()
	return hello
}

// awaitSuccessorExitIfStaying returns serveErr unless this process keeps running after an upgrade. If it does, the
// function waits until the newest process has ended, and returns the error of that process.
func (s *Server) awaitSuccessorExitIfStaying(serveErr error) error {
	if !s.handedOver.Load() || s.signalRelay == nil {
		return serveErr
	}
	if serveErr != nil {
		s.rateLimitedLogger().Warn("the server has ended with an error; the process keeps running until the new process ends", "error", serveErr)
	}
	debug.FreeOSMemory()
	if serveErr = s.signalRelay.ReapUntilServerExits(); serveErr != nil {
		return fmt.Errorf("myriad: %w", serveErr)
	}
	return nil
}

// pauseAcceptAndExportConns stops accepting, transfers the connections to the new process and closes the channels. took
// is the duration of the transfer. If ctx has no deadline, the limit is takeoverTimeout.
func pauseAcceptAndExportConns(ctx context.Context, e engine.Engine, m engine.Migrator, next *upgrade.Successor, channels []*os.File) (moved engine.ExportResult, took time.Duration, err error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, takeoverTimeout)
		defer cancel()
	}
	m.SetListenersShared(true)
	var watching sync.WaitGroup
	during, over := context.WithCancel(context.WithoutCancel(ctx))
	watching.Go(func() { next.MonitorAndKillIfHung(during) })
	start := time.Now()
	if err = e.PauseAccept(true); err == nil {
		moved, err = m.ExportConns(ctx, channels)
	}
	took = time.Since(start)
	over()
	watching.Wait()
	for _, f := range channels {
		_ = f.Close()
	}
	return moved, took, err
}

func (s *Server) customOrDefaultSuccessorCommand() (*exec.Cmd, error) {
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

// upgradeMatchAddr returns the address that identifies l in an upgrade. If l.Listener is set, this is actualAddr.
// Otherwise, it is l.Addr.
func upgradeMatchAddr(l *Listener, actualAddr net.Addr) string {
	if l.Listener != nil {
		return actualAddr.String()
	}
	return l.Addr
}

func (s *Server) claimPredecessor() error {
	p, err := upgrade.ClaimPredecessorOrNil()
	if p != nil {
		s.predecessor, s.ticketKeys = p, make(map[*Listener][]secure.TicketKey) // once per process
		s.paused.Store(p.Paused)
		s.handoverDone, s.backlogDone = make(chan struct{}), make(chan struct{})
		s.predecessorNumbers = slices.Repeat([]int{-1}, len(p.Listeners))
	}
	return err
}

func (s *Server) claimInheritedSocketsAndTickets(l *Listener, listenerNumber int) []net.Listener {
	if s.predecessor == nil {
		return nil
	}
	for i, in := range s.predecessor.Listeners {
		if len(in.Sockets) > 0 && upgradeMatchAddr(l, in.Sockets[0].Addr()) == in.Addr {
			s.predecessor.Listeners[i].Sockets = nil
			s.ticketKeys[l], s.predecessorNumbers[i] = in.Tickets, listenerNumber
			return in.Sockets
		}
	}
	return nil
}

// matchRemainingPredecessorListeners matches those listeners of the old process that were not matched by address. It
// matches a listener with the new listener of the same name. If there is none and the old listener has no handler of
// its own, it is matched with the first new listener that has no handler of its own. An old listener without any match
// is logged.
func (s *Server) matchRemainingPredecessorListeners(listeners []Listener) {
	for i, number := range s.predecessorNumbers {
		if number >= 0 {
			continue
		}
		in := s.predecessor.Listeners[i]
		number = slices.IndexFunc(listeners, func(l Listener) bool { return in.Name != "" && l.Name == in.Name })
		if number < 0 && !in.OwnHandler {
			number = slices.IndexFunc(listeners, func(l Listener) bool { return l.Handler == nil })
		}
		if s.predecessorNumbers[i] = number; number < 0 {
			s.rateLimitedLogger().Warn("connections of a listener of the old process will be closed: no listener of this process has its address or name", "listener", cmp.Or(in.Name, in.Addr))
		}
	}
}

// startTakeOverFromPredecessor tells the old process that this process is ready, and receives the connections in the
// background. It returns a function that ends the transfer and waits for its end.
func (s *Server) startTakeOverFromPredecessor(e engine.Engine) (stop func()) {
	p := s.predecessor
	if p == nil {
		return func() {}
	}
	for _, in := range p.Listeners { // listeners that this server does not use
		engine.CloseListeners(in.Sockets)
	}
	var over sync.WaitGroup
	started := make(chan struct{})
	over.Go(func() {
		defer s.finishHandoverResumingBroadcastsIfNoPeer()
		m, ok := e.(engine.Migrator)
		err := errors.New("the engine can't take over connections")
		if ok {
			err = awaitWorkersServingOrAborted(e, p)
		}
		failed := err != nil && !upgrade.IsAborted(err)
		if failed {
			_ = p.ReportFailure(err)
		}
		close(started)
		if err == nil {
			err = p.AnnounceReadyAndTakeOver(m.ChannelsNeeded(), s.restoreStateAndAddBroadcastPeer, m.StartImportingConns)
		}
		switch {
		case failed, errors.Is(err, os.ErrClosed): // this server has ended
			return
		case err != nil:
			s.aborted = fmt.Errorf("myriad: upgrade: %w", err)
			go func() { _ = s.Close() }()
			return
		}
		m.SetListenersShared(false)
		if !s.paused.Load() {
			_ = e.PauseAccept(false) // no effect if the engine has ended
		}
		s.awaitAndAddPredecessorCounts(p)
	})
	return func() {
		<-started // closed after a failure was reported
		p.Close()
		over.Wait()
	}
}

type upgradeState struct {
	upgrading   atomic.Bool
	handedOver  atomic.Bool                      // a new process serves on the listeners
	predecessor *upgrade.Predecessor             // nil if there was none
	signalRelay *upgrade.Reaper                  // nil unless this process stays; set before handedOver
	aborted     error                            // why this process does not take over
	paused      atomic.Bool                      // accepting is paused by PauseAccepting, here or in the old process
	ticketKeys  map[*Listener][]secure.TicketKey // of the old process
	tickets     map[*Listener]*secure.TicketKeyRing
	broadcasts  atomic.Pointer[broadcastlog.Log]
	upgradeTransfer
	predecessorNumbers []int // see engine.Config.PredecessorListeners
}

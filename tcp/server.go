package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/engine/workers"
	"github.com/myriad-go/myriad/internal/lograte"
	"github.com/myriad-go/myriad/internal/overload"
	"github.com/myriad-go/myriad/internal/secure"
	"github.com/myriad-go/myriad/internal/secure/tls13"
	"github.com/myriad-go/myriad/pool"
)

// Server serves a Handler. Set its fields before the start and do not change them afterwards. Only Addr and Handler are
// required. A Server can serve only once. Its methods are safe for concurrent use.
type Server struct {
	// Addr is where ListenAndServe listens: host:port, such as ":9000" or "127.0.0.1:0", or the path of a unix socket.
	// ":9000" and "[::]:9000" accept IPv4 and IPv6. Unlike with net.Listen, "0.0.0.0:9000" accepts only IPv4.
	Addr string
	// Network is "tcp" (the default), "tcp4", "tcp6" or "unix". For "unix", the server replaces a socket file that a
	// killed process has left behind. When the server ends, it removes its socket file, unless a successor process has
	// replaced the file.
	Network string
	// Listeners are additional addresses with their own options, such as a TLS port or a unix socket. If Listeners is
	// not empty, Addr may be empty. The limit is 32 addresses, including Addr. Each Listener has its own TLSConfig and
	// TrustedProxies instead of the fields of Server. A Listener without a Handler uses the Handler of Server. All
	// other fields of Server apply to all Listeners.
	Listeners []Listener
	// Handler handles all connections, except those of Listeners with their own Handler. It may be nil only if Addr is
	// empty and all Listeners have a Handler.
	Handler Handler
	// Model is the I/O model: Goroutine, Epoll, Uring or Auto. The default is Auto.
	Model string
	// Loops is the number of event loops, at most 1,024. The default is half of GOMAXPROCS, at least 1. The goroutine
	// model ignores Loops. GOMAXPROCS should exceed Loops: otherwise, a loop may lose its processor to another
	// goroutine during a system call. With Workers, set GOMAXPROCS to the number of CPUs plus Loops.
	//
	// If Limits.MaxConns exceeds the descriptor limit, each loop gets its own descriptor table, and the server starts
	// as many loops as it needs for MaxConns. /proc/PID/task/TID/fd shows the table of a loop. A handler on such a loop
	// can use files that were open when the server started. It can also use files that it opens and closes within one
	// call. It can't use descriptors that other goroutines open, such as those of os/exec, net.Dial or a database
	// connection. Handlers on Workers can use all descriptors. Files that are open when the server starts stay open
	// until the server ends, even if the program closes them.
	Loops int
	// Spin is the time for which an idle event loop polls before it blocks. The maximum is 10 ms. With 0, the default,
	// loops block immediately. Polling raises the throughput if connections are few, but uses up to one CPU per loop.
	Spin time.Duration
	// Workers, if set, is a worker pool for handler calls. The goroutine model ignores Workers. By default, handlers
	// run on the event loops, which is fastest for handlers that neither block nor compute for long. Calls for one
	// connection stay in order, and a connection has at most one job in the pool.
	//
	// The pool may reject a call, or shed a call that waits in its queue. If the handler is a ShedHandler, the server
	// then calls Shed instead. For any other handler, the server submits the call again later, so no call is lost.
	// Until then, the connection waits, and its input is not read. If the handler is not a ShedHandler, set KeepQueued
	// and FIFO in pool.Config, because shedding has no benefit.
	//
	// The caller owns the pool and may also use it for other jobs. The caller must close the pool after the server has
	// ended. If the pool is closed earlier, a connection closes with ErrWorkersClosed at the next call of its handler.
	// During Shutdown, pending calls still wait for the pool. Once Server.Close is called or the context of Shutdown
	// ends, a connection closes with ErrServerClosed if the pool rejects its call. The server ends only after its jobs
	// in the pool have run or been shed. Jobs of other users of the pool may therefore delay the end.
	Workers *pool.Pool
	// Processes is the number of worker processes, at most 1,024 (Linux only). With 0 (the default) or 1, this process
	// serves. With 2 or more, this process becomes the supervisor. The supervisor starts the program once per worker
	// with the same arguments. In every worker, main must call ListenAndServe as well; see WorkerProcess. Only the
	// supervisor calls Listening, when all workers serve.
	//
	// If a worker ends, the supervisor restarts it after 100 ms. The delay doubles, up to 10 s, for each consecutive
	// run shorter than 10 s. Meanwhile, connections to the worker's socket wait. If every worker has ended 10 times in
	// a row without serving, ListenAndServe fails. The supervisor kills a worker that does not serve within 2 minutes.
	// It also kills a worker that does not exit within 30 s after it has stopped serving.
	//
	// Limits.MaxConns, MaxBuffered and AcceptRate are divided evenly among the workers. All other limits, Loops
	// (default 1) and Workers apply to every worker. The kernel distributes connections randomly. A worker may
	// therefore be full when the total is still a few per cent below MaxConns.
	//
	// Shutdown drains the workers. When the context of Shutdown ends, the supervisor kills the workers that still run.
	// Close kills all workers immediately. Workers drain and exit if their supervisor dies.
	//
	// A worker ignores SIGINT. It also ignores SIGHUP, unless main handles SIGHUP with os/signal. SIGTERM drains the
	// worker within Limits.ShutdownTimeout. If the supervisor orders a drain, the supervisor sets the time limit. The
	// worker then sends itself a SIGTERM unless it has received one, so that main is informed of the drain.
	Processes int
	// Limits contains the resource limits and the timeouts.
	Limits Limits
	// Socket contains options for the sockets of connections.
	Socket Socket
	// WriteDelay is the time for which messages may wait, so that several messages to a connection leave in one write.
	// It applies to messages of Ref.Send, Ref.Sendv, groups and broadcasts. The default, 0, sends messages at once. The
	// maximum is 1 s. Waiting messages count for all limits. The goroutine model ignores WriteDelay.
	//
	// Output of handler calls and of Ref.SendWait is not delayed. Conn.Write does not wait for delayed messages, and
	// Conn.Close discards them. The next value of Group.SendLatest replaces a delayed value.
	//
	// The delay ends early
	//   - for one connection, when Ref.Close or Ref.Do is called
	//   - when a message has 16 KiB or more
	//   - when the messages of a loop exceed a quarter of Limits.MaxUnsent or MaxMailBytes
	//   - during Shutdown and Upgrade
	WriteDelay time.Duration
	// Overload configures what the server does under overload.
	Overload Overload
	// SlowConsumer selects what happens if a peer does not read its output. The default is CloseConn.
	SlowConsumer SlowConsumer
	// Heartbeat configures heartbeats to silent peers. Without an Interval, the server sends no heartbeats.
	Heartbeat Heartbeat
	// Allow and Deny restrict the addresses of clients. The server rejects all addresses in Deny and, if Allow is not
	// empty, all addresses outside Allow. Connections over unix sockets are always admitted. Each list is limited to
	// 1,048,576 prefixes.
	Allow, Deny []netip.Prefix
	// TrustedProxies are the addresses of proxies that use the PROXY protocol, version 1 or 2. Every connection from
	// these addresses must begin with a header of the protocol. From other addresses, such a header is ordinary input.
	// If TrustedProxies is not empty, connections over unix sockets must begin with a header, too.
	//
	// RemoteAddr, Allow, Deny and Limits.MaxConnsPerSource use the client address in the header. If the header has no
	// client address (LOCAL, UNKNOWN or a unix socket), they use the proxy's address. The server rejects connections
	// with an invalid header, a header of more than 4,096 bytes, or an unspecified address (0.0.0.0 or ::).
	TrustedProxies []netip.Prefix
	// TLSConfig, if set, encrypts every connection of Addr or Serve. The server calls the handler after the handshake.
	// The configuration needs a certificate (see ReloadCertificate) and must not change while the server runs.
	// Limits.MaxHandshakes limits the handshakes in progress.
	//
	// If the configuration has no session ticket keys, the server generates a new key every day. Upgrade passes the
	// keys to the new process. With Processes, all workers have the same keys. The server generates no keys if client
	// certificates may be required (ClientAuth, GetConfigForClient), or if tickets are customized (WrapSession) or
	// disabled.
	TLSConfig *tls.Config
	// DisableCompactTLS makes crypto/tls process the records of all TLS connections after the handshake. By default, a
	// compact implementation processes the records of TLS 1.3 with AES-GCM. It saves 5 KB per connection and lets
	// connections move in an Upgrade; see Stats.TLS. Connections that came from an earlier process stay compact.
	DisableCompactTLS bool
	// DropTLSExporters saves 120 bytes per compact TLS connection. tls.ConnectionState.ExportKeyingMaterial then fails
	// on these connections. Few programs need that method, for example for channel binding (RFC 9266).
	DropTLSExporters bool
	// Refuse, if set, returns the answer to a rejected connection. A nil answer sends nothing. reason is
	// ErrTooManyConns, ErrTooManyFromSource, ErrDenied or ErrOverloaded. The server sends the answer unencrypted, as
	// far as the kernel accepts it immediately, and closes the connection. Refuse may be called concurrently on any
	// goroutine and must not block.
	//
	// If the server rejects the address in a PROXY header (TrustedProxies), it sends the answer like ordinary output.
	// Such a connection counts towards Limits.MaxConns until it is closed.
	Refuse func(remote net.Addr, reason error) (answer []byte)
	// Log receives messages for operators, such as panics and accept errors. The default is slog.Default().
	Log *slog.Logger
	// Listening, if set, is called when the server listens on all addresses. The server calls it once for every
	// address, in the order of ListenerStats. ListenAndServe and Serve wait for these calls.
	Listening func(addr net.Addr)
	// OnTick, if set, is called every TickInterval, for example to advance a game and to send its state to a Group. It
	// runs on its own goroutine, never concurrently with itself, from the start until all connections have closed.
	// ListenAndServe waits for the last call to return. If a call takes longer than TickInterval, the ticks that it
	// delays are skipped. A panic is logged, and the next tick follows.
	//
	// With Processes, OnTick runs in every worker but not in the supervisor. In an Upgrade, the old process ticks until
	// it saves its state. It ticks again only if the upgrade fails. The new process begins to tick when all connections
	// have moved. With Processes, old and new workers tick independently.
	OnTick func()
	// TickInterval is the time between calls of OnTick, at least 1 ms.
	TickInterval time.Duration
	// Stopping, if set, is called once when shutdown begins: when ListenAndServe's context ends, or when Drain,
	// Shutdown or Close is called. The goroutine that shuts the server down calls Stopping before it closes anything.
	// Concurrent shutdowns do not wait for Stopping. With Processes, only the supervisor calls Stopping.
	Stopping func()

	// Successor, if set, returns the command that Upgrade starts as the new process. Upgrade adds files to ExtraFiles
	// of the command and, if Env is not nil, variables to Env. By default, the new process has the same arguments,
	// standard input, output and error. Its binary is the file at the path with which this process was started. If
	// this path is a symbolic link that no longer exists, Upgrade uses the link's original target.
	Successor func() (*exec.Cmd, error) `json:"-"`

	// Stay keeps this process running after an Upgrade. Set Stay if the program was started by something that waits for
	// this process to end, such as runit, supervisord, or an init or shell in a container. After an Upgrade,
	// ListenAndServe then returns when the last successor process has ended. It returns an error if that process has
	// failed. The default is false. Process 1 always keeps running. A process that was started by an Upgrade never
	// does.
	//
	// Until ListenAndServe returns, this process also adopts and reaps orphaned processes. It forwards SIGHUP, SIGINT,
	// SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2 to the serving process, except signals that a terminal sends to both
	// processes. The program still receives signals that it handles with os/signal.
	Stay bool

	upgradeState
	mu               sync.Mutex
	engine           engine.Engine   // nil before the start
	activeListeners  []Listener      // that of Addr or Serve, and then Listeners; with all defaults
	worker           workerForwarder // set in a worker process
	model            string
	ownPool          *pool.Pool               // Auto's pool, or nil
	handshakeLimiter *secure.HandshakeLimiter // nil until TLS is used
	tlsCiphers       tls13.CipherCache
	overload         *overload.Manager // see initOverloadManagerOrNilLocked
	resolver         resolver
	blockingCalls    sync.WaitGroup // callbacks of Blocking handlers
	ticking          chan struct{}  // holds an element while OnTick runs or is paused
	limits           Limits
	closed           bool

	loggedMisuse sync.Map // names of methods whose misuse was already logged
}

// Socket sets options of the sockets of connections. The zero value uses the kernel's defaults. By default, the kernel
// buffers up to net.ipv4.tcp_wmem[2] bytes (4 MiB) for a peer that does not read. Only output beyond this buffer counts
// for Pending, Limits.MaxUnsent and the timeouts of slow peers. On accepted connections, the options take effect only
// on Linux.
type Socket struct {
	// SendBuffer and ReceiveBuffer are SO_SNDBUF and SO_RCVBUF in bytes, at most 1 GiB. The kernel doubles the values
	// and limits them to net.core.wmem_max and rmem_max. With 0, the default, the kernel adapts the buffers.
	SendBuffer, ReceiveBuffer int
	// Unsent is TCP_NOTSENT_LOWAT in bytes, at most 1 GiB. It limits the output that the kernel holds but has not yet
	// sent to the network. Further output waits in the server and counts towards the server's limits. Data that was
	// sent but not acknowledged is not limited. The default, 0, uses net.ipv4.tcp_notsent_lowat, normally no limit.
	Unsent int
	// Control, if set, is called for every TCP socket that will listen on an Addr, before it is bound, as in
	// net.ListenConfig. It can set options of the listener, or options that connections inherit, such as
	// TCP_DEFER_ACCEPT or SO_BINDTODEVICE. Every loop or worker process has at least one socket. After Control, the
	// server sets SendBuffer, ReceiveBuffer and Unsent. An error prevents the start. Control is not called for
	// listeners made by the caller.
	Control func(network, address string, raw syscall.RawConn) error `json:"-"`
}

const (
	maxSocketBuffer = 1 << 30
	maxWriteDelay   = time.Second
)

func (s *Server) checkSocketBufferSizes() error {
	for _, o := range []struct {
		name string
		size int
	}{{"SendBuffer", s.Socket.SendBuffer}, {"ReceiveBuffer", s.Socket.ReceiveBuffer}, {"Unsent", s.Socket.Unsent}} {
		if o.size < 0 || o.size > maxSocketBuffer {
			return badConfig("Server.Socket.%s is %d; expected 0 (the default: the kernel's choice) to %d bytes", o.name, o.size, maxSocketBuffer)
		}
	}
	return nil
}

// SlowConsumer is what the server does if a peer reads too slowly.
type SlowConsumer int

const (
	// CloseConn closes the connection with ErrSlowConsumer.
	CloseConn SlowConsumer = iota
	// DropMessage keeps the connection and drops the message. Write then fails with ErrFull, and a broadcast skips the
	// connection. Stats.Dropped counts both cases. A peer that reads nothing is still closed after Limits.WriteTimeout.
	DropMessage
)

// ListenAndServe listens on Addr and Listeners, and serves until ctx ends or Shutdown or Close is called. When ctx
// ends, the server shuts down within Limits.ShutdownTimeout. ListenAndServe returns when all goroutines and processes
// that it has started have ended. After an orderly shutdown, the result is nil. If connections were cut off, the result
// wraps context.DeadlineExceeded. Any other error is the reason why the server could not serve.
func (s *Server) ListenAndServe(ctx context.Context) error {
	where, err := s.collectAndCheckListeners(nil)
	if err != nil {
		return err
	}
	if _, ok := WorkerProcess(); ok && s.Processes > 1 {
		return s.serveAsWorker(ctx, where)
	}
	return s.takeOverAndServe(ctx, where)
}

// Run serves without listening, for programs that only dial; see Server.Dial. Server.Handler may be nil. The server
// calls Listening with a nil address as soon as Dial may be called. In all other respects, Run is like ListenAndServe.
func (s *Server) Run(ctx context.Context) error {
	if s.Processes > 1 {
		return badConfig("Run: Server.Processes is %d; expected 0 or 1", s.Processes)
	}
	return s.takeOverAndServe(ctx, nil)
}

func tcp4IfIPv4Wildcard(addr string) string {
	host, _, _ := net.SplitHostPort(addr) // listening reports an invalid address
	if ip, err := netip.ParseAddr(host); err == nil && ip == netip.IPv4Unspecified() {
		return "tcp4" // with "tcp", net.Listen would also accept IPv6
	}
	return "tcp"
}

// Serve is like ListenAndServe, but uses the listener l instead of Addr. l must be a *net.TCPListener, a
// *net.UnixListener or a NamedListener. The server owns and closes l. The caller removes the file of a unix socket.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if _, err := unwrapListenerKeepingSocketFile("Serve", l); err != nil {
		return err
	}
	defer l.Close()
	if s.Processes > 1 {
		return badConfig("Serve: Server.Processes is %d; expected 0 or 1, or a call of ListenAndServe, which listens in each process", s.Processes)
	}
	where, err := s.collectAndCheckListeners(l)
	if err != nil {
		return err
	}
	return s.takeOverAndServe(ctx, where)
}

func (s *Server) takeOverAndServe(ctx context.Context, listeners []Listener) error {
	s.mu.Lock()
	err := s.checkNotStartedLocked()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	for _, l := range handlersAs[*NetListener](s) {
		l.setServer(s)
		defer l.Close()
	}
	if err := s.claimPredecessor(); err != nil {
		return fmt.Errorf("myriad: upgrade: %w", err)
	}
	cfg, done, err := s.buildListenersInheritingSockets(listeners)
	if err != nil {
		if s.predecessor != nil {
			_ = s.predecessor.ReportFailure(err)
		}
		return err
	}
	defer done()
	e, err := s.configureAndStartEngine(cfg, listeners)
	if err != nil {
		if s.predecessor != nil {
			_ = s.predecessor.ReportFailure(err)
		}
		return err
	}
	stopOverload := s.startOverloadManager(e)
	defer s.startTakeOverFromPredecessor(e)()
	if s.Listening != nil && !s.isSupervisor() {
		if len(listeners) == 0 {
			s.Listening(nil)
		}
		for _, l := range e.ListenerStats() {
			s.Listening(l.Addr)
		}
	}
	ended := make(chan struct{})
	stopped := context.AfterFunc(ctx, func() {
		defer close(ended)
		err = s.logOpenAndDrain()
	})
	stopTicker := s.startTicker()
	e.Wait()
	stopTicker()
	stopOverload()
	s.resolver.cancelLookupsAndWait()
	s.blockingCalls.Wait()
	s.closeOwnPoolAndAwaitHandshakes()
	s.sendCountersToSuccessorAndClosePeers()
	if !stopped() {
		<-ended
	}
	if err == nil {
		err = supervisorFailureOrNil(e)
	}
	return s.awaitSuccessorExitIfStaying(errors.Join(err, s.aborted))
}

// checkNotStartedLocked returns an error if the server was already started or closed. The caller must hold s.mu.
func (s *Server) checkNotStartedLocked() error {
	switch {
	case s.engine == nil && !s.closed:
		return nil
	case s.engine == nil:
		return &kindError{errors.New("myriad: this Server was closed before it was started; use a new Server"), ErrServerClosed}
	case s.closed:
		return &kindError{errors.New("myriad: this Server has already served; a Server serves only once: use a new Server"), ErrServerClosed}
	}
	return errors.New("myriad: this Server is already serving; a Server serves only once: use a new Server")
}

func (s *Server) configureAndStartEngine(cfg engine.Config, listeners []Listener) (engine.Engine, error) {
	model, limits, err := s.checkSettingsAndApplyDefaults(listeners)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkNotStartedLocked(); err != nil {
		return nil, err
	}
	cfg.Limits, cfg.Spin, cfg.Log = limits.toEngine(), s.Spin, s.rateLimitedLogger()
	cfg.Socket = engine.Socket{SendBuffer: s.Socket.SendBuffer, ReceiveBuffer: s.Socket.ReceiveBuffer, Unsent: s.Socket.Unsent}
	cfg.Overload = s.initOverloadManagerOrNilLocked()
	cfg.Server, cfg.StartPaused = s, cfg.StartPaused || s.predecessor != nil
	s.activeListeners = listeners
	for _, h := range handlersAs[StartHandler](s) {
		h.Starting(s)
	}
	s.configureHandlers(&cfg)
	s.configureSourceAdmission(&cfg, limits)
	s.configureTLSAndProxyLayersLocked(&cfg, limits, listeners)
	if cfg.Loops, cfg.MaxConnsPerShard, err = s.resolveLoops(model, limits.MaxConns); err != nil {
		return nil, err
	}
	e, model, err := s.startSupervisorOrEngine(model, cfg)
	if err != nil {
		s.closeOwnPoolAndAwaitHandshakes()
		return nil, fmt.Errorf("myriad: %w", err)
	}
	_, worker := WorkerProcess() // in a worker, the supervisor has logged the choice
	if _, passed := models.BestAvailable(); s.choosesModel() && passed != nil && !worker {
		s.logModelChoice(model, passed)
	}
	s.engine, s.model, s.limits = e, model.Name, limits
	s.ticking = make(chan struct{}, 1)
	s.initUpgradeBroadcastLog(e, limits)
	s.resolver.start()
	return e, nil
}

// startSupervisorOrEngine starts the supervisor if this process is one, and otherwise an engine of model m. If m can't
// start and Server.Model is Auto, it starts an engine of another model.
func (s *Server) startSupervisorOrEngine(m engine.Model, cfg engine.Config) (_ engine.Engine, modelAfterFallback engine.Model, _ error) {
	if s.isSupervisor() {
		e, err := s.startSupervisor(cfg)
		return e, m, err
	}
	if len(cfg.Listeners) > 0 {
		if l, ok := cfg.Listeners[0].Socket.(engineStarter); ok {
			e, err := l.Start(cfg)
			return e, m, err
		}
	}
	if err := s.configureGivenOrAutoPool(&cfg); err != nil {
		return nil, m, err
	}
	e, m, reason, err := models.StartWithFallback(m, !s.choosesModel(), cfg)
	if reason != nil {
		s.logModelChoice(m, reason)
	}
	return e, m, err
}

// rateLimitedLogger returns a logger that writes equal messages at most once a second.
func (s *Server) rateLimitedLogger() *slog.Logger {
	log := s.Log
	if log == nil {
		log = slog.Default()
	}
	return slog.New(lograte.NewHandler(log.Handler(), "loop", "limit", "handler"))
}

func (s *Server) configureHandlers(cfg *engine.Config) {
	cfg.DropMessages, cfg.WriteDelay = s.SlowConsumer == DropMessage, s.WriteDelay
	cfg.PredecessorListeners = s.predecessorNumbers
	s.configureHandlerCallbacks(cfg, s.listenerHandler(-1))
	if !slices.ContainsFunc(s.activeListeners, func(l Listener) bool { return l.Handler != nil }) {
		return
	}
	for number := -1; number < len(s.activeListeners); number++ {
		callbacks := new(engine.Config)
		s.configureHandlerCallbacks(callbacks, s.listenerHandler(number))
		cfg.ListenerCallbacks = append(cfg.ListenerCallbacks, callbacks)
	}
}

func (s *Server) configureHandlerCallbacks(cfg *engine.Config, handler Handler) {
	cfg.Handler, cfg.Heartbeat = handlerAdapter{handler}, s.Heartbeat.toEngine(handler)
	if h, ok := handlerAs[WritableHandler](handler); ok {
		cfg.Drained = func(c *engine.Conn) { h.Writable((*Conn)(c)) }
	}
	if h, ok := handlerAs[MissedHandler](handler); ok {
		cfg.Missed = func(c *engine.Conn, n int64) { h.Missed((*Conn)(c), n) }
	}
	if h, ok := handlerAs[DrainingHandler](handler); ok {
		cfg.Draining = func(c *engine.Conn) { h.Draining((*Conn)(c)) }
	}
	if h, ok := handlerAs[TimerHandler](handler); ok {
		cfg.Timer = func(c *engine.Conn) { h.Timer((*Conn)(c)) }
	}
	cfg.Shed = newShedFuncOrNil(handler)
	configureMigration(cfg, handler)
}

func (s *Server) configureGivenOrAutoPool(cfg *engine.Config) (err error) {
	use := s.Workers
	if cfg.AutoWorkers = s.choosesModel() && use == nil; cfg.AutoWorkers {
		if s.ownPool, err = pool.New(autoPoolConfig); err != nil {
			return fmt.Errorf("myriad: %w", err)
		}
		use = s.ownPool
	}
	if use != nil {
		cfg.Pool = workers.NewEnginePool(use)
	}
	return nil
}

func (s *Server) closeOwnPoolAndAwaitHandshakes() {
	if s.ownPool != nil {
		_, _ = s.ownPool.Close(context.Background()) // no jobs are left
	}
	if s.handshakeLimiter != nil {
		s.handshakeLimiter.Wait()
	}
	s.tlsCiphers.Close()
}

func (s *Server) checkSettingsAndApplyDefaults(listeners []Listener) (m engine.Model, l Limits, err error) {
	if err = s.checkHandlers(listeners); err != nil {
		return m, l, err
	}
	if s.Loops < 0 || s.Loops > maxLoops {
		return m, l, badConfig("Server.Loops is %d; expected 0 (the default, %d here) to %d", s.Loops, defaultLoops(), maxLoops)
	}
	if s.Spin < 0 || s.Spin > maxSpin {
		return m, l, badConfig("Server.Spin is %v; expected 0 (the default: loops block at once) to %v", s.Spin, maxSpin)
	}
	if s.WriteDelay < 0 || s.WriteDelay > maxWriteDelay {
		return m, l, badConfig("Server.WriteDelay is %v; expected 0 (the default: no delay) to %v", s.WriteDelay, maxWriteDelay)
	}
	if s.SlowConsumer != CloseConn && s.SlowConsumer != DropMessage {
		return m, l, badConfig("Server.SlowConsumer is %d; expected CloseConn (the default, %d) or DropMessage (%d)", s.SlowConsumer, CloseConn, DropMessage)
	}
	for _, check := range []func() error{s.checkSocketBufferSizes, s.checkProcesses, s.checkPrefixListsAndSourceWeights, s.checkHeartbeat, s.checkTicker} {
		if err = check(); err != nil {
			return m, l, err
		}
	}
	if m, err = models.FindAvailable(s.Model); err != nil {
		return m, l, badConfig("Server.Model: %w", err)
	}
	l, err = s.limitsPerProcess().withDefaults()
	return m, l, err
}

func (s *Server) listenAddrOrZero() net.Addr {
	if a := s.ListenAddr(); a != nil {
		return a
	}
	return &net.TCPAddr{}
}

// Shutdown stops accepting and drains the server. Idle connections close immediately. Other connections close when the
// message that is arriving is complete and all output has been sent. Shutdown returns when the server has ended.
//
// If ctx ends first, Shutdown closes the remaining connections immediately. The error contains the number of these
// connections and wraps the cause of ctx. Shutdown then waits for running handlers, but gives up after a second in
// which no connection has closed. ListenAndServe and Serve wait for these handlers without a time limit.
//
// Because Shutdown waits for running handlers, a handler must call it in a new goroutine, or with a context that ends.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	e, worker := s.engine, s.worker
	s.mu.Unlock()
	if e == nil {
		return nil
	}
	if first && s.Stopping != nil && worker == nil {
		s.Stopping()
	}
	for _, l := range handlersAs[*NetListener](s) {
		_ = l.Close()
	}
	if err := e.Stop(ctx); err != nil {
		return fmt.Errorf("myriad: shutdown: %w", err)
	}
	return nil
}

// Close closes every connection immediately, without sending pending output. It waits for running handlers, but gives
// up after a second in which no connection closes. A handler may call Close.
func (s *Server) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Shutdown(ctx) // it reports only the cancelled context
	return nil
}

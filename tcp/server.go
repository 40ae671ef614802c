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
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/engine/workers"
	"github.com/myriad-go/myriad/internal/lograte"
	"github.com/myriad-go/myriad/internal/secure"
	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/pool"
)

// Server serves a Handler. Set its fields before it starts and do not change them afterwards. The
// zero value of each field except Addr and Handler is a good default. A Server can serve only
// once. Its methods are safe for concurrent use.
type Server struct {
	// Addr is the address on which ListenAndServe listens, as for net.Listen: host:port, such as
	// ":9000" or "127.0.0.1:0", or the path of a unix socket. Unlike with net.Listen,
	// "0.0.0.0:9000" is IPv4 only; ":9000" and "[::]:9000" are both IPv4 and IPv6.
	Addr string
	// Network is "tcp" (the default), "tcp4", "tcp6" or "unix". A unix socket left behind by a
	// killed process is replaced. Its file is removed at the end, unless a successor has replaced
	// it.
	Network string
	// Listeners are additional addresses with their own options, such as a TLS port or a unix
	// socket. With them Addr may be empty. Listeners and Addr are limited to 32. TLSConfig and
	// TrustedProxies below apply only to Addr or the listener of Serve; all other fields apply to
	// all listeners.
	Listeners []Listener
	// Handler handles the connections. It is required.
	Handler Handler
	// Model is the I/O model: Goroutine, Epoll, Uring or Auto, the default.
	Model string
	// Loops is the number of event loops, if the model has them, at most 1,024. The default is
	// half of GOMAXPROCS, at least 1. If Loops equals GOMAXPROCS, raise GOMAXPROCS by one, so
	// that Go's scheduler does not take processors from loops that block briefly; with workers,
	// set it to the number of CPUs plus that of loops.
	//
	// If Limits.MaxConns exceeds the descriptor limit, there are as many loops as necessary, each
	// with its own descriptor table (a shard). A handler on such a loop can use files that were
	// open when the server started, and those that it opens and closes within one call. It can't
	// use descriptors that other goroutines use or open, such as those of os/exec, net.Dial or a
	// database connection: in the loop's table their numbers, from 512 on, may belong to clients.
	// With Workers, handlers run elsewhere and can use all descriptors. Files that are open at
	// the start remain open in each table until the server ends; /proc/PID/task/TID/fd lists the
	// connections, /proc/PID/fd does not.
	Loops int
	// Spin is the time for which an idle event loop polls before it blocks, at most 10 ms. The
	// default is 0: it blocks at once. Spinning avoids wake-ups, which helps if few connections
	// wait for each answer: with one connection on two CPUs, 200 µs gave 26,000 instead of 13,000
	// echoes a second, for 38 instead of 28 µs of CPU each. Under load it has no effect. It uses
	// up to one CPU per loop and slows other work on the machine.
	Spin time.Duration
	// Workers, if set, runs the handler on a worker pool instead of the event loops; the
	// goroutine model ignores it. The default, nil, runs handlers on the loops, which is fastest
	// as long as they neither block nor compute for long. Calls for one connection stay in order;
	// it has at most one job in the pool. A connection that the pool rejects or sheds waits, and
	// is not read from, unless the handler is a ShedHandler: no call is lost. For other handlers,
	// set KeepQueued and FIFO in pool.Config, because shed calls are only submitted again.
	//
	// The caller owns the pool, may share it, and closes it after the server has ended. If it is
	// closed earlier, each connection is closed with ErrWorkersClosed at the next call of its
	// handler; Opened, if due, and Closed then run on the loop.
	//
	// During an orderly shutdown (Shutdown), pending calls still wait for the pool. A forced end
	// (Close, or the end of Shutdown's context) closes connections that the pool rejects with
	// ErrServerClosed, on the loop. Jobs already queued must run or be shed first: while other
	// users occupy all workers, the server does not end.
	Workers *pool.Pool
	// Processes is the number of worker processes, at most 1,024 (Linux only). With 0, the
	// default, and 1 this process serves. Otherwise ListenAndServe becomes the supervisor: it
	// starts this program that often with the same arguments, and main, which runs in each
	// worker, must reach the same call; see WorkerProcess. A worker that ends is restarted after
	// 100 ms, doubled up to 10 s for each consecutive life shorter than 10 s; connections to its
	// socket wait meanwhile. ListenAndServe fails after all workers have ended 10 times in a row
	// before serving. A worker that does not serve within 2 minutes, or does not exit within 30 s
	// after it has stopped serving, is killed.
	//
	// Limits.MaxConns, MaxBuffered and AcceptRate are divided evenly among the workers; other
	// limits, Loops (default 1) and Workers apply to each. The kernel distributes connections
	// randomly, so a worker may be full a few per cent early. Listening is called when all
	// workers serve, and only in this process. Shutdown drains the workers and kills those that
	// have not ended when its ctx ends; Close kills them at once.
	//
	// A worker ignores SIGINT, and SIGHUP unless main handles it with os/signal; SIGTERM drains
	// it within Limits.ShutdownTimeout. A drain ordered by the supervisor is limited by the
	// supervisor; main then gets at most one SIGTERM. Workers drain and exit if their supervisor
	// dies.
	Processes int
	// Limits are the resource and time limits.
	Limits Limits
	// Socket sets options of the connections' sockets.
	Socket Socket
	// SlowConsumer selects what happens if a peer does not read its output: CloseConn, the
	// default, or DropMessage.
	SlowConsumer SlowConsumer
	// Heartbeat is sent to silent peers if its Interval is set.
	Heartbeat Heartbeat
	// Deny lists addresses that are rejected. If Allow is not empty, only its addresses are
	// admitted, unless Deny contains them. Connections by unix sockets are always admitted. Each
	// list has at most 1,048,576 prefixes.
	Allow, Deny []netip.Prefix
	// TrustedProxies are addresses from which each connection begins with a PROXY protocol
	// header, version 1 or 2. RemoteAddr, Allow, Deny and Limits.MaxConnsPerSource use the
	// address in the header, or the proxy's own if the header has none (LOCAL, as in health
	// checks, UNKNOWN, or a unix socket). A connection with an invalid header, one longer than
	// 4,096 bytes or an unspecified address (0.0.0.0 or ::) is rejected. From other addresses
	// such a header is ordinary input. If there is any prefix here, connections by unix sockets
	// begin with a header, too.
	TrustedProxies []netip.Prefix
	// TLSConfig, if set, encrypts every connection of Addr or Serve; the handler is called after
	// the handshake. It needs a certificate, see ReloadCertificate, and must not be changed while
	// the server runs. At most Limits.MaxHandshakes handshakes are in progress; they compute on
	// goroutines off the loops, half as many as GOMAXPROCS.
	//
	// If the configuration has no session ticket keys, the server generates a new key each day,
	// and Upgrade passes the keys on. It does not if client certificates may be required
	// (ClientAuth, GetConfigForClient), or tickets are customized (WrapSession) or disabled. With
	// Processes each worker generates its own keys; to let clients resume at any worker, call
	// tls.Config.SetSessionTicketKeys with the same keys in each before the start.
	TLSConfig *tls.Config
	// Refuse, if set, returns the answer, or nil, for a connection rejected with why:
	// ErrTooManyConns, ErrTooManyFromSource or ErrDenied. The answer is sent unencrypted, as far
	// as the kernel accepts it at once, and the connection is closed. A connection that is
	// rejected because of its PROXY header (TrustedProxies) gets the answer like ordinary output
	// and is then closed; until then, for at most Limits.CloseTimeout and Linger, it counts
	// towards Limits.MaxConns. Refuse may be called concurrently on any goroutine and must not
	// block.
	Refuse func(remote net.Addr, why error) (answer []byte)
	// Log receives messages for operators, such as panics and accept errors. The default is
	// slog.Default().
	Log *slog.Logger
	// Listening, if set, is called when the server listens on all addresses: once for each
	// address, in the order of ListenerStats. ListenAndServe and Serve wait for its return.
	Listening func(addr net.Addr)
	// Stopping, if set, is called once when shutdown begins: by the end of ListenAndServe's
	// context, Drain, Shutdown or Close. It runs on the goroutine that shuts down, which waits
	// for it before it closes anything; further calls do not wait. With Processes it is called
	// only in this process, and not if ListenAndServe fails because the workers keep ending.
	Stopping func()

	// Successor, if set, returns the command that Upgrade starts as the new process. Upgrade adds
	// to its ExtraFiles and, if that is not nil, Env. The default runs the file that the name of
	// this process now refers to, or else its executable, with the same arguments, standard
	// input, output and error.
	Successor func() (*exec.Cmd, error) `json:"-"`

	// Stay keeps this process running after an Upgrade, for supervisors that watch the process
	// they started, such as an init or a shell in a container, runit and supervisord.
	// ListenAndServe then returns when the new process, or its last successor, has ended; with an
	// error if that failed. Until then the process forwards SIGHUP, SIGINT, SIGQUIT, SIGTERM,
	// SIGUSR1 and SIGUSR2 to the serving process, except those that a terminal also sends to
	// that, and adopts and reaps orphans; main still gets the signals that it handles with
	// os/signal. The default is false. Process 1 always stays; new processes never do.
	Stay bool

	upgradeState
	mu               sync.Mutex
	engine           engine.Engine   // nil before the start
	activeListeners  []Listener      // with all defaults
	worker           workerForwarder // set in a worker process
	model            string
	ownPool          *pool.Pool               // Auto's pool, or nil
	handshakeLimiter *secure.HandshakeLimiter // nil without TLS
	resolver         resolver
	blockingCalls    sync.WaitGroup // callbacks of Blocking handlers
	limits           Limits
	closed           bool

	loggedMisuse sync.Map // methods of kept Conns that were already logged
}

// Socket sets options of connections' sockets. The zero value leaves them to the kernel, which
// buffers up to net.ipv4.tcp_wmem[2] bytes (default 4 MiB) for a peer that does not read before
// they count for Pending, Limits.MaxUnsent and the timeouts of slow peers. On systems other than
// Linux they are ignored for accepted connections.
type Socket struct {
	// SendBuffer and ReceiveBuffer are SO_SNDBUF and SO_RCVBUF in bytes, at most 1 GiB. The
	// kernel doubles them and limits them to net.core.wmem_max and rmem_max. 0, the default, lets
	// the kernel adapt them to each connection.
	SendBuffer, ReceiveBuffer int
	// Unsent is TCP_NOTSENT_LOWAT in bytes, at most 1 GiB: the kernel accepts no more output
	// while that much has not been sent to the network. The rest waits in the server, where it is
	// counted; data in flight is not limited. 0, the default, is net.ipv4.tcp_notsent_lowat: no
	// limit.
	Unsent int
	// Control, if set, is called for each TCP socket that will listen on an Addr, before it is
	// bound, like that of net.ListenConfig: for options that connections inherit, or of the
	// listener, such as TCP_DEFER_ACCEPT or SO_BINDTODEVICE. There is a socket for each loop or
	// worker process, and possibly one more; the supervisor creates those of workers. The fields
	// above are set afterwards. An error prevents the start. The default is nil. It is not called
	// for listeners made by the caller.
	Control func(network, address string, raw syscall.RawConn) error `json:"-"`
}

const maxSocketBuffer = 1 << 30

func (s *Server) checkSocketOptions() error {
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

// SlowConsumer selects how to deal with a peer that reads too slowly.
type SlowConsumer int

const (
	// CloseConn closes the connection with ErrSlowConsumer.
	CloseConn SlowConsumer = iota
	// DropMessage keeps the connection and drops the message: Write fails with ErrFull, a
	// broadcast skips the connection, and Stats.Dropped counts both. A peer that reads nothing at
	// all is still closed after Limits.WriteTimeout.
	DropMessage
)

// ListenAndServe listens on Addr and Listeners and serves until ctx ends or Shutdown or Close is
// called. When ctx ends, it shuts down within Limits.ShutdownTimeout. It returns when everything
// that it started has ended: nil after an orderly shutdown, an error that wraps
// context.DeadlineExceeded if connections were cut off, or the reason why it could not serve.
func (s *Server) ListenAndServe(ctx context.Context) error {
	where, err := s.collectAndCheckListeners(nil)
	if err != nil {
		return err
	}
	if _, ok := WorkerProcess(); ok && s.Processes > 1 {
		return s.serveAsWorker(ctx, where)
	}
	return s.serve(ctx, where)
}

// Run serves without listening, for programs that only dial; see Server.Dial. Server.Handler may
// be nil. Listening is called with nil when Dial may be called. Otherwise Run is like
// ListenAndServe.
func (s *Server) Run(ctx context.Context) error {
	if s.Processes > 1 {
		return badConfig("Run with Server.Processes %d; expected 0 or 1", s.Processes)
	}
	if s.Handler == nil {
		s.Handler = Base{}
	}
	return s.serve(ctx, nil)
}

// tcp4IfIPv4Wildcard returns the network for addr: tcp4 for the IPv4 wildcard, which package net would
// treat as both IPv4 and IPv6.
func tcp4IfIPv4Wildcard(addr string) string {
	host, _, _ := net.SplitHostPort(addr) // listening reports an invalid address
	if ip, err := netip.ParseAddr(host); err == nil && ip == netip.IPv4Unspecified() {
		return "tcp4"
	}
	return "tcp"
}

// Serve is ListenAndServe on a listener made by the caller or returned by ActivatedListeners: a
// *net.TCPListener or *net.UnixListener. The server owns and closes it. The caller removes the
// file of a unix socket.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if _, err := unwrapServableListener("Serve", l); err != nil {
		return err
	}
	defer l.Close()
	if s.Processes > 1 {
		return badConfig("Serve with Server.Processes %d; expected ListenAndServe, which listens for each process", s.Processes)
	}
	where, err := s.collectAndCheckListeners(l)
	if err != nil {
		return err
	}
	return s.serve(ctx, where)
}

func (s *Server) serve(ctx context.Context, listeners []Listener) error {
	s.mu.Lock()
	err := s.checkNotStarted()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if l, ok := s.Handler.(*NetListener); ok {
		l.setServer(s)
		defer l.Close()
	}
	if err := s.claimPredecessor(); err != nil {
		return fmt.Errorf("myriad: upgrade: %w", err)
	}
	cfg, done, err := s.buildListenerConfig(listeners)
	if err != nil {
		if s.predecessor != nil {
			_ = s.predecessor.ReportFailure(err)
		}
		return err
	}
	defer done()
	e, err := s.startEngine(cfg, listeners)
	if err != nil {
		if s.predecessor != nil {
			_ = s.predecessor.ReportFailure(err)
		}
		return err
	}
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
		err = s.Drain()
	})
	e.Wait()
	s.resolver.stopAndWait()
	s.blockingCalls.Wait()
	s.closePool()
	s.sendCountersAndClosePeers()
	if !stopped() {
		<-ended
	}
	if err == nil {
		err = supervisorError(e)
	}
	return s.stayUntilSuccessorExits(errors.Join(err, s.aborted))
}

// checkNotStarted returns an error if the server has been started or closed before. The caller holds
// mu.
func (s *Server) checkNotStarted() error {
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

// startEngine checks the settings and starts the engine.
func (s *Server) startEngine(cfg engine.Config, listeners []Listener) (engine.Engine, error) {
	model, limits, err := s.checkSettingsAndApplyDefaults()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkNotStarted(); err != nil {
		return nil, err
	}
	cfg.Limits, cfg.Spin, cfg.Log = limits.toEngine(), s.Spin, s.rateLimitedLogger()
	cfg.Socket = engine.Socket{SendBuffer: s.Socket.SendBuffer, ReceiveBuffer: s.Socket.ReceiveBuffer, Unsent: s.Socket.Unsent}
	cfg.Server, cfg.StartPaused = s, cfg.StartPaused || s.predecessor != nil
	if h, ok := handlerAs[StartHandler](s.Handler); ok {
		h.Starting(s)
	}
	s.configureHandler(&cfg)
	s.configureAdmission(&cfg, limits)
	s.configureTLSAndProxyLayers(&cfg, limits, listeners)
	if cfg.Loops, cfg.MaxConnsPerShard, err = s.resolveLoops(model, limits.MaxConns); err != nil {
		return nil, err
	}
	e, model, err := s.startSupervisorOrEngine(model, cfg)
	if err != nil {
		s.closePool()
		return nil, fmt.Errorf("myriad: %w", err)
	}
	_, worker := WorkerProcess() // its supervisor has logged the choice
	if _, passed := models.BestAvailable(); s.choosesModel() && passed != nil && !worker {
		s.logModelChoice(model, passed)
	}
	s.engine, s.activeListeners, s.model, s.limits = e, listeners, model.Name, limits
	s.initBroadcastLog(e, limits)
	s.resolver.start()
	return e, nil
}

// startSupervisorOrEngine starts the engine of model m, or of the one that Auto falls back to, which it
// returns.
func (s *Server) startSupervisorOrEngine(m engine.Model, cfg engine.Config) (engine.Engine, engine.Model, error) {
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
	if err := s.configureWorkerPool(&cfg); err != nil {
		return nil, m, err
	}
	e, m, why, err := models.StartWithFallback(m, !s.choosesModel(), cfg)
	if why != nil {
		s.logModelChoice(m, why)
	}
	return e, m, err
}

// logModelChoice logs the chosen model and the reason for not using a better one.
func (s *Server) logModelChoice(m engine.Model, reason error) {
	s.rateLimitedLogger().Info("I/O model chosen", "model", m.Name, "reason", reason.Error())
}

// rateLimitedLogger returns the engine's log. Messages that each connection could cause are limited to one
// per second for each loop, limit that closes connections, and type of handler.
func (s *Server) rateLimitedLogger() *slog.Logger {
	log := s.Log
	if log == nil {
		log = slog.Default()
	}
	return slog.New(lograte.NewHandler(log.Handler(), "loop", "limit", "handler"))
}

// configureHandler sets the engine's callbacks.
func (s *Server) configureHandler(cfg *engine.Config) {
	cfg.Handler, cfg.Heartbeat = handlerAdapter{s.Handler}, s.Heartbeat.toEngine(s.Handler)
	cfg.DropMessages = s.SlowConsumer == DropMessage
	if h, ok := handlerAs[WritableHandler](s.Handler); ok {
		cfg.Drained = func(c *engine.Conn) { h.Writable((*Conn)(c)) }
	}
	if h, ok := handlerAs[DrainingHandler](s.Handler); ok {
		cfg.Draining = func(c *engine.Conn) { h.Draining((*Conn)(c)) }
	}
	if h, ok := handlerAs[TimerHandler](s.Handler); ok {
		cfg.Timer = func(c *engine.Conn) { h.Timer((*Conn)(c)) }
	}
	cfg.Shed = newShedFunc(s.Handler)
	s.configureMigration(cfg)
}

// configureWorkerPool sets the pool that runs the handler, and creates Auto's.
func (s *Server) configureWorkerPool(cfg *engine.Config) (err error) {
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

// choosesModel reports whether the server chooses the model (Auto).
func (s *Server) choosesModel() bool { return s.Model == "" || s.Model == Auto }

// closePool closes Auto's pool and waits for handshakes, after the engine has ended.
func (s *Server) closePool() {
	if s.ownPool != nil {
		_, _ = s.ownPool.Close(context.Background()) // no jobs are left
	}
	if s.handshakeLimiter != nil {
		s.handshakeLimiter.Wait()
	}
}

// checkSettingsAndApplyDefaults validates the settings and returns the model and the limits with defaults.
func (s *Server) checkSettingsAndApplyDefaults() (m engine.Model, l Limits, err error) {
	if err = checkHandler("Server.Handler", s.Handler); err != nil {
		return m, l, err
	}
	if s.Loops < 0 || s.Loops > maxLoops {
		return m, l, badConfig("Server.Loops is %d; expected 0 (the default, %d here) to %d", s.Loops, defaultLoops(), maxLoops)
	}
	if s.Spin < 0 || s.Spin > maxSpin {
		return m, l, badConfig("Server.Spin is %v; expected 0 (the default: loops block at once) to %v", s.Spin, maxSpin)
	}
	if s.SlowConsumer != CloseConn && s.SlowConsumer != DropMessage {
		return m, l, badConfig("Server.SlowConsumer is %d; expected CloseConn (the default, %d) or DropMessage (%d)", s.SlowConsumer, CloseConn, DropMessage)
	}
	for _, check := range []func() error{s.checkShedSignature, s.checkSocketOptions, s.checkProcesses, s.checkAllowAndDenyLists, s.checkHeartbeat} {
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

// listenAddrOrZero returns the listen address, or an empty *net.TCPAddr if the server does not
// listen.
func (s *Server) listenAddrOrZero() net.Addr {
	if a := s.ListenAddr(); a != nil {
		return a
	}
	return &net.TCPAddr{}
}

// resolveLoops returns the number of loops and, if they need their own descriptor tables, the
// maximum connections of each.
func (s *Server) resolveLoops(m engine.Model, maxConns int) (loops, connsPerShard int, err error) {
	loops = s.Loops
	switch {
	case loops == 0 && s.Processes > 1:
		loops = 1
	case loops == 0:
		loops = defaultLoops()
	}
	limit := maxLoops
	if !m.HasLoops {
		limit = 0
	}
	need, connsPerShard, err := sock.PlanLoopsAndDescriptorTables(maxConns, loops, limit)
	switch {
	case err != nil:
		return 0, 0, badConfig("Limits.MaxConns: %w; or serve with event loops (Server.Model) or Server.Processes, "+
			"which each have their own limit", err)
	case s.Loops > 0 && s.Loops < need:
		return 0, 0, badConfig("Server.Loops is %d; expected 0 (the default: as many as necessary) or at least %d, "+
			"for %d connections with this descriptor limit: each has its own table for %d",
			s.Loops, need, maxConns, connsPerShard)
	}
	return need, connsPerShard, nil
}

// Shutdown stops accepting, lets each connection finish its current work, and closes it: idle
// ones at once, others after the message that has begun to arrive is complete and all output is
// sent. It returns when all connections are closed and everything has ended. If ctx ends first,
// the remaining connections are closed at once, and Shutdown returns an error that has their
// number and wraps ctx's cause. It then waits at most a second for running handlers;
// ListenAndServe and Serve wait for them without limit. Further calls behave the same. A handler
// that calls Shutdown waits for itself: call it in a new goroutine, or with a context that ends.
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
	if l, ok := s.Handler.(*NetListener); ok {
		_ = l.Close()
	}
	if err := e.Stop(ctx); err != nil {
		return fmt.Errorf("myriad: shutdown: %w", err)
	}
	return nil
}

// Close closes every connection at once, without sending pending output. It returns when
// everything has ended, or after a second if handlers have not returned, such as the one that
// calls it.
func (s *Server) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Shutdown(ctx) // it reports only the cancelled context
	return nil
}

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

// Server serves a Handler. Its fields are set before it starts and not changed
// after; the zero value of each but Addr and Handler is a good default. A Server
// serves once. Its methods are safe for concurrent use.
type Server struct {
	// Addr is where ListenAndServe listens, as for net.Listen: host:port,
	// such as ":9000" or "127.0.0.1:0", or the path of a unix socket. Unlike
	// there, "0.0.0.0:9000" is IPv4 alone; ":9000" and "[::]:9000" are both.
	Addr string
	// Network is "tcp" (the default), "tcp4", "tcp6" or "unix". A socket that a
	// killed process has left at the path is taken over; the file is removed
	// at the end, unless a successor has put its own there.
	Network string
	// Listeners are where else to listen: on a port with TLS beside one without, or
	// at a unix socket, each with its own options. With them Addr may be empty. They
	// and Addr are 32 at most. TLSConfig and TrustedProxies below are for Addr, or
	// the listener of Serve, alone; all else is for all of them together.
	Listeners []Listener
	// Handler is what happens on each connection. It is required.
	Handler Handler
	// Model is the I/O model: Goroutine, Epoll, Uring or Auto, the default.
	Model string
	// Loops is the number of event loops, for the models that have them, at most 1,024.
	// The default is half of GOMAXPROCS, at least 1. With as many loops as GOMAXPROCS,
	// raise GOMAXPROCS by one, so that Go's scheduler leaves loops that wait for a moment
	// alone; with workers, raise it to the number of CPUs plus that of loops.
	//
	// When Limits.MaxConns exceeds the limit of descriptors, there are as many loops as
	// it takes, each with a descriptor table of its own (a shard). A handler on such a
	// loop can use the files that were open when the server started, and what it opens and
	// closes by itself within one call; not descriptors that other goroutines use or
	// open, as those of os/exec, net.Dial or a connection to a database: in that table
	// their numbers, from 512 on, may be those of clients. With Workers handlers run
	// elsewhere, and can use all. Files open at the start stay so in each table until the
	// server ends; /proc/PID/task/TID/fd shows the connections, /proc/PID/fd does not.
	Loops int
	// Spin is how long an event loop without work polls before it blocks, at most 10 ms.
	// The default is 0: it blocks at once. Spinning saves wake-ups, which shows where few
	// connections wait for each answer (with one connection on two CPUs, 200 µs gave
	// 26,000 echoes a second instead of 13,000, for 38 µs of CPU each instead of 28), and
	// gives nothing under load. It costs up to a CPU for each loop, and slows down other
	// work on the machine.
	Spin time.Duration
	// Workers, if set, runs the handler, off the event loops, for the models that have
	// them; the goroutine model ignores it. The default, nil, runs handlers on the loops,
	// which is fastest as long as they neither block nor compute for long. Calls for one
	// connection stay in order, and it has at most one job in the pool. A connection that
	// the pool has no room for, or sheds, waits and is not read from, unless the handler
	// is a ShedHandler: no call is lost. For a handler that is none, a pool without
	// pool.Shedding and pool.NewestFirst does best, as what is shed only comes again.
	//
	// The pool is the caller's, who may share it and closes it after the server has ended.
	// If it is closed before, each connection is closed with ErrWorkersClosed when its
	// handler is next to be called; Opened, if due, and Closed are called on the loop then.
	//
	// In an orderly end (Shutdown) what is due still waits for room in the pool. At a
	// forced end (Close, or the end of Shutdown's context) connections that the pool has
	// no room for are closed with ErrServerClosed, on the loop. What the pool has queued
	// comes back only when it has run or was shed: as long as others hold all its
	// workers, the server does not end.
	Workers *pool.Pool
	// Processes is how many worker processes serve, at most 1,024 (Linux only); with 0, the
	// default, and 1 this process does. ListenAndServe then supervises: it starts this
	// program with the same arguments that often, and main, which runs in each of them,
	// must come to the same call; see WorkerProcess. A worker that ends is started again,
	// after 100 ms, doubled up to 10 s for each life in a row shorter than 10 s;
	// connections to its socket wait meanwhile. ListenAndServe fails when all workers have
	// ended 10 times in a row before they served. A worker that does not serve within 2
	// minutes of its start, or end within 30 s of having stopped to serve, is killed.
	//
	// Limits.MaxConns, MaxBuffered and AcceptRate are divided evenly among them; all other
	// limits, Loops (1 by default) and Workers are for each. The kernel spreads
	// connections by chance, so a worker may be full a few per cent early. Listening is
	// called when all serve, and only in this process. Shutdown drains the workers and
	// kills those that have not ended with its ctx; Close kills them at once.
	//
	// A worker ignores SIGINT, and SIGHUP unless main asks for it with os/signal; SIGTERM
	// drains it within Limits.ShutdownTimeout. The supervisor bounds a drain that it orders,
	// for which main gets one SIGTERM at most. Workers whose supervisor has gone drain and
	// end.
	Processes int
	// Limits are the bounds that are kept.
	Limits Limits
	// Socket are options of the connections' sockets.
	Socket Socket
	// SlowConsumer is what happens when a peer does not take what is written
	// for it: CloseConn, the default, or DropMessage.
	SlowConsumer SlowConsumer
	// Heartbeat, if its Interval is set, is sent to silent peers.
	Heartbeat Heartbeat
	// Deny are the addresses that are not let in, and Allow, if it is not
	// empty, those that are, of the others. Connections by unix sockets are
	// always let in. At most 1,048,576 prefixes each.
	Allow, Deny []netip.Prefix
	// TrustedProxies are the addresses from which connections begin with a header of the
	// PROXY protocol, version 1 or 2: RemoteAddr, Allow, Deny and Limits.MaxConnsPerSource
	// go by the address in it, or by the proxy's own where there is none (LOCAL, as in
	// health checks, UNKNOWN, a unix socket). A connection without a valid header, with one
	// of more than 4,096 bytes, or from an unspecified address (0.0.0.0 or ::) is turned
	// away. From other addresses such a header is nothing but input. With any prefix here
	// connections by unix sockets, too, begin with it.
	TrustedProxies []netip.Prefix
	// TLSConfig, if set, encrypts every connection by Addr or Serve: the handler is called
	// when the handshake is over. It needs a certificate, see ReloadCertificate, and is not
	// changed while the server runs. At most Limits.MaxHandshakes handshakes are under
	// way, which compute on half of GOMAXPROCS goroutines, off the loops. Without keys of the
	// user for session tickets the server makes its own, a new one each day, and Upgrade passes
	// them on, unless clients may have to show certificates (ClientAuth, GetConfigForClient), or
	// tickets are the user's (WrapSession) or off. With Processes
	// each worker makes its own keys for session tickets; tls.Config.SetSessionTicketKeys,
	// called before the start with the same keys in each, lets clients resume at any.
	TLSConfig *tls.Config
	// Refuse, if set, gives the answer, nil for none, to a connection that is not admitted,
	// because of why: ErrTooManyConns, ErrTooManyFromSource or ErrDenied. It is sent, not
	// encrypted, as far as the kernel takes it at once, and the connection closed. One that
	// is turned away by the address in a PROXY header (TrustedProxies) gets its answer like any
	// output and is closed in order; it counts among Limits.MaxConns until then, for
	// Limits.CloseTimeout and Linger at most. It is called on any goroutine, concurrently,
	// and must not block.
	Refuse func(remote net.Addr, why error) (answer []byte)
	// Log gets what an operator has to know, such as panics and accepts
	// that fail. The default is slog.Default().
	Log *slog.Logger
	// Listening, if set, is called with the address that is listened on, before
	// ListenAndServe or Serve waits: when all are listened on, once for each in
	// the order of ListenerStats.
	Listening func(addr net.Addr)
	// Stopping, if set, is called once when shutdown begins, by
	// whatever way: the end of ListenAndServe's context, Drain, Shutdown or
	// Close. It is called on the goroutine that does so, before anything is
	// closed, which waits for its return; further calls of these do not. With
	// Processes it is called only in this process, and not when ListenAndServe
	// ends because the workers do not stay alive.
	Stopping func()

	// Successor, if set, gives the command with which Upgrade starts the new process; Upgrade adds
	// to its Env, if that is not nil, and ExtraFiles. The default is the file under the name by which
	// this process was started, as it is by then, or else its executable, with the same
	// arguments and the same standard input, output and error.
	Successor func() (*exec.Cmd, error) `json:"-"`

	// Stay keeps this process alive after an Upgrade, for whatever watches the process that it
	// has started: an init or a shell in a container, runit, supervisord. ListenAndServe returns
	// when the new process, or the last that has taken its place, has ended, with an error unless
	// that was in order. Until then SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2 are passed
	// on to the process that serves, except those that a terminal sends it anyway; orphans are adopted
	// and reaped; and main still gets the signals that it asks for with os/signal. The default is
	// false; process 1 always stays, and no new process does.
	Stay bool

	migration
	mu     sync.Mutex
	engine engine.Engine // nil before the start
	where  []Listener    // where it listens
	worker relay         // in a worker process: passes broadcasts on
	model  string
	own    *pool.Pool   // Auto's, nil without
	gate   *secure.Gate // nil without TLS
	names  names
	calls  sync.WaitGroup // of a Blocking handler's functions
	limits Limits
	closed bool

	outside sync.Map // the methods of kept Conns that are in the log
}

// Socket are options of the sockets of connections. The zero value leaves all to the
// kernel, which lets a peer that does not read have up to net.ipv4.tcp_wmem[2] bytes
// (4 MiB by default) before Pending, Limits.MaxUnsent and the times of slow peers see
// any of it. Elsewhere than on Linux they are ignored for accepted connections.
type Socket struct {
	// SendBuffer and ReceiveBuffer are SO_SNDBUF and SO_RCVBUF in bytes, at most
	// 1 GiB. The kernel doubles them, and caps them at net.core.wmem_max and rmem_max;
	// 0, the default, lets it adapt them to each connection.
	SendBuffer, ReceiveBuffer int
	// Unsent is TCP_NOTSENT_LOWAT in bytes, at most 1 GiB: with so much that has not
	// been sent to the network yet, the kernel takes no more, so that the rest waits
	// here, where it is counted, and what is under way is as large as the network
	// makes use of. 0, the default, is net.ipv4.tcp_notsent_lowat: no bound.
	Unsent int
	// Control, if set, is called with each TCP socket that is to listen at an Addr, before it
	// is bound, as that of net.ListenConfig is: for options that connections inherit, or of
	// the listener, such as TCP_DEFER_ACCEPT or SO_BINDTODEVICE. There is a socket for each
	// loop, or worker process, and one more may be tried; worker processes have theirs made by
	// their supervisor. The fields above are set after it. An error keeps the server from
	// starting. The default is nil. Listeners that the caller has made are not passed to it.
	Control func(network, address string, raw syscall.RawConn) error `json:"-"`
}

// maxSocketBuffer bounds the sizes of Socket.
const maxSocketBuffer = 1 << 30

func (s *Server) checkSocket() error {
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

// SlowConsumer is a way to deal with a peer that reads too slowly.
type SlowConsumer int

const (
	// CloseConn closes the connection with ErrSlowConsumer.
	CloseConn SlowConsumer = iota
	// DropMessage keeps the connection and drops the message: Write fails
	// with ErrFull, a broadcast passes the connection over, and both are
	// counted in Stats.Dropped. A peer that takes nothing at all is closed
	// all the same, after Limits.WriteTimeout.
	DropMessage
)

// ListenAndServe listens on Addr and serves until ctx ends or Shutdown or Close
// is called. When ctx ends it shuts down like Shutdown, within
// Limits.ShutdownTimeout. It returns when everything that it started has ended:
// nil after an orderly end, an error that wraps context.DeadlineExceeded when
// connections had to be cut off, or what kept it from serving.
func (s *Server) ListenAndServe(ctx context.Context) error {
	where, err := s.listens(nil)
	if err != nil {
		return err
	}
	if _, ok := WorkerProcess(); ok && s.Processes > 1 {
		return s.work(ctx, where)
	}
	return s.serve(ctx, where)
}

// Run serves without listening: for programs that only dial; see Server.Dial.
// Otherwise it is as ListenAndServe: Listening is called with nil when Dial may be
// called. Server.Handler may be nil.
func (s *Server) Run(ctx context.Context) error {
	if s.Processes > 1 {
		return badConfig("Run with Server.Processes %d; expected 0 or 1", s.Processes)
	}
	if s.Handler == nil {
		s.Handler = Base{}
	}
	return s.serve(ctx, nil)
}

// family is the network to listen on for TCP: tcp4 for the wildcard of IPv4, of which
// package net makes that of IPv6, and so both.
func family(addr string) string {
	host, _, _ := net.SplitHostPort(addr) // what is wrong with it listening says
	if ip, err := netip.ParseAddr(host); err == nil && ip == netip.IPv4Unspecified() {
		return "tcp4"
	}
	return "tcp"
}

// Serve is ListenAndServe on a listener that the caller has made, or that
// ActivatedListeners gives: a *net.TCPListener or *net.UnixListener. The server
// owns it from then on and closes it. The file of a unix socket is left to the
// caller.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if _, err := rawListener("Serve", l); err != nil {
		return err
	}
	defer l.Close()
	if s.Processes > 1 {
		return badConfig("Serve with Server.Processes %d; expected ListenAndServe, which listens once for each process", s.Processes)
	}
	where, err := s.listens(l)
	if err != nil {
		return err
	}
	return s.serve(ctx, where)
}

func (s *Server) serve(ctx context.Context, where []Listener) error {
	s.mu.Lock()
	err := s.checkUnused()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if l, ok := s.Handler.(*NetListener); ok {
		l.begin(s)
		defer l.Close()
	}
	if err := s.inherit(); err != nil {
		return fmt.Errorf("myriad: upgrade: %w", err)
	}
	cfg, done, err := s.open(where)
	if err != nil {
		if s.predecessor != nil {
			_ = s.predecessor.Fail(err)
		}
		return err
	}
	defer done()
	e, err := s.start(cfg, where)
	if err != nil {
		if s.predecessor != nil {
			_ = s.predecessor.Fail(err)
		}
		return err
	}
	defer s.succeed(e)()
	if s.Listening != nil && !s.preforks() {
		if len(where) == 0 {
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
	s.names.end()
	s.calls.Wait()
	s.endWorkers()
	s.endLinks()
	if !stopped() {
		<-ended
	}
	if err == nil {
		err = gaveUp(e)
	}
	return s.stay(errors.Join(err, s.aborted))
}

// checkUnused reports why the server can't start, if it has been started or closed before. The
// caller holds mu.
func (s *Server) checkUnused() error {
	switch {
	case s.engine == nil && !s.closed:
		return nil
	case s.engine == nil:
		return &kindError{errors.New("myriad: this Server was closed before it was started; expected a new Server"), ErrServerClosed}
	case s.closed:
		return &kindError{errors.New("myriad: this Server has served already; a Server serves once: expected a new Server"), ErrServerClosed}
	}
	return errors.New("myriad: this Server serves already; a Server serves once: expected a new Server")
}

// start checks the settings and starts the engine.
func (s *Server) start(cfg engine.Config, where []Listener) (engine.Engine, error) {
	model, limits, err := s.settings()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkUnused(); err != nil {
		return nil, err
	}
	cfg.Limits, cfg.Spin, cfg.Log = limits.engine(), s.Spin, s.log()
	cfg.Socket = engine.Socket{SendBuffer: s.Socket.SendBuffer, ReceiveBuffer: s.Socket.ReceiveBuffer, Unsent: s.Socket.Unsent}
	cfg.Server, cfg.StartPaused = s, cfg.StartPaused || s.predecessor != nil
	if h, ok := extension[StartHandler](s.Handler); ok {
		h.Starting(s)
	}
	s.addHandler(&cfg)
	s.addEntry(&cfg, limits)
	s.addLayers(&cfg, limits, where)
	if cfg.Loops, cfg.MaxConnsPerShard, err = s.loops(model, limits.MaxConns); err != nil {
		return nil, err
	}
	e, model, err := s.launch(model, cfg)
	if err != nil {
		s.endWorkers()
		return nil, fmt.Errorf("myriad: %w", err)
	}
	_, worker := WorkerProcess() // its supervisor has said it
	if _, passed := models.BestAvailable(); s.auto() && passed != nil && !worker {
		s.chose(model, passed)
	}
	s.engine, s.where, s.model, s.limits = e, where, model.Name, limits
	s.addBroadcasts(e, limits)
	s.names.begin()
	return e, nil
}

// launch starts the engine, of the model or of what Auto takes instead.
func (s *Server) launch(m engine.Model, cfg engine.Config) (engine.Engine, engine.Model, error) {
	if s.preforks() {
		e, err := s.startProcesses(cfg)
		return e, m, err
	}
	if len(cfg.Listeners) > 0 {
		if l, ok := cfg.Listeners[0].Socket.(starter); ok {
			e, err := l.Start(cfg)
			return e, m, err
		}
	}
	if err := s.addWorkers(&cfg); err != nil {
		return nil, m, err
	}
	e, m, why, err := models.StartWithFallback(m, !s.auto(), cfg)
	if why != nil {
		s.chose(m, why)
	}
	return e, m, err
}

// chose says which model was chosen, and not a better one.
func (s *Server) chose(m engine.Model, why error) {
	s.log().Info("I/O model chosen", "model", m.Name, "because", why.Error())
}

// log is where the engine writes. What a million connections could each cause is
// written once a second at most, by each loop, of each limit that closes some, and of each
// type of handler.
func (s *Server) log() *slog.Logger {
	log := s.Log
	if log == nil {
		log = slog.Default()
	}
	return slog.New(lograte.New(log.Handler(), "loop", "limit", "handler"))
}

// addHandler tells the engine what to call.
func (s *Server) addHandler(cfg *engine.Config) {
	cfg.Handler, cfg.Heartbeat = adapter{s.Handler}, s.Heartbeat.engine(s.Handler)
	cfg.DropMessages = s.SlowConsumer == DropMessage
	if h, ok := extension[WritableHandler](s.Handler); ok {
		cfg.Drained = func(c *engine.Conn) { h.Writable((*Conn)(c)) }
	}
	if h, ok := extension[DrainingHandler](s.Handler); ok {
		cfg.Draining = func(c *engine.Conn) { h.Draining((*Conn)(c)) }
	}
	if h, ok := extension[TimerHandler](s.Handler); ok {
		cfg.Timer = func(c *engine.Conn) { h.Timer((*Conn)(c)) }
	}
	cfg.Shed = shedder(s.Handler)
	s.addMigration(cfg)
}

// addWorkers tells the engine which pool runs the handler, and makes Auto's.
func (s *Server) addWorkers(cfg *engine.Config) (err error) {
	use := s.Workers
	if cfg.AutoWorkers = s.auto() && use == nil; cfg.AutoWorkers {
		if s.own, err = pool.New(autoPool); err != nil {
			return fmt.Errorf("myriad: %w", err)
		}
		use = s.own
	}
	if use != nil {
		cfg.Pool = workers.NewEnginePool(use)
	}
	return nil
}

// auto says whether the model is for the server to choose.
func (s *Server) auto() bool { return s.Model == "" || s.Model == Auto }

// endWorkers ends what has worked for the engine, when that has ended.
func (s *Server) endWorkers() {
	if s.own != nil {
		_, _ = s.own.Close(context.Background()) // all connections have come back from it
	}
	if s.gate != nil {
		s.gate.Wait()
	}
}

// settings checks what the user has set.
func (s *Server) settings() (m engine.Model, l Limits, err error) {
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
	for _, check := range []func() error{s.checkShed, s.checkSocket, s.checkProcesses, s.checkLists, s.checkHeartbeat} {
		if err = check(); err != nil {
			return m, l, err
		}
	}
	if m, err = models.Find(s.Model); err != nil {
		return m, l, badConfig("Server.Model: %w", err)
	}
	l, err = s.share().resolve()
	return m, l, err
}

// listensOn is where the server listens; an address without host and port if it does not.
func (s *Server) listensOn() net.Addr {
	if a := s.ListenAddr(); a != nil {
		return a
	}
	return &net.TCPAddr{}
}

// loops is how many loops there are, and with shards how many connections each
// has room for.
func (s *Server) loops(m engine.Model, conns int) (loops, shard int, err error) {
	loops = s.Loops
	switch {
	case loops == 0 && s.Processes > 1:
		loops = 1
	case loops == 0:
		loops = defaultLoops()
	}
	most := maxLoops
	if !m.HasLoops {
		most = 0
	}
	need, shard, err := sock.Shards(conns, loops, most)
	switch {
	case err != nil:
		return 0, 0, badConfig("Limits.MaxConns: %w; or serve with event loops (Server.Model) or Server.Processes, "+
			"which have a limit each", err)
	case s.Loops > 0 && s.Loops < need:
		return 0, 0, badConfig("Server.Loops is %d; expected 0 (the default: as many as it takes) or at least %d, "+
			"for %d connections under this limit of descriptors: each has a table of its own, with room for %d",
			s.Loops, need, conns, shard)
	}
	return need, shard, nil
}

// Shutdown accepts no more, lets each connection finish what it has at hand,
// and closes it: at once where it is idle, otherwise when the message that has
// begun to arrive is complete and all output is sent. It returns when all are
// closed and everything has ended. When ctx ends first, the rest is closed at
// once and Shutdown returns an error that says how many and wraps ctx's cause;
// it then waits a second at most for handlers that have not returned, which
// ListenAndServe and Serve do without a bound. Further calls wait in the same
// way. A handler that calls Shutdown waits for itself: it does so in a goroutine
// of its own, or with a context that ends.
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

// Close ends the server at once: every connection is closed without sending
// what it owes. It returns when everything has ended, or after a second when
// handlers have not returned, such as the one that calls it.
func (s *Server) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Shutdown(ctx) // what it says of ctx is what was asked for
	return nil
}

// Package baseline implements programs with which Myriad is compared: servers on plain package net as most people write
// them, published designs, and parked goroutines.
package baseline

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/app"
)

const (
	DefaultBuffer = 4096 // usual buffer size of a connection in bytes, as in bufio
	MinBuffer     = 512
	MaxBuffer     = 1 << 20
)

const MaxLoops = 1024

// Designs of a server. All designs except PerConn need Linux.
const (
	// PerConn has a goroutine for each connection.
	PerConn = "goroutine"
	// OneEpoll has one event loop, with an epoll instance for all connections.
	OneEpoll = "epoll"
	// Epolls has several event loops, each with a listener. The listeners share the port.
	Epolls = "epolls"
	// Prefork has several processes, which share the port. All of them run the same one of the other designs.
	Prefork = "prefork"
	// Reactor has one event loop, which hands connections to a pool of goroutines.
	Reactor = "reactor"
)

var designs = []string{PerConn, OneEpoll, Epolls, Prefork, Reactor}

const (
	// FlushEach writes every answer with a separate system call.
	FlushEach = "each"
	// FlushTenth buffers answers and flushes after every tenth answer. Up to nine answers can remain unsent.
	FlushTenth = "tenth"
)

// Options configures Serve.
type Options struct {
	// App is an app of package app other than WebSocket. Sink, HTTP and Web require the design PerConn.
	App    string
	Buffer int
	// Flush is FlushEach (the default) or FlushTenth. FlushTenth requires the design PerConn and an app that answers
	// lines.
	Flush string
	// Design is PerConn (the default), OneEpoll, Epolls, Prefork or Reactor. If one of the fields TLS, Heartbeat and
	// Admin is set, Design must be PerConn.
	Design string
	// Loops is the number of event loops of the design Epolls, at most MaxLoops. The default is the number of CPUs.
	Loops int
	// Prefork is required for the design Prefork. It must be nil for other designs.
	Prefork *PreforkOptions
	// TLS encrypts connections with crypto/tls. Nil disables TLS.
	TLS *tls.Config
	// Heartbeat is the time between two heartbeats on each connection, from 100 ms to 24 h. The default 0 disables
	// heartbeats. The apps HTTP and Web do not support heartbeats.
	Heartbeat time.Duration
	// HeartbeatBy is HeartbeatTickers (the default), HeartbeatBatches or HeartbeatHeap. If Heartbeat is 0, HeartbeatBy
	// must be HeartbeatTickers.
	HeartbeatBy string
	// Deadline is the timeout for reads and writes on a connection. Each Read begins a new timeout. 0 disables the
	// timeout. Deadline requires the design PerConn, an app other than HTTP and Web, and a Heartbeat of 0.
	Deadline time.Duration
	// Admin is the host:port at which package admin reports Go's memory and the number of connections. If Admin is "",
	// nothing is reported. The apps HTTP and Web do not support Admin.
	Admin string
	// Files is the directory of the files that the app Web serves.
	Files string
	// AdminListening, if not nil, is called with the address at which package admin listens. The call runs on a
	// goroutine of its own, not on the goroutine that called Serve.
	AdminListening func(net.Addr)
}

const (
	minHeartbeat = 100 * time.Millisecond
	maxHeartbeat = 24 * time.Hour
)

func (o Options) Validate() error {
	o.setDefaults()
	lines := lineHandlers[o.App] != nil
	switch {
	case o.Buffer < MinBuffer || o.Buffer > MaxBuffer:
		return fmt.Errorf("buffer of %d bytes; expected %d to %d", o.Buffer, MinBuffer, MaxBuffer)
	case o.Heartbeat != 0 && (o.Heartbeat < minHeartbeat || o.Heartbeat > maxHeartbeat):
		return fmt.Errorf("heartbeat every %v; expected 0 for none, or %v to %v", o.Heartbeat, minHeartbeat, maxHeartbeat)
	case o.Deadline < 0 || o.Deadline > 0 && (app.IsHTTP(o.App) || o.Heartbeat > 0 || o.Design != PerConn):
		return fmt.Errorf("deadline of %v with app %s, design %s and heartbeats every %v; expected an app without HTTP, design %[5]s and no heartbeats", o.Deadline, o.App, o.Design, o.Heartbeat, PerConn)
	case !slices.Contains(heartbeatShapes, o.HeartbeatBy), o.HeartbeatBy != HeartbeatTickers && o.Heartbeat == 0:
		return fmt.Errorf("heartbeats every %v by %q; expected %s, or one of %[4]s with an interval above 0", o.Heartbeat, o.HeartbeatBy, HeartbeatTickers, strings.Join(heartbeatShapes, ", "))
	case app.IsHTTP(o.App) && o.Admin != "":
		return fmt.Errorf("address for metrics with app %s; expected an app without HTTP", o.App)
	case app.IsHTTP(o.App) && o.Heartbeat != 0:
		return fmt.Errorf("heartbeats every %v with app %s; expected an app without HTTP, or no heartbeats", o.Heartbeat, o.App)
	case o.App == app.WebSocket:
		return fmt.Errorf("app %s is not available on package net; expected another app", o.App)
	case !app.IsAppName(o.App):
		return fmt.Errorf("unknown app %q; expected %s", o.App, app.List)
	case o.Flush != FlushEach && o.Flush != FlushTenth:
		return fmt.Errorf("flush is %q; expected %s or %s", o.Flush, FlushEach, FlushTenth)
	case o.Flush == FlushTenth && !lines:
		return fmt.Errorf("flush at every tenth answer with app %s; expected %s or another app that answers lines", o.App, app.Lines)
	case !slices.Contains(designs, o.Design):
		return fmt.Errorf("unknown design %q; expected one of %s", o.Design, strings.Join(designs, ", "))
	case (o.Design == Prefork) != (o.Prefork != nil):
		return fmt.Errorf("options of %s with design %s; expected them if and only if the design is %s", Prefork, o.Design, Prefork)
	case o.Loops < 1 || o.Loops > MaxLoops:
		return fmt.Errorf("%d loops; expected 1 to %d", o.Loops, MaxLoops)
	case o.Design == PerConn:
		return nil
	case !hasEpoll:
		return fmt.Errorf("design %s requires Linux; expected %s", o.Design, PerConn)
	case o.App == app.Sink || app.IsHTTP(o.App):
		return fmt.Errorf("design %s with app %s; expected design %s, or another app", o.Design, o.App, PerConn)
	case o.Flush != FlushEach || o.TLS != nil || o.Heartbeat != 0 || o.Admin != "":
		return fmt.Errorf("design %s with TLS, heartbeats, metrics or a flush at every tenth answer; expected none of these, or design %s in one process", o.Design, PerConn)
	}
	return o.Prefork.validatePrefork()
}

func (o *Options) setDefaults() {
	o.Buffer = cmp.Or(o.Buffer, DefaultBuffer)
	o.Flush = cmp.Or(o.Flush, FlushEach)
	o.Design = cmp.Or(o.Design, PerConn)
	o.HeartbeatBy = cmp.Or(o.HeartbeatBy, HeartbeatTickers)
	o.Loops = cmp.Or(o.Loops, runtime.NumCPU())
}

// ListenForDesign listens on addr, a host:port. In the designs Prefork and Epolls, other listeners can share the port.
func (o Options) ListenForDesign(ctx context.Context, addr string) (net.Listener, error) {
	if o.Design == Prefork || o.Design == Epolls {
		return listenReusePort(ctx, addr)
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", addr)
}

// Serve serves an app on ln with one of the designs. The designs Prefork and Epolls require a listener from
// ListenForDesign. Serve closes a connection that sends a line longer than the buffer.
//
// Serve returns nil after ctx has ended. It returns an error if the options are invalid or ln fails. When Serve
// returns, ln and all connections are closed, and all goroutines of Serve have ended.
func Serve(ctx context.Context, ln net.Listener, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	o.setDefaults()
	if o.TLS != nil {
		ln = tls.NewListener(ln, o.TLS)
	}
	switch {
	case o.App == app.HTTP:
		return serveHTTPUntilDone(ctx, ln, http.HandlerFunc(writeHello))
	case o.App == app.Web:
		return serveHTTPUntilDone(ctx, ln, app.NewWebHandler(o.Files, func(h http.Handler) http.Handler { return h }))
	case o.Prefork != nil:
		return servePrefork(ctx, ln, *o.Prefork)
	}
	s := plainServer{conns: make(map[net.Conn]struct{})}
	defer s.wait.Wait()
	inner, stop := context.WithCancel(ctx)
	defer stop()
	s.wait.Go(func() {
		<-inner.Done()
		ln.Close()
		s.markClosedAndCloseConns()
	})
	if o.Admin != "" {
		endAdmin, err := s.startAdminServer(ctx, o.Admin, o.AdminListening)
		if err != nil {
			return err
		}
		defer endAdmin()
	}
	takes, err := s.startDesign(inner, o)
	if err != nil {
		return err
	}
	ended := make(chan error, len(takes))
	s.wait.Go(func() { ended <- s.acceptUntilDone(inner, ln, takes[0]) })
	for _, take := range takes[1:] {
		shared, err := listenReusePort(inner, ln.Addr().String())
		if err != nil {
			return err
		}
		s.wait.Go(func() { <-inner.Done(); shared.Close() })
		s.wait.Go(func() { ended <- s.acceptUntilDone(inner, shared, take) })
	}
	return <-ended
}

// If the process has no free descriptor, Accept fails. The server then waits before it calls Accept again, as net/http
// does. The wait begins with minAcceptDelay and doubles up to maxAcceptDelay.
const (
	minAcceptDelay = 5 * time.Millisecond
	maxAcceptDelay = time.Second
)

func (s *plainServer) acceptUntilDone(ctx context.Context, ln net.Listener, startServing func(net.Conn)) error {
	for delay := time.Duration(0); ; {
		conn, err := ln.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) { // clients wait in the accept queue
			delay = min(max(2*delay, minAcceptDelay), maxAcceptDelay)
			sleepOrUntilDone(ctx, delay)
			continue
		}
		if err != nil {
			return err
		}
		delay = 0
		if s.trackOrCloseConn(conn) {
			startServing(conn)
		}
	}
}

// startDesign starts the event loops of the design, if the design has any. The loops end when ctx ends.
// startDesign returns one function per listener of the design. The function starts to serve a connection,
// and returns without waiting for the end of the connection.
func (s *plainServer) startDesign(ctx context.Context, o Options) (serveConnFuncs []func(net.Conn), err error) {
	if o.Design != PerConn {
		return s.startEpollLoops(ctx, o)
	}
	handle := newConnHandlerForApp(o)
	switch {
	case o.HeartbeatBy != HeartbeatTickers:
		handle = s.withSharedHeartbeatsAndReadDeadline(ctx, handle, o)
	case o.Heartbeat > 0:
		handle = withHeartbeatsAndReadDeadline(handle, o.Heartbeat)
	case o.Deadline > 0:
		answer := handle
		handle = func(conn net.Conn, buffer int) { answer(deadlineConn{conn, o.Deadline, conn.SetDeadline}, buffer) }
	}
	return []func(net.Conn){func(conn net.Conn) {
		s.wait.Go(func() {
			defer s.closeAndUntrackConn(conn)
			handle(conn, o.Buffer)
		})
	}}, nil
}

// plainServer contains the connections that Serve must close before it returns, and the goroutines that Serve must wait
// for.
type plainServer struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	wait   sync.WaitGroup
}

// trackOrCloseConn records a connection, so that Serve can close it later. If Serve has already closed all connections,
// trackOrCloseConn closes this connection and returns false.
func (s *plainServer) trackOrCloseConn(conn net.Conn) (tracked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return false
	}
	s.conns[conn] = struct{}{}
	return true
}

func (s *plainServer) closeAndUntrackConn(conn net.Conn) {
	conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

func (s *plainServer) markClosedAndCloseConns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for conn := range s.conns {
		conn.Close()
	}
}

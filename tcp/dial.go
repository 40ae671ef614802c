package tcp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/layers"
)

// Dial describes an outgoing connection for Server.Dial.
type Dial struct {
	// Network is "tcp", the default, or "unix".
	Network string
	// Addr is host:port, or the path of a unix socket. If host is a name, it is resolved outside the event loops, and
	// the first address found is used. At most 256 lookups run at a time, and further lookups wait. Dial fails with
	// ErrFull if 16,384 lookups run or wait.
	Addr string
	// Handler handles this connection instead of Server.Handler. It is required. If Handler is a DialFailedHandler, the
	// server calls DialFailed when the dial fails.
	Handler Handler
	// TLSConfig, if set, encrypts the connection. Opened is called after the handshake, which must end within
	// Limits.HandshakeTimeout. If ServerName is empty, the certificate must be valid for the host of Addr. Do not
	// change the configuration afterwards. A failed handshake counts in Stats.Refused and is passed to DialFailed.
	TLSConfig *tls.Config
	// Source is the local address from which to connect. By default, the kernel chooses an address.
	Source netip.Addr
	// Timeout limits the lookup of the host and, separately, the connection attempt. On event loops, either may take up
	// to 400 ms longer. The default is 30 s, the maximum 10 min.
	Timeout time.Duration
	// Value is the initial Value of the connection.
	Value any
}

const (
	defaultDialTimeout = 30 * time.Second
	maxDialTimeout     = 10 * time.Minute
	maxLookups         = 256
	maxPendingLookups  = 16 << 10
)

// Dial starts an outgoing connection on one of the server's loops and returns immediately. When the connection is
// established, the server calls Opened of the handler. If the connection fails and the handler is a DialFailedHandler,
// the server calls DialFailed. The connection counts towards Limits.MaxConns. Limits.FirstByteTimeout does not apply.
//
// Dial is safe for concurrent use and in handlers. If it returns an error, the handler is not called. The errors are:
//   - ErrBadConfig if d is invalid
//   - ErrFull if more than 1,024 dials wait for a loop, or 16,384 lookups are pending
//   - ErrServerClosed before Server.Listening is called, after the end, and in a supervisor (Server.Processes)
func (s *Server) Dial(d Dial) error { return s.startDialOrLookup(d, 0) }

// Dial is like Server.Dial, but opens the connection on the event loop of c if possible. This is useful before a Relay,
// which is cheapest between two connections of the same loop. Outside of a handler call, Dial fails with
// ErrOutsideCall.
func (c *Conn) Dial(d Dial) error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	return c.Server().startDialOrLookup(d, c.core().LoopIndex()+1)
}

// Server returns the server to which the connection belongs.
func (c *Conn) Server() *Server { return c.core().Server().(*Server) }

func (s *Server) startDialOrLookup(d Dial, loopIndexPlusOne int) error {
	e, err := s.engineServingConns()
	if err != nil {
		return err
	}
	if err := checkHandler("Dial.Handler", d.Handler); err != nil {
		return err
	}
	if d.Timeout < 0 || d.Timeout > maxDialTimeout {
		return badConfig("Dial.Timeout is %v; expected 0 (the default, %v) to %v", d.Timeout, defaultDialTimeout, maxDialTimeout)
	}
	req := engine.DialRequest{Count: 1, Timeout: cmp.Or(d.Timeout, defaultDialTimeout), Loop: loopIndexPlusOne, Source: d.Source}
	switch d.Network {
	case "", "tcp":
	case "unix":
		req.Path, req.Handler = d.Addr, s.newDialHandler(d, "")
		return s.checkFamiliesAndStartDial(e, req)
	default:
		return badConfig("Dial.Network is %q; expected tcp or unix", d.Network)
	}
	host, service, err := net.SplitHostPort(d.Addr)
	if err != nil {
		return badConfig("Dial.Addr is %q; expected host:port: %w", d.Addr, err)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil || port == 0 {
		return badConfig("Dial.Addr is %q; expected a port from 1 to 65535", d.Addr)
	}
	req.Handler = s.newDialHandler(d, host)
	if ip, err := netip.ParseAddr(host); err == nil {
		req.Target = netip.AddrPortFrom(ip.Unmap(), uint16(port))
		return s.checkFamiliesAndStartDial(e, req)
	}
	if host == "" {
		return badConfig("Dial.Addr is %q; expected a host before the port, such as example.com:9000", d.Addr)
	}
	return s.resolver.lookupAsync(host, req.Timeout, func(ip netip.Addr, err error) {
		if err == nil {
			req.Target = netip.AddrPortFrom(ip.Unmap(), uint16(port))
			err = s.checkFamiliesAndStartDial(e, req)
		}
		if err != nil {
			req.Handler.DialFailed(err)
		}
	})
}

func (s *Server) checkFamiliesAndStartDial(e engine.Engine, req engine.DialRequest) error {
	if req.Path == "" && req.Source.IsValid() && req.Source.Unmap().Is4() != req.Target.Addr().Is4() {
		return badConfig("Dial.Source is %v and the target is %v; expected addresses of the same family", req.Source, req.Target.Addr())
	}
	return publicError(e.Dial(req))
}

func (s *Server) newDialHandler(d Dial, defaultServerName string) engine.ConnHandler {
	o := &pendingDial{connHandler: connHandler{handlerAdapter{d.Handler}, d.Value}, dial: d}
	if d.TLSConfig == nil {
		return o
	}
	cfg := d.TLSConfig
	if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
		cfg = cfg.Clone()
		cfg.ServerName = defaultServerName
	}
	o.layers = &layers.Config{TLS: cfg, Gate: s.sharedHandshakeLimiter(), Ciphers: s.compactTLSCiphersOrNil(), DropExporters: s.DropTLSExporters}
	return o
}

type connHandler struct {
	handlerAdapter
	value any
}

func (o *connHandler) handler() Handler { return o.h }

func (o *connHandler) NewLayer(*engine.Conn) engine.Layer { return nil }

func (o *connHandler) Drained(c *engine.Conn) {
	if h, ok := handlerAs[WritableHandler](o.h); ok {
		h.Writable((*Conn)(c))
	}
}

func (o *connHandler) Missed(c *engine.Conn, n int64) {
	if h, ok := handlerAs[MissedHandler](o.h); ok {
		h.Missed((*Conn)(c), n)
	}
}

func (o *connHandler) Draining(c *engine.Conn) {
	if h, ok := handlerAs[DrainingHandler](o.h); ok {
		h.Draining((*Conn)(c))
	}
}

func (o *connHandler) Timer(c *engine.Conn) {
	if h, ok := handlerAs[TimerHandler](o.h); ok {
		h.Timer((*Conn)(c))
	}
}

func (o *connHandler) DialFailed(error) {} // not called for open connections

func (o *connHandler) Value() any { return o.value }

func (o *connHandler) SetValue(v any) { o.value = v }

type pendingDial struct {
	connHandler
	dial   Dial
	layers *layers.Config // nil without TLS
}

func (o *pendingDial) NewLayer(c *engine.Conn) engine.Layer {
	if o.layers == nil {
		return nil
	}
	return o.layers.NewFirstLayer(c)
}

// Opened is called when the dial has succeeded. It replaces o as the handler of the connection with o.connHandler,
// which takes less memory.
func (o *pendingDial) Opened(c *engine.Conn) {
	open := o.connHandler
	c.SetConnHandler(&open)
	open.Opened(c)
}

func (o *pendingDial) DialFailed(err error) {
	if h, ok := handlerAs[DialFailedHandler](o.h); ok {
		h.DialFailed(o.dial, publicError(err))
	}
}

// SetHandler replaces the handler of this connection, for example when a client switches to another protocol. Input
// that the current call leaves unused is passed to h. The connection keeps its Value. SetHandler fails with
// ErrOutsideCall outside of a handler call. It fails with ErrBadUse if h is nil or contains a nil handler, as in
// Lines(nil).
func (c *Conn) SetHandler(h Handler) error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	if err := checkHandler("the Handler of SetHandler", h); err != nil {
		return &kindError{err, ErrBadUse}
	}
	c.core().SetConnHandler(&connHandler{handlerAdapter{h}, c.Value()})
	return nil
}

// resolver resolves the host names of Dial.
type resolver struct {
	mu      sync.Mutex
	ctx     context.Context // nil before the start
	cancel  context.CancelFunc
	pending int // running or waiting lookups
	tokens  chan struct{}
	running sync.WaitGroup
}

func (n *resolver) start() {
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.tokens = make(chan struct{}, maxLookups)
}

func (n *resolver) cancelLookupsAndWait() {
	n.mu.Lock()
	n.cancel()
	n.mu.Unlock()
	n.running.Wait()
}

func (n *resolver) lookupAsync(host string, timeout time.Duration, onResult func(netip.Addr, error)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.ctx == nil || n.ctx.Err() != nil:
		return ErrServerClosed
	case n.pending == maxPendingLookups:
		return ErrFull
	}
	n.pending++
	n.running.Go(func() {
		ip, err := n.resolve(host, timeout)
		onResult(ip, err)
		n.mu.Lock()
		n.pending--
		n.mu.Unlock()
	})
	return nil
}

func (n *resolver) resolve(host string, timeout time.Duration) (netip.Addr, error) {
	select {
	case n.tokens <- struct{}{}:
		defer func() { <-n.tokens }()
	case <-n.ctx.Done():
		return netip.Addr{}, ErrServerClosed
	}
	ctx, cancel := context.WithTimeout(n.ctx, timeout)
	defer cancel()
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	switch {
	case n.ctx.Err() != nil:
		return netip.Addr{}, ErrServerClosed
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return netip.Addr{}, ErrDialTimeout
	case err != nil:
		return netip.Addr{}, err
	}
	return all[0], nil
}

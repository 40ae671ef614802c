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

// Dial is a connection that is to be made; see Server.Dial.
type Dial struct {
	// Network is "tcp", the default, or "unix".
	Network string
	// Addr is host:port, or the path of a unix socket. A host that is a name is looked
	// up first, off the event loops, and its first address is taken: 256 lookups are
	// under way at a time, further ones, up to 16,384, wait.
	Addr string
	// Handler is called for this connection, instead of Server.Handler, by the same rules.
	// One that is a DialFailedHandler gets failures.
	Handler Handler
	// TLSConfig, if set, encrypts the connection: Opened is called when the handshake
	// is over, within Limits.HandshakeTimeout. Without a ServerName the host of Addr is
	// verified. It is not changed any more. A handshake that fails is counted in
	// Stats.Refused and passed to DialFailed.
	TLSConfig *tls.Config
	// Source is the local address to connect from; by default the kernel chooses.
	Source netip.Addr
	// Timeout bounds the lookup and the attempt to connect, each; on event loops up to
	// 400 ms more. The default is 30 s, the most 10 min.
	Timeout time.Duration
	// Value is the connection's Value when Opened is called.
	Value any
}

const (
	defaultDialTime = 30 * time.Second
	maxDialTime     = 10 * time.Minute
	maxLookups      = 256
	maxNames        = 16 << 10
)

// Dial has a connection made, on one of the server's loops and within its limits
// (MaxConns counts it), and returns at once. Its handler gets the outcome:
// Opened, or DialFailed of a DialFailedHandler. A peer that was dialled need not speak
// first: FirstByteTimeout is not for it.
//
// It fails with ErrBadConfig where d is wrong, with ErrFull when more than 1,024 orders
// wait for a loop, and with ErrServerClosed, whose text tells which, before Server.Listening
// is called, after the end and in a supervisor (Processes); then the handler is not called.
// It is safe for concurrent use, and in a handler; there Conn.Dial keeps both connections on
// one loop.
func (s *Server) Dial(d Dial) error { return s.dial(d, 0) }

// Dial is Server.Dial, on this connection's event loop if that has room: what the two
// connections have to do with each other costs least then. See Relay.
func (c *Conn) Dial(d Dial) error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	return c.Server().dial(d, c.core().LoopIndex()+1)
}

// Server is the server that the connection belongs to.
func (c *Conn) Server() *Server { return c.core().Server().(*Server) }

func (s *Server) dial(d Dial, loop int) error {
	e, err := s.serving()
	if err != nil {
		return err
	}
	if err := checkHandler("Dial.Handler", d.Handler); err != nil {
		return err
	}
	if d.Timeout < 0 || d.Timeout > maxDialTime {
		return badConfig("Dial.Timeout is %v; expected 0 (the default, %v) to %v", d.Timeout, defaultDialTime, maxDialTime)
	}
	order := engine.DialRequest{Count: 1, Timeout: cmp.Or(d.Timeout, defaultDialTime), Loop: loop, Source: d.Source}
	switch d.Network {
	case "", "tcp":
	case "unix":
		order.Path, order.Handler = d.Addr, s.dialled(d, "")
		return s.order(e, order)
	default:
		return badConfig("Dial.Network is %q; expected tcp or unix", d.Network)
	}
	host, service, err := net.SplitHostPort(d.Addr)
	if err != nil {
		return badConfig("Dial.Addr is %q; expected host:port: %w", d.Addr, err)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil || port == 0 {
		return badConfig("Dial.Addr is %q; expected a port of 1 to 65535", d.Addr)
	}
	order.Handler = s.dialled(d, host)
	if ip, err := netip.ParseAddr(host); err == nil {
		order.Target = netip.AddrPortFrom(ip.Unmap(), uint16(port))
		return s.order(e, order)
	}
	if host == "" {
		return badConfig("Dial.Addr is %q; expected a host", d.Addr)
	}
	return s.names.look(host, order.Timeout, func(ip netip.Addr, err error) {
		if err == nil {
			order.Target = netip.AddrPortFrom(ip.Unmap(), uint16(port))
			err = s.order(e, order)
		}
		if err != nil {
			order.Handler.DialFailed(err)
		}
	})
}

func (s *Server) order(e engine.Engine, order engine.DialRequest) error {
	if order.Path == "" && order.Source.IsValid() && order.Source.Unmap().Is4() != order.Target.Addr().Is4() {
		return badConfig("Dial.Source is %v, and the target %v; expected both to be of one family", order.Source, order.Target.Addr())
	}
	return named(e.Dial(order))
}

// dialled makes what the engine calls for a connection.
func (s *Server) dialled(d Dial, host string) engine.ConnHandler {
	o := &pendingDial{owned: owned{adapter{d.Handler}, d.Value}, dial: d}
	if d.TLSConfig == nil {
		return o
	}
	cfg := d.TLSConfig
	if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	o.layers = &layers.Config{TLS: cfg, Gate: s.handshakes()}
	return o
}

// owned is the handler of one connection, as the engines know it.
type owned struct {
	adapter
	value any
}

func (o *owned) handler() Handler { return o.h }

func (o *owned) NewLayer(*engine.Conn) engine.Layer { return nil }

func (o *owned) Drained(c *engine.Conn) {
	if h, ok := extension[WritableHandler](o.h); ok {
		h.Writable((*Conn)(c))
	}
}

func (o *owned) Draining(c *engine.Conn) {
	if h, ok := extension[DrainingHandler](o.h); ok {
		h.Draining((*Conn)(c))
	}
}

func (o *owned) Timer(c *engine.Conn) {
	if h, ok := extension[TimerHandler](o.h); ok {
		h.Timer((*Conn)(c))
	}
}

func (o *owned) DialFailed(error) {} // a connection that is open does not fail so

func (o *owned) Value() any { return o.value }

func (o *owned) SetValue(v any) { o.value = v }

// pendingDial is the handler of a connection that is not open yet.
type pendingDial struct {
	owned
	dial   Dial
	layers *layers.Config // nil without TLS
}

func (o *pendingDial) NewLayer(c *engine.Conn) engine.Layer {
	if o.layers == nil {
		return nil
	}
	return o.layers.NewFirstLayer(c)
}

// Opened leaves only what an open connection needs.
func (o *pendingDial) Opened(c *engine.Conn) {
	open := o.owned
	c.SetConnHandler(&open)
	open.Opened(c)
}

func (o *pendingDial) DialFailed(err error) {
	if h, ok := extension[DialFailedHandler](o.h); ok {
		h.DialFailed(o.dial, named(err))
	}
}

// SetHandler has the connection's calls go to another handler, from the next one on:
// for protocols that change on the way. It keeps the value. The input that the call at
// hand leaves unused comes again. It fails with ErrBadUse where h is nil, or made of nil
// such as Lines(nil), and with ErrOutsideCall.
func (c *Conn) SetHandler(h Handler) error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	if err := checkHandler("the Handler of SetHandler", h); err != nil {
		return &kindError{err, ErrBadUse}
	}
	c.core().SetConnHandler(&owned{adapter{h}, c.Value()})
	return nil
}

// names looks up names for Dial. Each lookup has a goroutine, which end waits for.
type names struct {
	mu      sync.Mutex
	ctx     context.Context // nil before the start
	cancel  context.CancelFunc
	n       int // under way, or waiting
	tokens  chan struct{}
	running sync.WaitGroup
}

func (n *names) begin() {
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.tokens = make(chan struct{}, maxLookups)
}

func (n *names) end() {
	n.mu.Lock()
	n.cancel()
	n.mu.Unlock()
	n.running.Wait()
}

// look calls f with the first address of a host, or why there is none.
func (n *names) look(host string, most time.Duration, f func(netip.Addr, error)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.ctx == nil || n.ctx.Err() != nil:
		return ErrServerClosed
	case n.n == maxNames:
		return ErrFull
	}
	n.n++
	n.running.Go(func() {
		ip, err := n.resolve(host, most)
		f(ip, err)
		n.mu.Lock()
		n.n--
		n.mu.Unlock()
	})
	return nil
}

func (n *names) resolve(host string, most time.Duration) (netip.Addr, error) {
	select {
	case n.tokens <- struct{}{}:
		defer func() { <-n.tokens }()
	case <-n.ctx.Done():
		return netip.Addr{}, ErrServerClosed
	}
	ctx, cancel := context.WithTimeout(n.ctx, most)
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

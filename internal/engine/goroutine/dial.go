package goroutine

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// The bounds of dialling: orders that wait, connections dialled at once, and
// the time for each of them.
const (
	maxOrders = 1024
	maxDials  = 512
	dialTime  = 30 * time.Second
)

// Dial starts a goroutine for each connection, which becomes its owner.
func (g *group) Dial(d engine.DialRequest) error {
	if err := d.Validate(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return engine.ErrClosed
	}
	select {
	case g.dialOrders <- struct{}{}:
	default:
		return engine.ErrFull
	}
	g.running.Go(func() {
		defer func() { <-g.dialOrders }()
		engine.SurviveGoexit(func() { g.dialAll(&d) })
	})
	return nil
}

// dialAll starts the dials that are left of one order, as many at once as may be.
func (g *group) dialAll(d *engine.DialRequest) {
	for d.Count > 0 {
		d.Count--
		select {
		case g.dialling <- struct{}{}:
			one := *d
			g.running.Go(func() {
				defer func() { <-g.dialling }()
				g.dial(one)
			})
		case <-g.stop.Done():
			g.host.NotifyDialFailed(d.Handler, engine.ErrClosed)
		}
	}
}

func (g *group) dial(d engine.DialRequest) {
	if !g.admission.Acquire() {
		g.host.NotifyDialFailed(d.Handler, engine.ErrFull)
		return
	}
	start := engine.MonotonicNow()
	nc, err := g.connect(d)
	if err != nil {
		g.leave()
		if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() && d.Timeout > 0 {
			err = engine.ErrDialTimeout
		}
		if g.stop.Err() != nil {
			err = engine.ErrClosed
		}
		g.host.NotifyDialFailed(d.Handler, err)
		return
	}
	if !g.serve(nc, -1, d.Handler, func(c *conn) { c.open(start, nil) }) {
		g.leave()
	}
}

// connect makes a connection of package net.
func (g *group) connect(d engine.DialRequest) (net.Conn, error) {
	options := g.cfg.SocketOptions(true)
	dialer := net.Dialer{Timeout: cmp.Or(d.Timeout, dialTime), Control: options.Control}
	if d.Path != "" {
		return dialer.DialContext(g.stop, "unix", d.Path)
	}
	if d.Source.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(d.Source, 0))
		dialer.Control = func(network, address string, raw syscall.RawConn) error {
			if err := options.Control(network, address, raw); err != nil {
				return err
			}
			return sock.LatePort(network, address, raw)
		}
	}
	nc, err := dialer.DialContext(g.stop, "tcp", d.Target.String())
	if tcp, ok := nc.(*net.TCPConn); ok && options.Delay {
		_ = tcp.SetNoDelay(false) // an error means that the connection has failed, as reading will tell
	}
	return nc, err
}

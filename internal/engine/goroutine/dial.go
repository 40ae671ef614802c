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
func (g *group) Dial(d engine.Dial) error {
	if err := d.Check(); err != nil {
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
		engine.Outlive(func() { g.dialAll(&d) })
	})
	return nil
}

// dialAll starts the dials that are left of one order, as many at once as may be.
func (g *group) dialAll(d *engine.Dial) {
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
			g.host.DialFailed(d.Owned, engine.ErrClosed)
		}
	}
}

func (g *group) dial(d engine.Dial) {
	if !g.admission.AcquireConn() {
		g.host.DialFailed(d.Owned, engine.ErrFull)
		return
	}
	start := engine.Since()
	nc, err := g.connect(d)
	if err != nil {
		g.leave()
		if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() && d.Timeout > 0 {
			err = engine.ErrDialTimeout
		}
		if g.stop.Err() != nil {
			err = engine.ErrClosed
		}
		g.host.DialFailed(d.Owned, err)
		return
	}
	if !g.serve(nc, -1, d.Owned, func(c *conn) { c.open(start, nil) }) {
		g.leave()
	}
}

// connect makes a connection of package net.
func (g *group) connect(d engine.Dial) (net.Conn, error) {
	options := g.cfg.SocketOptions(true)
	dialer := net.Dialer{Timeout: cmp.Or(d.Timeout, dialTime), Control: options.DialControl}
	if d.Path != "" {
		return dialer.DialContext(g.stop, "unix", d.Path)
	}
	if d.Source.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(d.Source, 0))
		dialer.Control = func(network, address string, raw syscall.RawConn) error {
			if err := options.DialControl(network, address, raw); err != nil {
				return err
			}
			return sock.SetBindAddressNoPort(network, address, raw)
		}
	}
	nc, err := dialer.DialContext(g.stop, "tcp", d.Target.String())
	if tcp, ok := nc.(*net.TCPConn); ok && options.Delay {
		_ = tcp.SetNoDelay(false) // an error means that the connection has failed, as reading will tell
	}
	return nc, err
}

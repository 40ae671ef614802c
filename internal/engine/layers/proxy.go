package layers

import (
	"fmt"
	"net/netip"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/proxyproto"
)

// proxy takes the PROXY header from the beginning of the input, and then makes
// way for the next layer.
type proxy struct {
	cfg  *Config
	head []byte // what has come of it, at most proxyproto.MaxSize
}

func (l *proxy) Arrived(c *engine.Conn, p []byte) error {
	if len(l.head) > 0 {
		p = append(l.head, p...)
	}
	h, n, err := proxyproto.Parse(p)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", engine.ErrProxyHeader, err)
	case n == 0:
		l.head = append(l.head[:0], p...)
		return nil
	}
	peer, err := source(h, c.Peer())
	if err == nil {
		err = c.SetPeer(peer)
	}
	if err != nil {
		return err
	}
	return l.makeWay(c, p[n:])
}

// source is whose connection it is. Where the header tells no address, as in a
// proxy's own check of our health or for a unix socket, it is the transport's. An
// unspecified one is nobody's, and not told from none (see Conn.Peer).
func source(h proxyproto.Header, transport netip.AddrPort) (netip.AddrPort, error) {
	if h.Local || h.Unix || !h.Source.IsValid() {
		return transport, nil
	}
	if h.Source.Addr().Unmap().IsUnspecified() {
		return netip.AddrPort{}, fmt.Errorf("%w: its source is %v; expected the address of a client", engine.ErrProxyHeader, h.Source)
	}
	return h.Source, nil
}

// makeWay goes on with what stands behind the header.
func (l *proxy) makeWay(c *engine.Conn, rest []byte) error {
	next := l.cfg.secured(c)
	c.SetLayer(next)
	switch {
	case next == nil:
		if c.Greeted(); len(rest) > 0 {
			c.Plain(rest)
		}
	case len(rest) > 0:
		return next.Arrived(c, rest)
	}
	return nil
}

func (l *proxy) Write(c *engine.Conn, p []byte) error {
	c.Append(p)
	return nil
}

func (l *proxy) Resume(*engine.Conn) error { return nil }

func (l *proxy) Held() (memory int, partial bool) { return cap(l.head), len(l.head) > 0 }

func (l *proxy) Full() bool { return false }

func (l *proxy) Ended(*engine.Conn) error {
	return fmt.Errorf("%w: the connection has ended after %d bytes", engine.ErrProxyHeader, len(l.head))
}

func (l *proxy) Closing(*engine.Conn) {}

func (l *proxy) Closed(*engine.Conn) {}

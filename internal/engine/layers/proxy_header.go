package layers

import (
	"fmt"
	"net/netip"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/proxyproto"
)

// proxyHeaderLayer takes the PROXY header from the beginning of the input, and then makes
// way for the next layer.
type proxyHeaderLayer struct {
	cfg    *Config
	header []byte // what has come of it, at most proxyproto.MaxSize
}

func (l *proxyHeaderLayer) OnRead(c *engine.Conn, p []byte) error {
	if len(l.header) > 0 {
		p = append(l.header, p...)
	}
	h, n, err := proxyproto.Parse(p)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", engine.ErrProxyHeader, err)
	case n == 0:
		l.header = append(l.header[:0], p...)
		return nil
	}
	peer, err := clientAddr(h, c.Peer())
	if err == nil {
		err = c.RegisterProxiedPeer(peer)
	}
	if err != nil {
		return err
	}
	return l.startNextLayer(c, p[n:])
}

// clientAddr is whose connection it is. Where the header tells no address, as in a
// proxy's own check of our health or for a unix socket, it is the transport's. An
// unspecified one is nobody's, and not told from none (see Conn.Peer).
func clientAddr(header proxyproto.Header, transportPeer netip.AddrPort) (netip.AddrPort, error) {
	if header.Local || header.Unix || !header.Source.IsValid() {
		return transportPeer, nil
	}
	if header.Source.Addr().Unmap().IsUnspecified() {
		return netip.AddrPort{}, fmt.Errorf("%w: its source is %v; expected the address of a client", engine.ErrProxyHeader, header.Source)
	}
	return header.Source, nil
}

// startNextLayer goes on with what stands behind the header.
func (l *proxyHeaderLayer) startNextLayer(c *engine.Conn, rest []byte) error {
	next := l.cfg.newTLSLayerIfConfigured(c)
	c.SetLayer(next)
	switch {
	case next == nil:
		if c.OnHandshakeDone(); len(rest) > 0 {
			c.OnPlaintext(rest)
		}
	case len(rest) > 0:
		return next.OnRead(c, rest)
	}
	return nil
}

func (l *proxyHeaderLayer) Write(c *engine.Conn, p []byte) error {
	c.AppendToTransport(p)
	return nil
}

func (l *proxyHeaderLayer) Resume(*engine.Conn) error { return nil }

func (l *proxyHeaderLayer) Memory() (memory int, partial bool) {
	return cap(l.header), len(l.header) > 0
}

func (l *proxyHeaderLayer) InputFull() bool { return false }

func (l *proxyHeaderLayer) OnEOF(*engine.Conn) error {
	return fmt.Errorf("%w: the connection has ended after %d bytes", engine.ErrProxyHeader, len(l.header))
}

func (l *proxyHeaderLayer) SendClose(*engine.Conn) {}

func (l *proxyHeaderLayer) OnClosed(*engine.Conn) {}

package layers

import (
	"fmt"
	"net/netip"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/proxyproto"
)

// proxyHeaderLayer reads a connection's PROXY header.
type proxyHeaderLayer struct {
	cfg    *Config
	header []byte // the header so far, at most proxyproto.MaxSize
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
	peer, err := clientAddrOrTransportPeer(h, c.Peer())
	if err == nil {
		err = c.AdmitProxiedPeerOrAppendRefusal(peer)
	}
	if err != nil {
		return err
	}
	return l.startNextLayer(c, p[n:])
}

// clientAddrOrTransportPeer returns the client's address from the header, or transportPeer if the header has none. An
// unspecified address (0.0.0.0 or ::) is an error.
func clientAddrOrTransportPeer(header proxyproto.Header, transportPeer netip.AddrPort) (netip.AddrPort, error) {
	if header.Local || header.Unix || !header.Source.IsValid() {
		return transportPeer, nil
	}
	if header.Source.Addr().Unmap().IsUnspecified() {
		return netip.AddrPort{}, fmt.Errorf("%w: the source is %v; expected a client's address", engine.ErrProxyHeader, header.Source)
	}
	return header.Source, nil
}

// startNextLayer replaces the PROXY header layer with the TLS layer. Without TLS, the connection has no layer
// afterwards. rest is the input that follows the header.
func (l *proxyHeaderLayer) startNextLayer(c *engine.Conn, rest []byte) error {
	next := l.cfg.newTLSLayerIfConfigured(c)
	c.ReplaceLayer(next)
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

func (l *proxyHeaderLayer) ContinueHandshake(*engine.Conn) error { return nil }

func (l *proxyHeaderLayer) Memory() (memory int, partial bool) {
	return cap(l.header), len(l.header) > 0
}

func (l *proxyHeaderLayer) InputFull() bool { return false }

func (l *proxyHeaderLayer) OnEOF(*engine.Conn) error {
	return fmt.Errorf("%w: the connection ended after %d bytes", engine.ErrProxyHeader, len(l.header))
}

func (l *proxyHeaderLayer) SendClose(*engine.Conn) {}

func (l *proxyHeaderLayer) OnClosed(*engine.Conn) {}

package layers

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/secure"
)

// tlsLayer is a TLS layer that uses crypto/tls. Only the connection's owner may call the methods of a tlsLayer, except
// Wake, which any goroutine may call.
type tlsLayer struct {
	session       *secure.Session
	conn          *engine.Conn
	cfg           *Config
	ref           engine.Ref // for Wake
	handshakeDone bool
}

func newTLSLayer(cfg *Config, c *engine.Conn) *tlsLayer {
	l := &tlsLayer{conn: c, ref: c.Ref(), cfg: cfg}
	remote := net.Addr(&net.UnixAddr{Net: "unix"})
	if p := c.Peer(); p.IsValid() {
		remote = net.TCPAddrFromAddrPort(p)
	}
	if c.IsDialled() {
		l.session = secure.NewClientSession(cfg.TLS, cfg.Gate, l, remote, cfg.Ciphers != nil)
	} else {
		l.session = secure.NewServerSession(cfg.TLS, cfg.Gate, l, remote)
	}
	return l
}

func (l *tlsLayer) Emit(p []byte) { l.conn.AppendToTransport(p) }

// Wake implements secure.Owner. It makes the connection's owner continue the handshake. If the owner's mailbox is full,
// the next periodic check of timeouts continues the handshake.
func (l *tlsLayer) Wake() { _ = l.ref.ResumeLayer() }

func (l *tlsLayer) OnRead(c *engine.Conn, p []byte) error {
	if l.handshakeDone {
		return l.decryptAndDeliver(c, p)
	}
	if err := l.session.FeedHandshake(p); err != nil {
		return err
	}
	return l.ContinueHandshake(c)
}

func (l *tlsLayer) ContinueHandshake(c *engine.Conn) error {
	if l.handshakeDone {
		return nil
	}
	open, err := l.session.AdvanceHandshake()
	if err != nil || !open {
		return err
	}
	l.handshakeDone = true
	if compact, unread := l.takeOverAsCompactLayerOrNil(c); compact != nil {
		c.ReplaceLayer(compact)
		c.OnHandshakeDone()
		if err := compact.OnRead(c, unread); err != nil || !l.session.IsInputEnded() {
			return err
		}
		return compact.OnEOF(c) // the transport ended during the handshake
	}
	c.OnHandshakeDone()
	return l.decryptAndDeliver(c, nil)
}

// takeOverAsCompactLayerOrNil converts l to a compactTLSLayer. If the conversion is impossible, it returns nil. In both
// cases it counts the outcome with CountTLS. unread is the ciphertext that l has received but not decrypted.
func (l *tlsLayer) takeOverAsCompactLayerOrNil(c *engine.Conn) (_ *compactTLSLayer, unread []byte) {
	state := l.session.State()
	records, unread, reason := l.session.TakeOver(l.cfg.Ciphers)
	c.CountTLS(int(reason))
	if reason != secure.StayNone {
		return nil, nil
	}
	return newCompactTLSLayer(l.cfg, records, &state), unread
}

// plaintextBuffers pools buffers for decrypted bytes. Each buffer has the size of one TLS record, 16 KiB.
var plaintextBuffers = sync.Pool{New: func() any {
	b := make([]byte, 16<<10)
	return &b
}}

func (l *tlsLayer) decryptAndDeliver(c *engine.Conn, ciphertext []byte) error {
	buffer := plaintextBuffers.Get().(*[]byte)
	defer plaintextBuffers.Put(buffer)
	for {
		n, used, err := l.session.Read(*buffer, ciphertext)
		ciphertext = ciphertext[used:]
		switch {
		case n > 0:
			c.OnPlaintext((*buffer)[:n])
		case err == nil:
		case errors.Is(err, secure.ErrAgain):
			return nil
		case errors.Is(err, io.EOF):
			c.MarkPeerEOFAndForwardOrStartTimeout()
			return nil
		default:
			return toTLSErrorUnlessUnexpectedEOF(err)
		}
	}
}

func (l *tlsLayer) Write(_ *engine.Conn, p []byte) error {
	return toTLSErrorUnlessUnexpectedEOF(l.session.Write(p))
}

// toTLSErrorUnlessUnexpectedEOF wraps err in an engine.TLSError, unless err is nil or io.ErrUnexpectedEOF.
func toTLSErrorUnlessUnexpectedEOF(err error) error {
	if err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return &engine.TLSError{Err: err}
}

func (l *tlsLayer) Memory() (memory int, partial bool) { return l.session.BufferMemory() }

func (l *tlsLayer) InputFull() bool { return !l.handshakeDone && l.session.IsInputFull() }

func (l *tlsLayer) OnEOF(c *engine.Conn) error {
	l.session.MarkInputEnded()
	if l.handshakeDone {
		return l.decryptAndDeliver(c, nil)
	}
	return l.ContinueHandshake(c)
}

func (l *tlsLayer) SendClose(*engine.Conn) {
	_ = l.session.CloseWrite() // fails if the session is broken
}

func (l *tlsLayer) OnClosed(*engine.Conn) { l.session.Abort() }

// TLSStateAfterHandshake returns the TLS state of c. If c has no TLS or the handshake is incomplete, it returns nil.
func TLSStateAfterHandshake(c *engine.Conn) *tls.ConnectionState {
	switch l := c.Layer().(type) {
	case *compactTLSLayer:
		return l.state()
	case *tlsLayer:
		if l.handshakeDone {
			state := l.session.State()
			return &state
		}
	}
	return nil
}

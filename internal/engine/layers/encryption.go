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

// encryption is TLS. Its session is driven by the connection's owner alone, but
// for Wake; package secure says how.
type encryption struct {
	session *secure.Session
	conn    *engine.Conn
	ref     engine.Ref // for Wake
	open    bool
}

func newEncryption(cfg *Config, c *engine.Conn) *encryption {
	l := &encryption{conn: c, ref: c.Ref()}
	remote := net.Addr(&net.UnixAddr{Net: "unix"})
	if p := c.Peer(); p.IsValid() {
		remote = net.TCPAddrFromAddrPort(p)
	}
	begin := secure.NewServerSession
	if c.Outbound() {
		begin = secure.NewClientSession
	}
	l.session = begin(cfg.TLS, cfg.Gate, l, remote)
	return l
}

func (l *encryption) Emit(p []byte) { l.conn.Append(p) }

// Wake implements secure.Owner. Where there is no room for it, the sweep looks.
func (l *encryption) Wake() { _ = l.ref.ResumeLayer() }

func (l *encryption) Arrived(c *engine.Conn, p []byte) error {
	if l.open {
		return l.read(c, p)
	}
	if err := l.session.FeedHandshake(p); err != nil {
		return err
	}
	return l.Resume(c)
}

// Resume goes on with the handshake.
func (l *encryption) Resume(c *engine.Conn) error {
	if l.open {
		return nil
	}
	open, err := l.session.AdvanceHandshake()
	if err != nil || !open {
		return err
	}
	l.open = true
	c.Greeted()
	return l.read(c, nil)
}

// plaintexts are buffers for one record each.
var plaintexts = sync.Pool{New: func() any {
	b := make([]byte, 16<<10)
	return &b
}}

// read gives the handler the plaintext of what has arrived.
func (l *encryption) read(c *engine.Conn, p []byte) error {
	buffer := plaintexts.Get().(*[]byte)
	defer plaintexts.Put(buffer)
	for {
		n, used, err := l.session.Read(*buffer, p)
		p = p[used:]
		switch {
		case n > 0:
			c.Plain((*buffer)[:n])
		case err == nil:
		case errors.Is(err, secure.ErrAgain):
			return nil
		case errors.Is(err, io.EOF):
			c.PeerEnded()
			return nil
		default:
			return broken(err)
		}
	}
}

func (l *encryption) Write(_ *engine.Conn, p []byte) error { return broken(l.session.Write(p)) }

// broken is a session's error as the reason of a close. That the transport has ended
// is none of TLS.
func broken(err error) error {
	if err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return &engine.TLSError{Err: err}
}

func (l *encryption) Held() (memory int, partial bool) { return l.session.InputMemory() }

// Full looks whether the handshake has more input than it needs for now.
func (l *encryption) Full() bool { return !l.open && l.session.IsInputFull() }

func (l *encryption) Ended(c *engine.Conn) error {
	l.session.EndInput()
	if l.open {
		return l.read(c, nil)
	}
	return l.Resume(c)
}

func (l *encryption) Closing(*engine.Conn) {
	_ = l.session.CloseWrite() // one that is broken has no goodbye
}

func (l *encryption) Closed(*engine.Conn) { l.session.Abort() }

// State is what the handshake of a connection has agreed on; nil without TLS.
func State(c *engine.Conn) *tls.ConnectionState {
	l, ok := c.Layer().(*encryption)
	if !ok || !l.open {
		return nil
	}
	state := l.session.State()
	return &state
}

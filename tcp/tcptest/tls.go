package tcptest

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"time"
)

// StartTLS performs the peer's end of a TLS handshake. The peer is the TLS client or, if the server dialed the
// connection, the TLS server. Afterwards, the peer sends and receives through TLS. CloseWrite of the peer sends a
// close_notify. If the handshake fails, StartTLS returns the error and closes the peer's writing side.
func (p *Peer) StartTLS(config *tls.Config) error {
	conn, makeConn := &ciphertextConn{peer: p, handshaking: true}, tls.Client
	if p.end.IsDialled() {
		makeConn = tls.Server
	}
	c := makeConn(conn, config)
	err := c.Handshake()
	if err != nil {
		p.s.runAndSettle(p.end.CloseWrite)
		return err
	}
	p.waitUntilOrGiveUp(func() bool {
		_, closed := p.end.Closed()
		return closed || p.end.HasTLS()
	})
	conn.handshaking, p.tls = false, c
	return nil
}

// unreadServerOutput returns the output of the server that the test has not yet read. With TLS, the output is
// decrypted. Call unreadServerOutput only within runAndSettle.
func (p *Peer) unreadServerOutput() []byte {
	if p.tls == nil {
		return p.end.Received()
	}
	var part [16 << 10]byte
	for {
		n, err := p.tls.Read(part[:])
		p.plaintext = append(p.plaintext, part[:n]...)
		if err != nil {
			return p.plaintext
		}
	}
}

func (p *Peer) discardReceived(n int) {
	if p.tls == nil {
		p.end.DiscardReceived(n)
		return
	}
	p.plaintext = p.plaintext[n:]
}

// ciphertextConn is the net.Conn under a peer's tls.Conn. During the handshake, its methods call runAndSettle and must
// not be called within runAndSettle. Afterwards, they must be called within it.
type ciphertextConn struct {
	net.Conn
	peer        *Peer
	handshaking bool
}

func (t *ciphertextConn) Write(b []byte) (n int, err error) {
	if t.handshaking {
		return t.peer.Write(b)
	}
	return len(b), t.peer.end.Send(b)
}

func (t *ciphertextConn) Read(b []byte) (n int, err error) {
	closed := false
	read := func() bool {
		n = copy(b, t.peer.end.Received())
		t.peer.end.DiscardReceived(n)
		_, closed = t.peer.end.Closed()
		return n > 0 || closed
	}
	if t.handshaking {
		t.peer.waitUntilOrGiveUp(read)
	} else {
		read()
	}
	switch {
	case n > 0:
		return n, nil
	case closed:
		return 0, io.EOF
	}
	return 0, os.ErrDeadlineExceeded // which is temporary
}

func (t *ciphertextConn) SetWriteDeadline(time.Time) error { return nil } // CloseWrite sets it

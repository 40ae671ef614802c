package secure

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/secure/tls13"
	"github.com/myriad-go/myriad/internal/testkit"
)

// TestPair echoes messages of all sizes, in pieces and into buffers of all sizes, and closes one direction.
func TestPair(t *testing.T) {
	for v, version := range versions {
		for how, c := range map[string]struct {
			piece func() int
			buf   int
		}{
			"by 1": {fixedPieceSize(1), 4096}, "by 7, read by 13": {fixedPieceSize(7), 13}, "random, read by 1": {randomPieceSizes(3, 3000), 1},
			"by 64K": {fixedPieceSize(64 << 10), 64 << 10},
		} {
			t.Run(v+"/"+how, func(t *testing.T) {
				serverCfg, clientCfg := newConfigs(version)
				server, client, p := newOpenPair(t, serverCfg, clientCfg)
				p.piece = c.piece
				server.buf, client.buf = make([]byte, c.buf), make([]byte, c.buf)
				echoed := 0
				server.onText = func() { server.writePlaintext(server.got[echoed:]); echoed = len(server.got) }
				var want []byte
				for i, n := range []int{1, 64, 1000, 16 << 10, 16<<10 + 1, 50_000} {
					message := randomBytes(uint64(i), n)
					want = append(want, message...)
					client.writePlaintext(message)
					client.writePlaintext(nil)
					p.pumpUntil("the echo has arrived", func() bool { return len(client.got) == len(want) })
				}
				if !bytes.Equal(server.got, want) || !bytes.Equal(client.got, want) {
					t.Error("the bytes differ")
				}
				if got := server.session.State().Version; got != version {
					t.Errorf("version %x, want %x", got, version)
				}
				for range 2 { // the second call has no effect
					testkit.ExpectNoError(t, client.session.CloseWrite())
				}
				p.pumpUntil("close_notify has arrived", func() bool { return server.err != nil })
				server.writePlaintext([]byte("still here"))
				p.pumpUntil("what is sent after it has arrived", func() bool { return len(client.got) == len(want)+10 })
				if server.err != io.EOF || client.err != nil {
					t.Errorf("after close_notify: server %v, client %v; want EOF, nil", server.err, client.err)
				}
			})
		}
	}
}

// TestConfig checks that callbacks of the tls.Config see names and addresses, and both ends what was
// negotiated.
func TestConfig(t *testing.T) {
	addr := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 7}
	serverCfg, clientCfg := newConfigs(tls.VersionTLS13)
	serverCfg.NextProtos, clientCfg.NextProtos = []string{"one", "two"}, []string{"nonsense", "two"}
	serverCfg.ClientAuth, serverCfg.ClientCAs = tls.RequireAndVerifyClientCert, siteRoots()
	clientCfg.Certificates = []tls.Certificate{siteCert()}
	var hello []string
	serverCfg.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		hello = append(hello, h.ServerName, h.Conn.RemoteAddr().String(), h.Conn.LocalAddr().String())
		return nil, nil
	}
	server, client, p := newPeers(t, serverCfg, clientCfg)
	server.session = NewServerSession(serverCfg, NewHandshakeLimiter(1, 1), server, addr)
	if server.session.State().HandshakeComplete {
		t.Error("State before the end of the handshake is not zero")
	}
	isOver := func() bool { return server.open && client.open || server.err != nil || client.err != nil }
	p.pumpUntil("both are open", isOver)
	if want := []string{"site.test", addr.String(), "unknown"}; !slices.Equal(hello, want) {
		t.Errorf("the callback saw %q, want %q", hello, want)
	}
	for _, d := range []*testPeer{server, client} {
		if state := d.session.State(); len(state.PeerCertificates) != 1 || state.NegotiatedProtocol != "two" {
			t.Errorf("the state is %+v, %v; want the peer's certificate and protocol", state, d.err)
		}
	}
}

// TestRefused makes a handshake fail, and checks that both ends report why.
func TestRefused(t *testing.T) {
	serverCfg, clientCfg := newConfigs(tls.VersionTLS13)
	clientCfg.RootCAs = x509.NewCertPool()
	server, client, p := newPeers(t, serverCfg, clientCfg)
	p.pumpUntil("both have failed", func() bool { return server.err != nil && client.err != nil })
	if e := new(tls.CertificateVerificationError); !errors.As(client.err, &e) || server.err.Error() != "remote error: tls: bad certificate" {
		t.Errorf("client %v, server %v", client.err, server.err)
	}
	_, stepErr := server.session.AdvanceHandshake()
	if _, _, err := server.session.Read(server.buf, nil); err != server.err || stepErr != server.err {
		t.Errorf("later AdvanceHandshake: %v, Read: %v; want %v again", stepErr, err, server.err)
	}
}

// TestTruncatedDuringHandshake ends the input before the server's handshake is complete, behind data and a part of a
// record. This is no orderly end, whatever processes the records.
func TestTruncatedDuringHandshake(t *testing.T) {
	for _, takesOver := range []bool{false, true} {
		serverCfg, clientCfg := newConfigs(tls.VersionTLS13)
		EnableTakeover(serverCfg)
		server, client, _ := newPeers(t, serverCfg, clientCfg)
		testkit.WaitFor(t, "the client's handshake", func() bool {
			client.advanceHandshake()
			if client.open {
				return true
			}
			server.receiveCiphertext(client.takeOutput())
			server.advanceHandshake()
			client.receiveCiphertext(server.takeOutput())
			return false
		})
		client.writePlaintext([]byte("data"))
		server.receiveCiphertext(append(client.takeOutput(), 23, 3, 3, 0, 100, 1))
		server.session.MarkInputEnded()
		if !takesOver {
			testkit.WaitFor(t, "the server's end", func() bool { server.advanceHandshake(); return server.err != nil })
			if string(server.got) != "data" || server.err != io.ErrUnexpectedEOF {
				t.Errorf("Read: %q, %v; want data, %v", server.got, server.err, io.ErrUnexpectedEOF)
			}
			continue
		}
		testkit.WaitFor(t, "the server's handshake", func() bool {
			open, err := server.session.AdvanceHandshake()
			testkit.RequireNoError(t, err)
			return open
		})
		var ciphers tls13.CipherCache
		defer ciphers.Close()
		conn, unread, reason := server.session.TakeOver(&ciphers)
		if reason != StayNone || !server.session.IsInputEnded() {
			t.Fatalf("TakeOver: reason %d; the input has ended: %v", reason, server.session.IsInputEnded())
		}
		if p, _, err := conn.ReadInPlace(new(compactOutput), unread); string(p) != "data" || err != tls13.ErrAgain || !conn.HasPartialRecord() || conn.IsReadClosed() {
			t.Errorf("Read: %q, %v; partial record %v, closed %v", p, err, conn.HasPartialRecord(), conn.IsReadClosed())
		}
	}
}

// TestServerNameLength accepts server names up to the length of the longest DNS name, because connections keep them.
func TestServerNameLength(t *testing.T) {
	for _, n := range []int{maxServerName, maxServerName + 1} {
		serverCfg, clientCfg := newConfigs(tls.VersionTLS13)
		EnableTakeover(serverCfg)
		clientCfg.ServerName, clientCfg.InsecureSkipVerify = strings.Repeat("a", n), true
		server, _, p := newPeers(t, serverCfg, clientCfg)
		p.pumpUntil("the server's handshake ends", func() bool { return server.open || server.err != nil })
		if server.open != (n <= maxServerName) {
			t.Errorf("a name of %d bytes: open %v, %v", n, server.open, server.err)
		}
	}
}

// TestTooEarly makes calls that need a complete handshake, and FeedHandshake after it.
func TestTooEarly(t *testing.T) {
	serverCfg, clientCfg := newConfigs(tls.VersionTLS13)
	d := newServerPeer(t, serverCfg, NewHandshakeLimiter(1, 1))
	_, used, err := d.session.Read(d.buf, []byte("x"))
	for _, err := range []error{err, d.session.Write([]byte("x")), d.session.CloseWrite()} {
		if err != errHandshaking || used != 0 {
			t.Errorf("during the handshake: used %d, %v", used, err)
		}
	}
	server, _, _ := newOpenPair(t, serverCfg, clientCfg)
	if err := server.session.FeedHandshake([]byte("x")); err == nil {
		t.Error("FeedHandshake after the handshake: no error")
	}
	if _, _, err := server.session.Read(nil, nil); err != io.ErrShortBuffer {
		t.Errorf("Read without a buffer: %v", err)
	}
	if open, err := server.session.AdvanceHandshake(); !open || err != nil {
		t.Errorf("AdvanceHandshake when open: %v, %v", open, err)
	}
}

package secure

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
)

// TestPair echoes messages of all sizes, in pieces and into buffers of all sizes.
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
			})
		}
	}
}

func TestCloseOrder(t *testing.T) {
	for v, version := range versions {
		for _, first := range []string{"server", "client"} {
			t.Run(v+"/"+first, func(t *testing.T) {
				serverCfg, clientCfg := newConfigs(version)
				server, client, p := newOpenPair(t, serverCfg, clientCfg)
				a, b := server, client
				if first == "client" {
					a, b = client, server
				}
				for range 2 { // the second call has no effect
					if err := a.session.CloseWrite(); err != nil {
						t.Fatalf("CloseWrite: %v", err)
					}
				}
				p.pumpUntil("close_notify has arrived", func() bool { return b.err != nil })
				if b.err != io.EOF {
					t.Fatalf("after close_notify: %v, want EOF", b.err)
				}
				b.writePlaintext([]byte("still here"))
				p.pumpUntil("the half-closed side's bytes have arrived", func() bool { return len(a.got) > 0 })
				if err := b.session.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				p.pumpUntil("both have ended", func() bool { return a.err != nil })
				if a.err != io.EOF || string(a.got) != "still here" {
					t.Errorf("%v after %q, want EOF", a.err, a.got)
				}
				a.session.EndInput()
				if _, _, err := a.session.Read(a.buf, nil); err != io.EOF {
					t.Errorf("the transport's end after close_notify: %v, want EOF", err)
				}
				if _, used, err := a.session.Read(a.buf, []byte("late")); used != 4 || err != io.EOF {
					t.Errorf("input after the end: used %d, %v", used, err)
				}
			})
		}
	}
}

// TestConfig uses features of tls.Config: names, ALPN, client certificates, and addresses in callbacks.
func TestConfig(t *testing.T) {
	other, _, _ := issueCert("other.test")
	me, _, _ := issueCert("client.test")
	addr := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 7}
	for v, version := range versions {
		t.Run(v, func(t *testing.T) {
			_, clientCfg := newConfigs(version)
			clientCfg.NextProtos = []string{"nonsense", "two"}
			clientCfg.Certificates = []tls.Certificate{me}
			clientCfg.ServerName = "other.test"
			var hellos []string
			serverCfg := &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				hellos = append(hellos, h.ServerName, h.Conn.RemoteAddr().String(), h.Conn.LocalAddr().String())
				return &tls.Config{
					GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
						if h.ServerName != "other.test" {
							return nil, errors.New("wrong name")
						}
						return &other, nil
					},
					NextProtos: []string{"one", "two"},
					ClientAuth: tls.RequireAndVerifyClientCert,
					ClientCAs:  rootAuthority().pool,
				}, nil
			}}
			server := &testPeer{t: t, buf: make([]byte, 4096)}
			server.session = NewServerSession(serverCfg, NewHandshakeLimiter(1, 1), server, addr)
			client := newClientPeer(t, clientCfg, NewHandshakeLimiter(1, 1))
			if got := server.session.State(); got.HandshakeComplete {
				t.Error("State before the end of the handshake is not zero")
			}
			p := &pump{t: t, a: server, b: client, piece: fixedPieceSize(100)}
			p.pumpUntil("both are open", func() bool {
				if server.err != nil || client.err != nil {
					t.Fatalf("server %v, client %v", server.err, client.err)
				}
				return server.open && client.open
			})
			if want := []string{"other.test", addr.String(), "unknown"}; !slices.Equal(hellos, want) {
				t.Errorf("the callback saw %q, want %q", hellos, want)
			}
			state := server.session.State()
			if len(state.PeerCertificates) != 1 || state.PeerCertificates[0].Subject.CommonName != "client.test" {
				t.Errorf("the server sees the certificates %v", state.PeerCertificates)
			}
			if state.NegotiatedProtocol != "two" || client.session.State().NegotiatedProtocol != "two" {
				t.Errorf("the protocols are %q and %q", state.NegotiatedProtocol, client.session.State().NegotiatedProtocol)
			}
			if names := client.session.State().PeerCertificates[0].DNSNames; !slices.Equal(names, []string{"other.test"}) {
				t.Errorf("the client sees %q", names)
			}
		})
	}
}

// TestRefused makes handshakes fail, and checks that both ends report why.
func TestRefused(t *testing.T) {
	for v, version := range versions {
		t.Run(v, func(t *testing.T) {
			serverCfg, clientCfg := newConfigs(version)
			clientCfg.RootCAs = x509.NewCertPool()
			server := newServerPeer(t, serverCfg, NewHandshakeLimiter(1, 1))
			client := newClientPeer(t, clientCfg, NewHandshakeLimiter(1, 1))
			p := &pump{t: t, a: server, b: client, piece: fixedPieceSize(1000)}
			p.pumpUntil("both have failed", func() bool { return server.err != nil && client.err != nil })
			if e := new(tls.CertificateVerificationError); !errors.As(client.err, &e) {
				t.Errorf("the client: %v", client.err)
			}
			if got := server.err.Error(); got != "remote error: tls: bad certificate" {
				t.Errorf("the server: %v", got)
			}
			if _, err := server.session.AdvanceHandshake(); err != server.err {
				t.Errorf("the next Step: %v, want %v again", err, server.err)
			}
			if _, _, err := server.session.Read(server.buf, nil); err != server.err {
				t.Errorf("Read: %v", err)
			}
		})
	}
}

// TestTooEarly makes calls that need a complete handshake, and FeedHandshake after it.
func TestTooEarly(t *testing.T) {
	serverCfg, clientCfg := newConfigs(tls.VersionTLS13)
	d := newServerPeer(t, serverCfg, NewHandshakeLimiter(1, 1))
	if err := d.session.Write([]byte("x")); err != errHandshaking {
		t.Errorf("Write: %v", err)
	}
	if err := d.session.CloseWrite(); err != errHandshaking {
		t.Errorf("CloseWrite: %v", err)
	}
	if _, used, err := d.session.Read(d.buf, []byte("x")); err != errHandshaking || used != 0 {
		t.Errorf("Read: used %d, %v", used, err)
	}
	server, _, _ := newOpenPair(t, serverCfg, clientCfg)
	if err := server.session.FeedHandshake([]byte("x")); err == nil {
		t.Error("Feed after the handshake: no error")
	}
	if _, _, err := server.session.Read(nil, nil); err != io.ErrShortBuffer {
		t.Errorf("Read without a buffer: %v", err)
	}
	if open, err := server.session.AdvanceHandshake(); !open || err != nil {
		t.Errorf("Step when open: %v, %v", open, err)
	}
}

package tcp

import (
	"bytes"
	"crypto/fips140"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
)

// A compact TLS connection that has been used takes, beside the 96 bytes of one without TLS, its secrets, sequence
// numbers, and the exporter of crypto/tls.
func TestIdleTLSMemory(t *testing.T) {
	const conns = 1000
	testkit.AcquireDescriptorsOrSkip(t, 2*conns+sock.FirstPrivateFD)
	server, client := identity()
	client = client.Clone()
	client.ClientSessionCache = tls.NewLRUClientSessionCache(1) // a signature takes a millisecond
	forEachLoopModel(t, func(t *testing.T, model string) {
		s := startServer(t, &Server{Model: model, Handler: rawEcho{}, TLSConfig: server})
		var kept [conns + 1]int32
		defer func() { sock.Close(kept[:]...) }()
		var before int64
		for i := range kept {
			if kept[i] = int32(echoTLSAndForget(t, s.addr, client)); i == 0 {
				before = userMemoryBytes() // with what the first connection needs
			}
		}
		s.tlsCiphers.Close() // it would keep ciphers for up to 10 s
		each := (userMemoryBytes() - before) / conns
		if most := 400 + 1<<17/int64(conns); each > most {
			t.Errorf("an idle connection takes %d bytes, want at most %d", each, most)
		}
		t.Logf("an idle connection takes %d bytes", each)
		expectEqual(t, "handshakes", s.Stats().TLS, TLSHandshakes{Compact: conns + 1})
	})
}

// echoTLSAndForget leaves a TLS connection that takes no memory of this process except a descriptor.
func echoTLSAndForget(t *testing.T, addr string, cfg *tls.Config) (fd int) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	requireNoError(t, err)
	defer c.Close()
	tc := tls.Client(c, cfg)
	_, err = tc.Write([]byte("hello"))
	requireNoError(t, err)
	_, err = io.ReadFull(tc, make([]byte, 5))
	requireNoError(t, err)
	raw, err := c.(*net.TCPConn).SyscallConn()
	requireNoError(t, err)
	requireNoError(t, raw.Control(func(c uintptr) { fd, err = unix.FcntlInt(c, unix.F_DUPFD_CLOEXEC, 0) }))
	requireNoError(t, err)
	return fd
}

// laterWrites is a connection that keeps all that is written after the first call of Write.
type laterWrites struct {
	net.Conn
	isFirstSent bool
	kept        bytes.Buffer
}

func (c *laterWrites) Write(p []byte) (int, error) {
	if c.isFirstSent {
		return c.kept.Write(p)
	}
	c.isFirstSent = true
	return c.Conn.Write(p)
}

// TestTLSTruncatedInHandshake sends, at once, the last message of the handshake, a record of data, a part of another
// record and FIN. Somebody may have cut the connection, so this is no orderly end.
func TestTLSTruncatedInHandshake(t *testing.T) {
	server, client := identity()
	for _, disabled := range []bool{false, true} {
		forEachLoopModel(t, func(t *testing.T, model string) {
			input, closed := make(chan string, 10), make(chan error, 1)
			h := hooks{closed: func(why error) { closed <- why }, received: func(_ *Conn, in []byte) int {
				input <- string(in)
				return len(in)
			}}
			s := startServer(t, &Server{Model: model, Handler: h, TLSConfig: server, DisableCompactTLS: disabled})
			conn := &laterWrites{Conn: dial(t, s.addr).Conn}
			_, err := tls.Client(conn, client).Write([]byte("data"))
			requireNoError(t, err)
			_, err = conn.Conn.Write(append(conn.kept.Bytes(), 23, 3, 3, 0, 100, 1, 2, 3))
			requireNoError(t, err)
			requireNoError(t, conn.Conn.(*net.TCPConn).CloseWrite())
			expectReason(t, "a truncated record", closed, io.ErrUnexpectedEOF)
			if got := <-input; got != "data" || len(input) > 0 {
				t.Errorf("the handler received %q and %d more, want only the data", got, len(input))
			}
		})
	}
}

// TestRelayTLSTruncated cuts the connection between a relay and its target. The relay's client must not receive
// close_notify, because data may be missing. With TLS 1.2, records show that they are alerts.
func TestRelayTLSTruncated(t *testing.T) {
	server, client := identity()
	client12 := client.Clone()
	client12.MaxVersion = tls.VersionTLS12
	forEachModel(t, func(t *testing.T, model string, loops int) {
		for _, isCut := range []bool{true, false} {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			requireNoError(t, err)
			defer listener.Close()
			s := startServer(t, &Server{Model: model, Loops: loops, TLSConfig: server, Handler: relayTo(listener.Addr().String(), client)})
			raw := dial(t, s.addr)
			c := testkit.NewConn(t, tls.Client(raw, client12))
			c.Send("x\n")
			nc, err := listener.Accept()
			requireNoError(t, err)
			defer nc.Close()
			target := tls.Server(nc, server)
			_, err = io.WriteString(target, "data\n")
			requireNoError(t, err)
			c.Expect("data\n")
			end := target.CloseWrite
			if isCut {
				end = nc.(*net.TCPConn).CloseWrite
			}
			requireNoError(t, end())
			rest, err := io.ReadAll(raw)
			requireNoError(t, err)
			if isNotified := len(rest) > 0 && rest[0] == 21; isNotified == isCut {
				t.Errorf("cut: %v: the client receives %x, close_notify: %v", isCut, rest, isNotified)
			}
		}
	})
}

// TestTLSInFIPSMode runs itself in a process with FIPS 140 mode, where crypto/tls keeps all connections.
func TestTLSInFIPSMode(t *testing.T) {
	const setting = "fips140=only"
	if os.Getenv("GODEBUG") != setting {
		cmd := exec.Command(os.Args[0], "-test.run=^TestTLSInFIPSMode$")
		cmd.Env = append(os.Environ(), "GODEBUG="+setting)
		expectEqual(t, "exit code of the process with "+setting, testkit.Start(t, cmd).WaitExitCode(), 0)
		return
	}
	if !fips140.Enabled() {
		t.Fatal("FIPS 140 mode is off")
	}
	server, client := identity()
	forEachLoopModel(t, func(t *testing.T, model string) {
		s := startServer(t, &Server{Model: model, TLSConfig: server})
		testkit.DialTLS(t, s.addr, client).ExchangeLine("hello", "hello")
		expectEqual(t, "handshakes", s.Stats().TLS, TLSHandshakes{FIPS: 1})
	})
}

// TestTLSExporter exports the same keying material on both sides of a compact connection.
func TestTLSExporter(t *testing.T) {
	server, client := identity()
	export := func(s *tls.ConnectionState) string {
		key, err := s.ExportKeyingMaterial("EXPERIMENTAL test", []byte("context"), 20)
		return fmt.Sprintf("%x %v", key, err)
	}
	answer := Lines(MessageFunc(func(c *Conn, _ []byte) { c.WriteString(export(c.TLS()) + "\n") }))
	forEachLoopModel(t, func(t *testing.T, model string) {
		for _, dropped := range []bool{false, true} {
			s := startServer(t, &Server{Model: model, Handler: answer, TLSConfig: server, DropTLSExporters: dropped})
			c := testkit.DialTLS(t, s.addr, client)
			want := " myriad: keying material can be exported only by the process that performed the TLS handshake, and not with Server.DropTLSExporters"
			if !dropped {
				state := c.Conn.(*tls.Conn).ConnectionState()
				want = export(&state)
			}
			c.ExchangeLine("export", want)
			expectEqual(t, "handshakes", s.Stats().TLS, TLSHandshakes{Compact: 1})
		}
	})
}

package tcp

import (
	"crypto/tls"
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
)

// A compact TLS connection that has been used takes, beside the 96 bytes of one without TLS, its secrets, sequence
// numbers, and the exporter of crypto/tls.
func TestIdleTLSMemory(t *testing.T) {
	const conns = 1000
	testkit.ReserveDescriptors(t, 2*conns+sock.FirstPrivateFD)
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
		if most := 400 + 1<<19/int64(conns); each > most {
			t.Errorf("an idle connection takes %d bytes, want at most %d", each, most)
		}
		t.Logf("an idle connection takes %d bytes", each)
		if n := s.Stats().TLS; n != (TLSHandshakes{Compact: conns + 1}) {
			t.Errorf("handshakes: %+v, want %d compact ones", n, conns+1)
		}
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

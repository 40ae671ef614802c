package tcp

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// newTLSClient connects with TLS, and says whether the session is resumed. The server's answer
// comes behind its tickets.
func newTLSClient(t *testing.T, addr string, cfg *tls.Config) (c *lineClient, resumed bool) {
	t.Helper()
	nc, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", addr, cfg)
	must(t, err)
	t.Cleanup(func() { nc.Close() })
	must(t, nc.SetDeadline(time.Now().Add(2*patience)))
	c = &lineClient{nc, bufio.NewReader(nc)}
	c.want(t, "a", "a 1")
	return c, nc.ConnectionState().DidResume
}

// TestUpgradeTLS has connections with TLS closed in order, at the rate of a shutdown, and their
// clients resume their sessions in the new process, and in the one after that.
func TestUpgradeTLS(t *testing.T) {
	const n, rate = 4, 2
	for _, c := range []struct {
		model   string
		version uint16
	}{{"epoll", tls.VersionTLS12}, {"uring", tls.VersionTLS13}, {"goroutine", tls.VersionTLS13}} {
		t.Run(c.model+" "+tls.VersionName(c.version), func(t *testing.T) {
			server, client := identity()
			client = client.Clone()
			client.MaxVersion, client.ClientSessionCache = c.version, tls.NewLRUClientSessionCache(0)
			srv := &Server{Addr: "127.0.0.1:0", Model: c.model, TLSConfig: server}
			srv.Limits.ShutdownRate = rate
			srv.Successor = succeeded(t, successorConfig{Addr: srv.Addr, Model: c.model, TLS: true})
			srv.Handler = Lines(&counted{srv: srv})
			s := start(t, srv)
			var clients []*lineClient
			for i := range n {
				nc, resumed := newTLSClient(t, s.addr, client)
				clients = append(clients, nc)
				if resumed != (i > 0) {
					t.Fatalf("connection %d: resumed: %v", i, resumed)
				}
			}
			begin := time.Now()
			u, err := s.Upgrade(context.Background())
			if err != nil || u.Moved != 0 || u.Lost != 0 {
				t.Fatalf("Upgrade: %+v, %v; want nothing moved", u, err)
			}
			for i, nc := range clients {
				if _, err := nc.in.ReadByte(); !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("connection %d ends with %v, want EOF: a close-notify", i, err)
				}
				nc.Close()
			}
			if took, least := time.Since(begin), (n-1)*time.Second/rate-100*time.Millisecond; took < least {
				t.Errorf("%d connections are drained in %v, want at least %v with %d a second", n, took, least, rate)
			}
			ok(t, s.result(t))
			next, resumed := newTLSClient(t, s.addr, client)
			if pid := next.pid(t); pid != u.PID || !resumed {
				t.Errorf("process %d serves, resumed: %v; want %d and a session that is resumed", pid, resumed, u.PID)
			}
			_, err = io.WriteString(next, "upgrade\n")
			must(t, err)
			if _, err := next.in.ReadByte(); err != io.EOF {
				t.Errorf("the connection to the second process ends with %v, want EOF", err)
			}
			awaitGone(t, u.PID)
			last, resumed := newTLSClient(t, s.addr, client)
			if !resumed {
				t.Error("the third process does not resume")
			}
			pid := last.pid(t)
			_, err = io.WriteString(last, "stop\n")
			must(t, err)
			awaitGone(t, pid)
		})
	}
	testkit.WaitFor(t, "processes are left", func() bool { return len(children(t)) == 0 })
}

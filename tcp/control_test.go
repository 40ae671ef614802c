package tcp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

func (s *started) waitAcceptPaused(t *testing.T, want bool) {
	t.Helper()
	waitFor(t, fmt.Sprintf("AcceptingPaused is %v", !want), func() bool { return s.Stats().AcceptingPaused == want })
}

func localAddrPort(c *testkit.Conn) netip.AddrPort { return c.LocalAddr().(*net.TCPAddr).AddrPort() }

// A connection behind a proxy is closed by the address that the handler sees, or by the proxy's
// socket address; a handler may close its own, on its loop.
func TestCloseConns(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		reasons := make(chan error, 10)
		srv := &Server{Model: model, Loops: loops}
		srv.Handler = Lines(hooks{closed: func(why error) { reasons <- why }, message: func(c *Conn, line []byte) {
			if string(line) == "close me" {
				expectNoError(t, srv.CloseConns(c.RemoteAddr().(*net.TCPAddr).AddrPort()))
			}
			echoLine(c, line)
		}})
		s := startBehindProxy(t, srv)
		through := func(client string) *testkit.Conn {
			c := dial(t, s.addr)
			c.Send("PROXY TCP4 " + client + " 203.0.113.1 4444 80\r\n")
			c.ExchangeLine("hello", "hello")
			return c
		}
		byTold, bySocket, bySelf, stays := through("198.51.100.7"), through("198.51.100.8"), through("198.51.100.9"), through("198.51.100.10")
		fresh := dial(t, s.addr) // no proxy has told anything of it
		s.waitOpen(t, 5)
		expectError(t, "no address", s.CloseConns(netip.AddrPort{}), ErrBadConfig)
		for _, nobody := range []string{"127.0.0.1:1", "198.51.100.7:4445"} {
			s.CloseConns(netip.MustParseAddrPort(nobody))
		}
		bySelf.Send("close me\n")
		expectReason(t, "by itself", reasons, ErrClosedByOperator)
		for conn, at := range map[*testkit.Conn]netip.AddrPort{
			byTold: netip.MustParseAddrPort("[::ffff:198.51.100.7]:4444"), bySocket: localAddrPort(bySocket),
		} {
			expectNoError(t, s.CloseConns(at))
			expectClosedWithoutOutput(t, conn)
			expectReason(t, at.String(), reasons, ErrClosedByOperator)
		}
		s.CloseConns(localAddrPort(fresh))
		fresh.ExpectEOF("")
		stays.ExchangeLine("still there", "still there")
	})
}

// Stopping is called once while connections are still open, however the server is stopped and how often.
func TestStopping(t *testing.T) {
	t.Parallel() // mostly waits
	background := context.Background()
	for name, end := range map[string]func(*started){
		"context":  func(s *started) { s.stop() },
		"Drain":    func(s *started) { s.Drain() },
		"Shutdown": func(s *started) { s.Shutdown(background) },
		"Close":    func(s *started) { s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			open := make(chan int64, 10)
			srv := new(Server)
			srv.Stopping = func() { open <- srv.Stats().Open }
			s := startServer(t, srv)
			dial(t, s.addr).ExchangeLine("hello", "hello")
			end(s)
			_ = s.waitResult(t) // whether it was cut off is another matter
			s.Shutdown(background)
			s.Close()
			if n := len(open); n != 1 {
				t.Fatalf("called %d times, want once", n)
			}
			expectEqual(t, "connections that were open when it was called", <-open, 1)
		})
	}
	idle := Server{Stopping: func() { t.Error("called before the start") }}
	idle.Close()
}

package tcp

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
)

// TestControlOfProcesses checks that operator commands from the supervisor and from workers reach
// all workers, also restarted ones.
func TestControlOfProcesses(t *testing.T) {
	s := startWithProcesses(t, successorConfig{})
	peers, _ := dialAllWorkers(t, s.addr, 2)
	expectNoError(t, s.PauseAccepting())
	s.waitAcceptPaused(t, true)
	requireNoError(t, syscall.Kill(peers[0].pid, syscall.SIGKILL))
	s.waitRestarted(t, 1)
	s.waitAcceptPaused(t, true)
	late := dial(t, s.addr)
	expectNoError(t, s.ResumeAccepting())
	late.ExchangeLine("let in", "let in 1")
	s.waitAcceptPaused(t, false)
	late.ExchangeLine("pause", "<nil>")
	s.waitAcceptPaused(t, true)
	late.ExchangeLine("resume", "<nil>")
	s.waitAcceptPaused(t, false)

	peers, _ = dialAllWorkers(t, s.addr, 2)
	for i, p := range peers {
		expectNoError(t, s.CloseConns(localAddrPort(p.Conn)))
		expectClosedWithoutOutput(t, p.Conn)
		waitFor(t, "it is not counted as closed by the operator", func() bool { return s.Stats().Closed.Operator == int64(i+1) })
	}
}

// TestSocketControl checks that Socket.Control is called for each TCP socket before it is bound, that connections
// inherit its options, also with worker processes, and that its error prevents the start.
func TestSocketControl(t *testing.T) {
	const segment = 1000
	calls := 0
	socket := Socket{Control: func(network, address string, raw syscall.RawConn) (err error) {
		calls++
		if network != "tcp4" || !strings.HasPrefix(address, "127.0.0.1:") {
			t.Errorf("called with %q, %q; want tcp4 and the address", network, address)
		}
		return errors.Join(raw.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, segment)
		}), err)
	}}
	expectInherited := func(t *testing.T, addr string, sockets int) {
		t.Helper()
		raw, err := dial(t, addr).Conn.(*net.TCPConn).SyscallConn()
		requireNoError(t, err)
		var most int
		expectNoError(t, errors.Join(raw.Control(func(fd uintptr) {
			most, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG)
		}), err))
		if most > segment || calls < sockets {
			t.Errorf("the client may send segments of %d bytes after %d calls; want %d at most, and %d calls", most, calls, segment, sockets)
		}
		calls = 0
	}
	forEachModel(t, func(t *testing.T, model string, loops int) {
		expectInherited(t, startServer(t, &Server{Model: model, Loops: loops, Socket: socket}).addr, loops)
	})
	t.Run("processes", func(t *testing.T) {
		expectInherited(t, startWithProcesses(t, successorConfig{}, func(srv *Server) { srv.Socket = socket }).addr, 2)
	})
	no := errors.New("no")
	srv := &Server{Addr: "127.0.0.1:0", Handler: Base{}, Socket: Socket{Control: func(string, string, syscall.RawConn) error { return no }}}
	expectError(t, "Control fails", srv.ListenAndServe(t.Context()), no)
}

package tcp

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
)

// What an operator orders reaches all worker processes, from their supervisor and
// from any of them, and one that is started again, too.
func TestControlOfProcesses(t *testing.T) {
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) { testControlOfProcesses(t, model) })
	}
}

func testControlOfProcesses(t *testing.T, model string) {
	s := startProcesses(t, &Server{Model: model, Processes: 2})
	defer gone(t)
	defer s.Close()
	peers, of := meetAll(t, s.addr, 2, 1)
	ok(t, s.PauseAccepting())
	s.wantPaused(t, true)
	for pid := range of {
		syscall.Kill(pid, syscall.SIGKILL)
		break
	}
	eventually(t, func() bool { return s.Stats().Restarts == 1 && s.Stats().Processes == 2 && s.Stats().AcceptingPaused }, func() string {
		return fmt.Sprintf("a worker that was started again does not pause: %+v", s.Stats())
	})
	late := dial(t, s.addr)
	ok(t, s.ResumeAccepting())
	ask(t, late, "let in")
	s.wantPaused(t, false)
	var alive *peer
	for _, p := range peers {
		if answer, err := p.ask("pause"); err == nil && answer == "<nil>" {
			alive = p
			break
		}
	}
	s.wantPaused(t, true)
	if answer, err := alive.ask("resume"); err != nil || answer != "<nil>" {
		t.Errorf("resume in a worker: %q, %v", answer, err)
	}
	s.wantPaused(t, false)

	peers, _ = meetAll(t, s.addr, 2, 1)
	for i, p := range peers {
		ok(t, s.CloseConns(remoteOf(p.Conn)))
		if got := ended(t, p.Conn); got != "" {
			t.Errorf("it has got %q", got)
		}
		eventually(t, func() bool { return s.Stats().Closed.Operator == int64(i+1) }, func() string {
			return fmt.Sprintf("closed are %+v, want %d by the operator", s.Stats().Closed, i+1)
		})
	}
}

// Socket.Control is called with each TCP socket before it is bound, connections inherit what
// it sets, under worker processes too, and its error keeps the server from starting.
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
	inherited := func(t *testing.T, addr string, sockets int) {
		t.Helper()
		raw, err := dial(t, addr).(*net.TCPConn).SyscallConn()
		ok(t, err)
		var most int
		ok(t, errors.Join(raw.Control(func(fd uintptr) {
			most, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG)
		}), err))
		if most > segment || calls < sockets {
			t.Errorf("the client may send segments of %d bytes after %d calls; want %d at most, and %d calls", most, calls, segment, sockets)
		}
		calls = 0
	}
	onModels(t, func(t *testing.T, model string, loops int) {
		inherited(t, start(t, &Server{Model: model, Loops: loops, Socket: socket}).addr, loops)
	})
	t.Run("processes", func(t *testing.T) {
		s := startProcesses(t, &Server{Processes: 2, Socket: socket})
		defer gone(t)
		defer s.Close()
		inherited(t, s.addr, 2)
	})
	no := errors.New("no")
	srv := &Server{Addr: "127.0.0.1:0", Handler: Base{}, Socket: Socket{Control: func(string, string, syscall.RawConn) error { return no }}}
	if err := srv.ListenAndServe(t.Context()); !errors.Is(err, no) {
		t.Errorf("Control fails: %v, want its error", err)
	}
}

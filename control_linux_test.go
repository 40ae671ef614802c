package myriad

import (
	"fmt"
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

package tcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// handleTestSignals upgrades a server at SIGUSR2, unless this is a worker, and returns a context
// that ends at SIGTERM.
func handleTestSignals(srv *Server) context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	if _, worker := WorkerProcess(); worker {
		return ctx
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2)
	go func() {
		for range asked {
			if _, err := srv.Upgrade(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
	return ctx
}

// startServerWithSuccessor starts a server with these settings in this process; its workers and successor
// are others.
func startServerWithSuccessor(t *testing.T, from, to successorConfig) *started {
	t.Helper()
	from.Addr, to.Addr = "127.0.0.1:0", "127.0.0.1:0"
	settings, err := json.Marshal(from)
	requireNoError(t, err)
	t.Setenv(successorSettings, string(settings))
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	srv := &Server{Model: from.Model, Loops: from.Loops, Processes: from.Processes, Successor: newSuccessorFunc(t, to)}
	newUpgradeHandler(srv, from)
	return startServer(t, srv)
}

// servingPIDs returns the PIDs of the processes that serve clients.
func servingPIDs(t *testing.T, clients []*testkit.Conn) []int {
	t.Helper()
	pids := make(map[int]bool)
	for _, client := range clients {
		pids[servingPID(t, client)] = true
	}
	return slices.Sorted(maps.Keys(pids))
}

// TestUpgradeProcesses hands connections from several processes to several others, twice.
func TestUpgradeProcesses(t *testing.T) {
	const n, half = 40, "half a "
	for _, c := range []struct{ from, to successorConfig }{
		{successorConfig{Model: Uring, Processes: 2, Loops: 2}, successorConfig{Model: Goroutine, Processes: 3}},
		{successorConfig{Model: Goroutine, Processes: 3}, successorConfig{Model: Uring, Loops: 2, Processes: 1}},
		{successorConfig{Model: Epoll, Loops: 3}, successorConfig{Model: Epoll, Processes: 2}},
	} {
		t.Run(fmt.Sprintf("%d %s to %d %s", c.from.Processes, c.from.Model, c.to.Processes, c.to.Model), func(t *testing.T) {
			s := startServerWithSuccessor(t, c.from, c.to)
			clients := dialManyWithPartialLine(t, s.addr, n, half)
			waitFor(t, "not all input has come", func() bool { return s.Stats().BytesIn == n*9 })
			u, err := s.Upgrade(t.Context())
			if err != nil || u.Moved != n || u.Lost != 0 {
				t.Fatalf("Upgrade: %+v, %v; want %d connections moved", u, err, n)
			}
			expectNoError(t, s.waitResult(t))
			for _, client := range clients {
				client.Exchange("line", "half a line 2")
			}
			for _, pid := range servingPIDs(t, clients) {
				if pid != u.PID && parentPID(pid) != u.PID {
					t.Errorf("process %d serves, whose parent is %d; want %d or a worker of it", pid, parentPID(pid), u.PID)
				}
			}
			requireNoError(t, syscall.Kill(u.PID, syscall.SIGUSR2))
			waitProcessEnd(t, u.PID)
			more := dialManyWithPartialLine(t, s.addr, n, half) // whichever socket they come to
			for _, client := range clients {
				client.Exchange("b", "b 4") // with that for the number of the process
			}
			for _, client := range more {
				client.Exchange("line", "half a line 2")
			}
			last := servingPIDs(t, append(clients, more...))
			if want := max(c.to.Processes, 1); len(last) > want || want > 1 && len(last) == 1 {
				t.Errorf("processes %v serve in the end, want %d", last, want)
			}
			if c.to.Processes > 1 {
				last = append(last, parentPID(last[0]))
			}
			requireNoError(t, syscall.Kill(last[len(last)-1], syscall.SIGTERM))
			for _, pid := range last {
				waitProcessEnd(t, pid)
			}
			expectNoChildren(t)
		})
	}
}

// TestUpgradeProcessesFails tests failures before the transfer with worker processes, and that a
// worker alone can't be upgraded.
func TestUpgradeProcessesFails(t *testing.T) {
	const n = 10
	for _, c := range []struct {
		does, says string
		from, to   int
	}{
		{"crash", "exit status 3", 2, 1},
		{"crash as a worker", "worker processes do not stay alive", 2, 2},
		{"hang as a worker", "deadline exceeded", 1, 2},
		{"other settings", "Server.Loops is -1", 2, 2},
	} {
		t.Run(c.does, func(t *testing.T) {
			s := startServerWithSuccessor(t, successorConfig{Model: Epoll, Processes: c.from}, successorConfig{Model: Epoll, Processes: c.to, Does: c.does})
			clients := dialManyWithPartialLine(t, s.addr, n, "half a ")
			before := childPIDs(t)
			ctx := t.Context()
			if strings.Contains(c.says, "deadline") {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
			}
			u, err := s.Upgrade(ctx)
			if err == nil || !strings.Contains(err.Error(), c.says) || u.Lost != 0 {
				t.Fatalf("Upgrade: %+v, %v; want an error that says %q", u, err, c.says)
			}
			for _, client := range append(clients, dialManyWithPartialLine(t, s.addr, n, "half a ")...) {
				client.Exchange("line", "half a line 2")
			}
			if after := childPIDs(t); !slices.Equal(before, after) {
				t.Errorf("the processes were %v and are %v", before, after)
			}
			if c.from > 1 {
				clients[0].Exchange("upgrade", "myriad: an upgrade of this server: "+errors.ErrUnsupported.Error())
			}
		})
	}
}

// TestUpgradeKilled kills the old or the new process or one of their workers during the transfer.
// A connection continues where it is, with its state, or ends; new ones are served; lost
// connections are counted; and no process is left.
func TestUpgradeKilled(t *testing.T) {
	const n, after = 100, 30
	for _, c := range []struct {
		name, model string
		processes   int
		from, to    string // what they do
		fails       bool
	}{
		{"the old process", Epoll, 0, "die in Save", "", false},
		{"the old process", Uring, 0, "die in Save", "", false},
		{"the old process", Goroutine, 0, "die in Save", "", false},
		{"an old worker", Uring, 2, "die in Save", "", false},
		{"a new worker", Epoll, 2, "", "die in Restore", true},
		{"the first of the new processes", Goroutine, 2, "", "kill its parent in Restore", true},
	} {
		t.Run(c.name+"/"+c.model, func(t *testing.T) {
			pids := filepath.Join(t.TempDir(), "pids")
			from := successorConfig{Model: c.model, Processes: c.processes, Does: c.from, After: after}
			to := successorConfig{Model: c.model, Processes: c.processes, Does: c.to, After: after, PIDs: pids}
			var s *started
			var first *exec.Cmd
			addr := filepath.Join(t.TempDir(), "s")
			if c.processes > 0 {
				s = startServerWithSuccessor(t, from, to)
				addr = s.addr
			} else {
				from.Addr, from.Network, from.PIDs = addr, "unix", pids
				var err error
				first, err = newSuccessorFunc(t, from)()
				requireNoError(t, errors.Join(err, first.Start()))
				t.Cleanup(func() {
					_ = first.Process.Kill()
					_ = first.Wait()
				})
				waitFor(t, "the server does not listen", func() bool { return trySend(addr, "") })
			}
			clients := dialManyWithPartialLine(t, addr, n, "")
			var u Upgraded
			var err error
			if s != nil {
				if u, err = s.Upgrade(t.Context()); err != nil && !c.fails {
					t.Errorf("Upgrade: %v; a worker of the old process should not end it", err)
				}
			} else {
				clients[0].Send("upgrade\n")
				waitProcessEnd(t, first.Process.Pid)
			}
			served := 0
			for _, client := range clients {
				_, _ = io.WriteString(client, "b\n") // it may have ended
				answer, err := client.R.ReadString('\n')
				switch {
				case err != nil:
				case answer != "b 2\n" && client != clients[0]:
					t.Errorf("answered %q, want b 2", answer)
				default:
					served++
				}
			}
			if s != nil && err == nil && !c.fails && u.Moved != served && u.Lost < n-served {
				t.Errorf("%d connections have ended during the hand-over, %d are said to be lost", n-served, u.Lost)
			}
			orphans := err == nil && strings.HasPrefix(c.to, "kill its parent") // they end, after Upgrade has
			if !trySend(addr, "") && !orphans && (served > 0 || s != nil) {
				t.Errorf("%d are served, but nobody who connects", served)
			}
			all, _ := os.ReadFile(pids)
			started := strings.Fields(string(all))
			switch {
			case s != nil && err == nil:
				expectNoError(t, s.waitResult(t))
				_ = syscall.Kill(u.PID, syscall.SIGTERM) // it may have ended
			case s != nil:
				s.Close()
				expectNoError(t, s.waitResult(t))
			}
			for _, pid := range started { // with those that were started again
				p, _ := strconv.Atoi(pid)
				waitFor(t, "a process is left", func() bool { return hasProcessEnded(p) || s == nil && trySend(addr, "stop\n") && hasProcessEnded(p) })
			}
		})
	}
}

// trySend reports whether it could connect to an address and send text.
func trySend(addr, text string) bool {
	network := "tcp"
	if filepath.IsAbs(addr) {
		network = "unix"
	}
	nc, err := net.Dial(network, addr)
	if err != nil {
		return false
	}
	defer nc.Close()
	_, err = io.WriteString(nc, text)
	return err == nil
}

package tcp

import (
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

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
			s, _ := startUpgradable(t, c.from, c.to)
			clients := dialManyWithPartialLine(t, s.addr, n, half)
			waitFor(t, "not all input has come", func() bool { return s.Stats().BytesIn == n*9 })
			u := s.upgradeMoving(t, n, nil)
			expectNoError(t, s.waitResult(t))
			for _, client := range clients {
				client.ExchangeLine("line", "half a line 2")
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
				client.ExchangeLine("b", "b 4") // with that for the number of the process
			}
			for _, client := range more {
				client.ExchangeLine("line", "half a line 2")
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

func readPIDs(t *testing.T, file string) (pids []int) {
	t.Helper()
	text, err := os.ReadFile(file)
	requireNoError(t, err)
	for _, line := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(line)
		requireNoError(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// TestUpgradeKilled kills the old process during the transfer.
func TestUpgradeKilled(t *testing.T) {
	const n, after = 100, 30
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) {
			dir := t.TempDir()
			addr, pids := filepath.Join(dir, "s"), filepath.Join(dir, "pids")
			first, err := newSuccessorFunc(t, successorConfig{Addr: addr, Network: "unix", Model: model, PIDs: pids, Does: "die in Save", After: after})()
			requireNoError(t, err)
			null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
			requireNoError(t, err)
			defer null.Close()
			first.Stdout, first.Stderr = null, null // the new process keeps them open
			p := testkit.Start(t, first)
			waitFor(t, "the server does not listen", func() bool { return trySend(addr, "") })
			clients := dialManyWithPartialLine(t, addr, n, "")
			clients[0].Send("upgrade\n")
			expectEqual(t, "exit code of the old process", p.WaitExitCode(), 9)
			if served := countServed(t, clients[1:], "b 2"); served > 0 && !trySend(addr, "") {
				t.Errorf("%d are served, but nobody who connects", served)
			}
			for _, pid := range readPIDs(t, pids) {
				waitFor(t, "a process is left", func() bool {
					return hasProcessEnded(pid) || trySend(addr, "stop\n") && hasProcessEnded(pid)
				})
			}
		})
	}
}

// TestUpgradeWorkerKilled is TestUpgradeKilled for worker processes and the first of the new processes.
func TestUpgradeWorkerKilled(t *testing.T) {
	const n, after = 100, 30
	for _, c := range []struct {
		name, model, from, to string // what they do
		fails                 bool
	}{
		{"an old worker", Uring, "die in Save", "", false},
		{"a new worker", Epoll, "", "die in Restore", true},
		{"the first of the new processes", Goroutine, "", "kill its parent in Restore", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			pids := filepath.Join(t.TempDir(), "pids")
			cfg := successorConfig{Model: c.model, Processes: 2, After: after}
			from, to := cfg, cfg
			from.Does, to.Does, to.PIDs = c.from, c.to, pids
			s, _ := startUpgradable(t, from, to)
			clients := dialManyWithPartialLine(t, s.addr, n, "")
			u, err := s.Upgrade(t.Context())
			if err != nil && !c.fails {
				t.Errorf("Upgrade: %v; a worker of the old process should not end it", err)
			}
			served := countServed(t, clients, "b 2")
			if err == nil && !c.fails && u.Moved != served && u.Lost < n-served {
				t.Errorf("%d connections have ended during the hand-over, %d are said to be lost", n-served, u.Lost)
			}
			orphans := err == nil && strings.HasPrefix(c.to, "kill its parent") // they end, after Upgrade has
			if !trySend(s.addr, "") && !orphans {
				t.Errorf("%d are served, but nobody who connects", served)
			}
			if err == nil {
				_ = syscall.Kill(u.PID, syscall.SIGTERM) // it may have ended
			} else {
				s.Close()
			}
			expectNoError(t, s.waitResult(t))
			for _, pid := range readPIDs(t, pids) { // with those that were started again
				waitProcessEnd(t, pid)
			}
		})
	}
}

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

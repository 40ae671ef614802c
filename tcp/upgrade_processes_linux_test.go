package tcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
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

// obeySignals has a server of these tests upgraded at SIGUSR2, where it is the first process, and
// end at SIGTERM.
func obeySignals(srv *Server) context.Context {
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

// startFrom starts a server of these settings in this process; its workers are others.
func startFrom(t *testing.T, cfg successorConfig, closed func(error)) *started {
	t.Helper()
	settings, err := json.Marshal(cfg)
	must(t, err)
	t.Setenv(successorSettings, string(settings))
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	srv := &Server{Addr: cfg.Addr, Model: cfg.Model, Loops: cfg.Loops, Processes: cfg.Processes}
	srv.Handler = Lines(&counted{srv: srv, closed: closed})
	return start(t, srv)
}

// crowd connects n clients that have sent one line and half of another.
func crowd(t *testing.T, addr string, n int) (clients []*lineClient) {
	t.Helper()
	for range n {
		client := newLineClient(t, "tcp", addr)
		client.want(t, "a", "a 1")
		_, err := io.WriteString(client, "half a ")
		must(t, err)
		clients = append(clients, client)
	}
	return clients
}

// servers are the processes that serve clients.
func servers(t *testing.T, clients []*lineClient) []int {
	t.Helper()
	pids := make(map[int]bool)
	for _, client := range clients {
		pids[client.pid(t)] = true
	}
	return slices.Sorted(maps.Keys(pids))
}

// parentOf is the parent of a process.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// TestUpgradeProcesses hands connections from some processes to others, twice.
func TestUpgradeProcesses(t *testing.T) {
	for _, c := range []struct{ from, to successorConfig }{
		{successorConfig{Model: "epoll", Processes: 2}, successorConfig{Model: "epoll", Processes: 2}},
		{successorConfig{Model: "uring", Processes: 2, Loops: 2}, successorConfig{Model: "goroutine", Processes: 3}},
		{successorConfig{Model: "goroutine", Processes: 3}, successorConfig{Model: "uring", Loops: 2, Processes: 1}},
		{successorConfig{Model: "epoll", Loops: 3}, successorConfig{Model: "uring", Processes: 2}},
		{successorConfig{Model: "goroutine"}, successorConfig{Model: "epoll", Processes: 2}},
	} {
		c.from.Addr, c.to.Addr = "127.0.0.1:0", "127.0.0.1:0"
		t.Run(fmt.Sprintf("%d %s to %d %s", c.from.Processes, c.from.Model, c.to.Processes, c.to.Model), func(t *testing.T) {
			const n = 40
			s := startFrom(t, c.from, nil)
			s.Successor = succeeded(t, c.to)
			clients := crowd(t, s.addr, n)
			eventually(t, func() bool { return s.Stats().BytesIn == n*9 }, func() string { return "not all input has come" })
			u, err := s.Upgrade(context.Background())
			if err != nil || u.Moved != n || u.Lost != 0 {
				t.Fatalf("Upgrade: %+v, %v; want %d connections moved", u, err, n)
			}
			ok(t, s.result(t))
			for _, client := range clients {
				client.want(t, "line", "half a line 2")
			}
			for pid := range slices.Values(servers(t, clients)) {
				if pid != u.PID && parentOf(pid) != u.PID {
					t.Errorf("process %d serves, whose parent is %d; want %d or a worker of it", pid, parentOf(pid), u.PID)
				}
			}
			must(t, syscall.Kill(u.PID, syscall.SIGUSR2))
			awaitGone(t, u.PID)
			more := crowd(t, s.addr, n) // whichever socket they come to
			for _, client := range clients {
				client.want(t, "b", "b 4") // with that for the number of the process
			}
			for _, client := range more {
				client.want(t, "line", "half a line 2")
			}
			last := servers(t, append(clients, more...))
			if want := max(c.to.Processes, 1); len(last) > want || want > 1 && len(last) == 1 {
				t.Errorf("processes %v serve in the end, want %d", last, want)
			}
			if c.to.Processes > 1 {
				last = append(last, parentOf(last[0]))
			}
			must(t, syscall.Kill(last[len(last)-1], syscall.SIGTERM))
			for _, pid := range last {
				awaitGone(t, pid)
			}
			gone(t)
		})
	}
}

// TestUpgradeProcessesFails has worker processes on either side, and something wrong.
func TestUpgradeProcessesFails(t *testing.T) {
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
			const n = 10
			s := startFrom(t, successorConfig{Addr: "127.0.0.1:0", Model: "epoll", Processes: c.from}, nil)
			s.Successor = succeeded(t, successorConfig{Addr: "127.0.0.1:0", Model: "epoll", Processes: c.to, Does: c.does})
			clients := crowd(t, s.addr, n)
			before := children(t)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			if strings.Contains(c.says, "deadline") {
				cancel()
				ctx, cancel = context.WithTimeout(context.Background(), 300*time.Millisecond)
			}
			defer cancel()
			u, err := s.Upgrade(ctx)
			if err == nil || !strings.Contains(err.Error(), c.says) || u.Lost != 0 {
				t.Fatalf("Upgrade: %+v, %v; want an error that says %q", u, err, c.says)
			}
			for _, client := range append(clients, crowd(t, s.addr, n)...) {
				client.want(t, "line", "half a line 2")
			}
			if after := children(t); !slices.Equal(before, after) {
				t.Errorf("the processes were %v and are %v", before, after)
			}
		})
	}
}

// TestUpgradeProcessKilled kills a worker process of either side, or the new first process, at
// some moment of an upgrade. A connection goes on where it is, with what was known of it, or ends; others can connect; and what
// has not moved and is lost is counted.
func TestUpgradeProcessKilled(t *testing.T) {
	for i := range 12 {
		model, first, next := []string{"epoll", "uring", "goroutine"}[i%3], i%4 == 0, i%2 == 0
		t.Run(fmt.Sprintf("%d/%s", i, model), func(t *testing.T) {
			const n = 300
			pids := filepath.Join(t.TempDir(), "pids")
			cfg := successorConfig{Addr: "127.0.0.1:0", Model: model, Processes: 2}
			s := startFrom(t, cfg, nil)
			old := children(t)
			cfg.PIDs = pids
			s.Successor = succeeded(t, cfg)
			var clients []*lineClient
			for range n {
				client := newLineClient(t, "tcp", s.addr)
				client.want(t, "a", "a 1")
				clients = append(clients, client)
			}
			killed := make(chan int, 1)
			go func() {
				victim := old[rand.N(len(old))]
				deadline := time.Now().Add(patience)
				for have := []string(nil); len(have) < 3 && time.Now().Before(deadline); { // the first is their supervisor
					time.Sleep(time.Millisecond)
					all, _ := os.ReadFile(pids)
					if have = strings.Fields(string(all)); next && len(have) == 3 {
						victim, _ = strconv.Atoi(have[0])
						if !first {
							victim, _ = strconv.Atoi(have[1+rand.N(2)])
						}
					}
				}
				time.Sleep(rand.N(25 * time.Millisecond)) // any moment will do
				_ = syscall.Kill(victim, syscall.SIGKILL) // it may have ended
				killed <- victim
			}()
			u, err := s.Upgrade(context.Background())
			victim := testkit.Receive(t, killed, "the end of a process")
			if err != nil && !next {
				t.Errorf("Upgrade: %v; a worker of the old process should not end it", err)
			}
			served, ended := 0, 0
			for _, client := range clients {
				answer, err := client.ask("b")
				switch {
				case err != nil:
					ended++
				case answer != "b 2":
					t.Errorf("answered %q, want b 2", answer)
				default:
					served++
				}
			}
			t.Logf("killed %d: %+v, %v; %d go on", victim, u, err, served)
			if before := u.Moved == served; err == nil && !next && !before && u.Lost < ended {
				t.Errorf("%d connections have ended during the hand-over, %d are said to be lost", ended, u.Lost)
			}
			if err != nil || !first {
				newLineClient(t, "tcp", s.addr).want(t, "c", "c 1")
			}
			if err == nil {
				ok(t, s.result(t))
				_ = syscall.Kill(u.PID, syscall.SIGTERM) // it may have ended
			}
			if all, _ := os.ReadFile(pids); err == nil || first {
				for _, pid := range strings.Fields(string(all)) { // with those that were started again
					n, _ := strconv.Atoi(pid)
					awaitGone(t, n)
				}
			}
		})
	}
}

// TestUpgradeWorker refuses to upgrade a worker process by itself.
func TestUpgradeWorker(t *testing.T) {
	s := startFrom(t, successorConfig{Addr: "127.0.0.1:0", Model: "epoll", Processes: 2}, nil)
	client := newLineClient(t, "tcp", s.addr)
	client.want(t, "upgrade", "myriad: an upgrade of this server: "+errors.ErrUnsupported.Error())
}

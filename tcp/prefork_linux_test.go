package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// startWithProcesses starts a server whose workers are this test binary.
func startWithProcesses(t *testing.T, cfg successorConfig, changes ...func(*Server)) *started {
	t.Helper()
	cfg.Processes = 2
	t.Cleanup(func() { expectNoChildren(t) }) // after the end of the server
	s, _ := startUpgradable(t, cfg, successorConfig{}, changes...)
	return s
}

// parentPID returns the parent of a process, or 0 if it has ended.
func parentPID(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// childPIDs returns the child processes that were not waited for.
func childPIDs(t *testing.T) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	requireNoError(t, err)
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && parentPID(pid) == os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

func expectNoChildren(t *testing.T) {
	t.Helper()
	if left := childPIDs(t); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

func countDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	requireNoError(t, err)
	return len(entries)
}

type workerClient struct {
	*testkit.Conn
	pid int
}

func dialWorker(t *testing.T, addr string) workerClient {
	t.Helper()
	c := dial(t, addr)
	return workerClient{c, servingPID(t, c)}
}

// dialAllWorkers connects until each worker has a connection. of counts the connections of each.
func dialAllWorkers(t *testing.T, addr string, workers int) (peers []workerClient, connsByPID map[int]int) {
	t.Helper()
	connsByPID = make(map[int]int)
	waitFor(t, "not all workers have a connection", func() bool {
		p := dialWorker(t, addr)
		peers = append(peers, p)
		connsByPID[p.pid]++
		return len(connsByPID) == workers
	})
	return peers, connsByPID
}

// waitRestarted waits until n killed workers have been restarted.
func (s *started) waitRestarted(t *testing.T, n int) {
	t.Helper()
	eventually(t, func() bool { st := s.Stats(); return st.Restarts == int64(n) && st.Processes == s.Processes },
		func() string { return fmt.Sprintf("workers are not started again: %+v", s.Stats()) })
}

// dialWithHalfMessage makes a connection of which the worker has half a message.
func dialWithHalfMessage(t *testing.T, addr string) workerClient {
	t.Helper()
	p := dialWorker(t, addr)
	p.Send("whole\nhalf")
	p.Expect("whole 2\n")
	return p
}

func TestProcessesSettings(t *testing.T) {
	for word, srv := range map[string]*Server{
		"1024":                   {Processes: maxProcesses + 1},
		"Limits.MaxConns is 3":   {Processes: 4, Limits: Limits{MaxConns: 3}},
		"Limits.AcceptRate is 3": {Processes: 4, Limits: Limits{AcceptRate: 3}},
		"Listener is set, but Server.Processes is 2": {Processes: 2, Listeners: []Listener{{Listener: &net.TCPListener{}}}},
		"Listeners[0].Network is unix, but":          {Processes: 2, Listeners: []Listener{{Network: "unix", Addr: "s"}}},
	} {
		expectBadConfig(t, srv, word)
	}
}

// TestProcesses checks that workers serve on all listeners and know the listener of each
// connection, also after a restart; that counters include all workers, also ended ones; and that
// a broadcast from any process reaches all connections once and in the same order.
func TestProcesses(t *testing.T) {
	const workers = 2
	s := startWithProcesses(t, successorConfig{
		Limits: Limits{MaxConns: 1001}, Tagged: []taggedListener{{Name: "second", Addr: "127.0.0.1:0"}},
	})
	if st := s.Stats(); st.Processes != workers || st.MaxConns != 1001 || st.Model == "" || st.Loops != workers {
		t.Errorf("at the start %+v", st)
	}
	listeners := s.ListenerStats()
	first, second := listeners[0].Addr.String(), listeners[1].Addr.String()
	peers, of := dialAllWorkers(t, first, workers)
	others, ofOthers := dialAllWorkers(t, second, workers)
	peers[0].ExchangeLine("listener", "127.0.0.1:0")
	others[0].ExchangeLine("listener", "second")
	peers = append(peers, others...)
	conns, sent := int64(len(peers)), int64(4*len(peers)+2*9)
	waitCounted := func(open int64) {
		t.Helper()
		eventually(t, func() bool {
			st, l := s.Stats(), s.ListenerStats()
			return st.Open == open && st.Accepted == conns && st.BytesIn == sent && st.Reads >= conns &&
				l[0].Accepted+l[1].Accepted == conns
		}, func() string {
			return fmt.Sprintf("%+v, %+v, want %d open, %d accepted, %d bytes", s.Stats(), s.ListenerStats(), open, conns, sent)
		})
	}
	waitCounted(conns)
	expectEqual(t, "accepted by the second listener", s.ListenerStats()[1].Accepted, int64(len(others)))

	var order string
	for i, p := range peers {
		cast := fmt.Sprintf("cast %d\n", i)
		p.Send(cast)
		sent += int64(len(cast))
	}
	for i, p := range peers {
		var got string
		for range peers {
			got += p.ReadLine() + " "
		}
		if i == 0 {
			order = got
		}
		expectEqual(t, fmt.Sprintf("the order at connection %d", i), got, order)
	}
	_, err := s.Broadcast(Broadcast{All: true, Message: []byte("from above\n")})
	requireNoError(t, err)
	for _, p := range peers {
		p.Expect("from above\n")
	}
	longest := strings.Repeat("x", 60000)
	peers[0].ExchangeLine("cast "+longest, longest)
	peers[0].ExchangeLine("collect", "collected")
	sent += int64(len("cast " + longest + "\ncollect\n"))
	waitCounted(conns)
	waitFor(t, "the runtimes of the workers are not counted", func() bool {
		st := s.Stats()
		return st.Goroutines > workers && st.GCs > 0 && st.GCPause > 0
	})

	victim := peers[0].pid
	requireNoError(t, syscall.Kill(victim, syscall.SIGKILL))
	s.waitRestarted(t, 1)
	waitCounted(conns - int64(of[victim]+ofOthers[victim]))
	for _, addr := range []string{first, second} {
		more, _ := dialAllWorkers(t, addr, workers)
		conns, sent = conns+int64(len(more)), sent+int64(4*len(more))
	}
	waitFor(t, "not all input is counted", func() bool { return s.Stats().BytesIn == sent })
	s.stop()
	expectNoError(t, s.waitResult(t))
	waitCounted(0)
	expectEqual(t, "processes at the end", s.Stats().Processes, 0)
}

// TestProcessesShutdown checks that ShutdownTimeout limits a drain, and that only its own context limits Shutdown, also
// in the workers. It accepts nothing, ends idle connections and waits for a message that has begun.
func TestProcessesShutdown(t *testing.T) {
	const bound = 50 * time.Millisecond
	s := startWithProcesses(t, successorConfig{Limits: Limits{ShutdownTimeout: bound}})
	dialWithHalfMessage(t, s.addr)
	s.waitOpen(t, 1)
	s.stop()
	expectError(t, "the drain", s.waitResult(t), context.DeadlineExceeded, "1 connections were closed")

	s = startWithProcesses(t, successorConfig{Limits: Limits{ShutdownTimeout: bound}})
	idle, half := dialWorker(t, s.addr), dialWithHalfMessage(t, s.addr)
	shut := make(chan error, 1)
	go func() { shut <- s.Shutdown(context.Background()) }()
	idle.ExpectEOF("")
	waitFor(t, "connections are still taken", func() bool {
		c, err := net.Dial("tcp", s.addr)
		if err == nil {
			c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	requireNoError(t, half.SetReadDeadline(time.Now().Add(5*bound)))
	_, err := half.R.ReadByte()
	expectError(t, "five times the bound after the signal", err, os.ErrDeadlineExceeded)
	requireNoError(t, half.SetReadDeadline(time.Now().Add(testkit.Timeout)))
	half.ExchangeLine("", "half 3")
	expectNoError(t, <-shut)
	expectNoError(t, s.waitResult(t))
}

// TestSignalToWorker checks that SIGTERM drains a worker, which is restarted, and that SIGINT has no effect.
func TestSignalToWorker(t *testing.T) {
	s := startWithProcesses(t, successorConfig{})
	peers, of := dialAllWorkers(t, s.addr, 2)
	p := peers[0]
	requireNoError(t, syscall.Kill(p.pid, syscall.SIGINT))
	p.ExchangeLine("after SIGINT", "after SIGINT 2")
	requireNoError(t, syscall.Kill(p.pid, syscall.SIGTERM))
	_ = syscall.Kill(p.pid, syscall.SIGTERM) // it may have ended
	p.ExpectEOF("")
	waitFor(t, "the worker is not back", func() bool { return of[dialWorker(t, s.addr).pid] == 0 })
}

// TestProcessesLeaveNothing checks that neither workers nor servers leak descriptors.
func TestProcessesLeaveNothing(t *testing.T) {
	once := func(kills int) {
		s := startWithProcesses(t, successorConfig{})
		for n := range kills {
			for _, pid := range childPIDs(t) {
				requireNoError(t, syscall.Kill(pid, syscall.SIGKILL))
			}
			s.waitRestarted(t, 2*(n+1))
		}
		s.stop()
		expectNoError(t, s.waitResult(t))
		expectNoChildren(t)
	}
	once(0)
	before := countDescriptors(t)
	once(2)
	once(0)
	if after := countDescriptors(t); after > before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

package tcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startProcesses starts a Server whose workers are this test binary.
func startProcesses(t *testing.T, srv *Server) *started {
	t.Helper()
	srv.Addr, srv.Limits.Linger = "127.0.0.1:0", 50*time.Millisecond
	settings, err := json.Marshal(map[string]any{
		"Addr": srv.Addr, "Model": srv.Model, "Processes": srv.Processes, "Limits": srv.Limits, "Listeners": srv.Listeners,
	})
	must(t, err)
	t.Setenv(workerSettings, string(settings))
	t.Setenv("GORACE", "atexit_sleep_ms=0") // the race detector would hold up each exit by a second
	return start(t, srv)
}

// Worker processes serve at all listeners, and each knows by which a connection has come;
// so does one that was started again.
func TestProcessesWithListeners(t *testing.T) {
	const workers = 2
	s := startProcesses(t, &Server{Processes: workers, Listeners: []Listener{{Name: "second", Addr: "127.0.0.1:0"}}})
	all := s.ListenerStats()
	first, second := all[0].Addr.String(), all[1].Addr.String()
	byListener := func() {
		t.Helper()
		for addr, want := range map[string]string{first: "127.0.0.1:0", second: "second"} {
			_, of := meetAll(t, addr, workers, 1)
			if len(of) != workers {
				t.Errorf("%d processes serve at %s, want %d", len(of), addr, workers)
			}
			if got, err := meet(t, addr).ask("listener"); err != nil || got != want {
				t.Errorf("a connection to %s has come by %q, %v; want %q", addr, got, err, want)
			}
		}
	}
	byListener()
	must(t, syscall.Kill(meet(t, second).pid, syscall.SIGKILL))
	eventually(t, func() bool { return s.Stats().Restarts == 1 && s.Stats().Processes == workers }, func() string { return "the worker is not started again" })
	byListener()
	eventually(t, func() bool {
		l, sum := s.ListenerStats(), s.Stats()
		return l[0].Accepted > workers && l[1].Accepted > workers && l[0].Accepted+l[1].Accepted == sum.Accepted && l[0].Open+l[1].Open == sum.Open
	}, func() string { return fmt.Sprintf("the listeners have counted %+v", s.ListenerStats()) })
	s.stop()
	ok(t, s.result(t))
	gone(t)
}

// children are the processes that this one has started and not waited for.
func children(t *testing.T) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	must(t, err)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if fields[1] == strconv.Itoa(os.Getpid()) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// peer is a client's connection.
type peer struct {
	net.Conn
	in  *bufio.Reader
	pid int // of the worker that serves it
}

func (p *peer) ask(line string) (answer string, err error) {
	p.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(p, line+"\n"); err != nil {
		return "", err
	}
	answer, err = p.in.ReadString('\n')
	return strings.TrimSuffix(answer, "\n"), err
}

// meet connects and asks who serves.
func meet(t *testing.T, addr string) *peer {
	t.Helper()
	p := &peer{Conn: dial(t, addr)}
	p.in = bufio.NewReader(p.Conn)
	answer, err := p.ask("pid")
	if err == nil {
		p.pid, err = strconv.Atoi(answer)
	}
	if err != nil {
		t.Fatalf("asked for the pid: %q, %v", answer, err)
	}
	return p
}

// meetAll connects until each worker has so many connections.
func meetAll(t *testing.T, addr string, workers, each int) (peers []*peer, of map[int]int) {
	t.Helper()
	of = make(map[int]int)
	enough := func() bool {
		for _, n := range of {
			if n < each {
				return false
			}
		}
		return len(of) == workers
	}
	for !enough() {
		if len(peers) == 1000 {
			t.Fatalf("1,000 connections went to %v", of)
		}
		p := meet(t, addr)
		peers = append(peers, p)
		of[p.pid]++
	}
	return peers, of
}

// gone checks that nothing is left of a server that has ended.
func gone(t *testing.T) {
	t.Helper()
	if left := children(t); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

func TestProcessesSettings(t *testing.T) {
	for _, bad := range []struct {
		srv  *Server
		word string
	}{
		{&Server{Processes: -1}, "Server.Processes is -1"},
		{&Server{Processes: maxProcesses + 1}, "1024"},
		{&Server{Processes: 4, Limits: Limits{MaxConns: 3}}, "Limits.MaxConns is 3"},
		{&Server{Processes: 4, Limits: Limits{AcceptRate: 3}}, "Limits.AcceptRate is 3"},
	} {
		bad.srv.Addr, bad.srv.Handler = "127.0.0.1:0", Base{}
		err := bad.srv.ListenAndServe(context.Background())
		if !errors.Is(err, ErrBadConfig) || !strings.Contains(err.Error(), bad.word) {
			t.Errorf("%v; want an error that wraps ErrBadConfig and says %q", err, bad.word)
		}
	}
}

// A broadcast reaches the connections of all workers once, in one order, whoever
// makes it.
func TestBroadcastToProcesses(t *testing.T) {
	const workers = 3
	s := startProcesses(t, &Server{Processes: workers, Handler: Base{}})
	peers, _ := meetAll(t, s.addr, workers, 2)
	for i, p := range peers {
		if _, err := fmt.Fprintf(p, "cast %d\n", i); err != nil {
			t.Fatal(err)
		}
	}
	var first []string
	for i, p := range peers {
		var got []string
		p.SetDeadline(time.Now().Add(patience))
		for range peers {
			line, err := p.in.ReadString('\n')
			if err != nil {
				t.Fatalf("connection %d has %q: %v", i, got, err)
			}
			got = append(got, strings.TrimSuffix(line, "\n"))
		}
		if first == nil {
			first = got
		}
		if !slices.Equal(got, first) {
			t.Errorf("connection %d got %q, and the first one %q", i, got, first)
		}
	}
	if _, err := s.Broadcast(Broadcast{All: true, Message: []byte("from above\n")}); err != nil {
		t.Errorf("the supervisor's: %v", err)
	}
	for i, p := range peers {
		if line, err := p.in.ReadString('\n'); line != "from above\n" {
			t.Errorf("connection %d got %q, %v", i, line, err)
		}
	}
	if answer, err := peers[0].ask("cast " + strings.Repeat("x", 60000)); err != nil {
		t.Errorf("the longest message: %q, %v", answer, err)
	}
	for _, p := range peers {
		p.Close()
	}
	s.stop()
	ok(t, s.result(t))
	gone(t)
}

// The counters are those of all workers, the dead ones included.
func TestProcessesStats(t *testing.T) {
	const workers = 2
	s := startProcesses(t, &Server{Processes: workers, Limits: Limits{MaxConns: 1001}})
	first := s.Stats()
	if first.Processes != workers || first.MaxConns != 1001 || first.Model == "" || first.Loops != workers {
		t.Errorf("at the start %+v", first)
	}
	peers, of := meetAll(t, s.addr, workers, 1)
	lines := 0
	for i, p := range peers {
		for range i + 1 {
			if answer, err := p.ask("12345"); err != nil || answer != "12345" {
				t.Fatalf("%q, %v", answer, err)
			}
			lines++
		}
	}
	conns := int64(len(peers))
	counted := func() bool {
		st := s.Stats()
		return st.Open == conns && st.Accepted == conns && st.BytesIn == int64(4*len(peers)+6*lines) &&
			st.Reads >= int64(lines)
	}
	eventually(t, counted, func() string { return fmt.Sprintf("%d connections, %d lines: %+v", conns, lines, s.Stats()) })

	before := s.Stats()
	victim := peers[0].pid
	must(t, syscall.Kill(victim, syscall.SIGKILL))
	remain := func() bool {
		st := s.Stats()
		return st.Restarts == 1 && st.Processes == workers && st.Open == conns-int64(of[victim]) &&
			st.Accepted == conns && st.BytesIn == before.BytesIn
	}
	eventually(t, remain, func() string {
		return fmt.Sprintf("after a worker with %d connections was killed: %+v, before %+v", of[victim], s.Stats(), before)
	})
	s.stop()
	ok(t, s.result(t))
	if st := s.Stats(); st.Open != 0 || st.Processes != 0 || st.Accepted != conns || st.BytesIn != before.BytesIn {
		t.Errorf("at the end %+v, want the counts of %+v", st, before)
	}
}

// halfUnfinished is a connection of which the worker has half a message.
func halfUnfinished(t *testing.T, addr string) *peer {
	t.Helper()
	p := meet(t, addr)
	p.SetDeadline(time.Now().Add(patience))
	io.WriteString(p, "whole\nhalf")
	if answer, err := p.in.ReadString('\n'); err != nil || answer != "whole\n" {
		t.Fatalf("%q, %v", answer, err)
	}
	return p
}

func TestProcessesDrain(t *testing.T) {
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) {
			s := startProcesses(t, &Server{Model: model, Processes: 2})
			idle, half := meet(t, s.addr), halfUnfinished(t, s.addr)
			s.stop()
			if _, err := idle.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("an idle connection got %v, want its end", err)
			}
			eventually(t, func() bool {
				c, err := net.Dial("tcp", s.addr)
				if err == nil {
					c.Close()
				}
				return errors.Is(err, syscall.ECONNREFUSED)
			}, func() string { return "connections are still taken" })
			select {
			case err := <-s.err:
				t.Fatalf("it ended before the message: %v", err)
			default:
			}
			if answer, err := half.ask(" and half"); err != nil || answer != "half and half" {
				t.Errorf("the message that had begun: %q, %v", answer, err)
			}
			ok(t, s.result(t))
			gone(t)
		})
	}
}

func TestProcessesDrainTimeout(t *testing.T) {
	s := startProcesses(t, &Server{Processes: 2, Limits: Limits{ShutdownTimeout: 300 * time.Millisecond}})
	halfUnfinished(t, s.addr)
	eventually(t, func() bool { return s.Stats().Open == 1 }, func() string { return fmt.Sprint(s.Stats()) })
	s.stop()
	err := s.result(t)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 connections were closed") {
		t.Errorf("%v; want an error that wraps DeadlineExceeded and counts the connection", err)
	}
	gone(t)
}

// A Shutdown is bounded by its own context, also in the workers.
func TestProcessesShutdown(t *testing.T) {
	const bound = 50 * time.Millisecond
	s := startProcesses(t, &Server{Processes: 2, Limits: Limits{ShutdownTimeout: bound}})
	half := halfUnfinished(t, s.addr)
	shut := make(chan error, 1)
	go func() { shut <- s.Shutdown(context.Background()) }()
	half.SetReadDeadline(time.Now().Add(10 * bound))
	if _, err := half.in.ReadByte(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("ten times the bound after the signal the connection got %v, want silence", err)
	}
	if answer, err := half.ask(""); err != nil || answer != "half" {
		t.Errorf("%q, %v", answer, err)
	}
	ok(t, <-shut)
	if err := s.result(t); err != nil {
		t.Error(err)
	}
	gone(t)
}

// A SIGTERM to one worker drains it, and it comes back; SIGINT does nothing.
func TestSignalToWorker(t *testing.T) {
	s := startProcesses(t, &Server{Processes: 2})
	peers, of := meetAll(t, s.addr, 2, 1)
	p := peers[0]
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGTERM} {
		if err := syscall.Kill(p.pid, sig); err != nil {
			break // it has ended already
		}
		if sig == syscall.SIGINT {
			if answer, err := p.ask("after SIGINT"); err != nil || answer != "after SIGINT" {
				t.Fatalf("%q, %v", answer, err)
			}
		}
	}
	p.SetReadDeadline(time.Now().Add(patience))
	if _, err := p.in.ReadByte(); err != io.EOF {
		t.Errorf("the drained connection got %v, want its end", err)
	}
	eventually(t, func() bool { return of[meet(t, s.addr).pid] == 0 }, func() string { return "the worker is not back" })
}

// openDescriptors is how many this process has.
func openDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// Neither lives nor servers leave descriptors behind.
func TestProcessesLeaveNothing(t *testing.T) {
	once := func(kills int) {
		s := startProcesses(t, &Server{Processes: 2})
		for n := range kills {
			pids := children(t)
			for _, pid := range pids {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			eventually(t, func() bool { st := s.Stats(); return st.Restarts == int64(2*(n+1)) && st.Processes == 2 },
				func() string { return fmt.Sprintf("after %d kills: %+v", n+1, s.Stats()) })
		}
		s.stop()
		ok(t, s.result(t))
		gone(t)
	}
	once(0)
	before := openDescriptors(t)
	once(3)
	once(0)
	if after := openDescriptors(t); after > before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

// What Go's runtime says of the workers is in Stats, summed over them; what grows stays
// when one of them is killed.
func TestRuntimeOfProcesses(t *testing.T) {
	const workers = 2
	s := startProcesses(t, &Server{Processes: workers, Handler: Base{}})
	peers, of := meetAll(t, s.addr, workers, 1)
	eventually(t, func() bool {
		asked, sum := make(map[int]bool), int64(0)
		for _, p := range peers {
			if asked[p.pid] {
				continue
			}
			asked[p.pid] = true
			answer, err := p.ask("goroutines")
			n, wrong := strconv.ParseInt(answer, 10, 64)
			if err != nil || wrong != nil {
				t.Fatalf("asked for goroutines: %q, %v", answer, err)
			}
			sum += n
		}
		return sum == s.Stats().Goroutines
	}, func() string {
		return fmt.Sprintf("Stats has %d goroutines, the workers have others", s.Stats().Goroutines)
	})
	before := s.Stats().GCs
	for _, p := range peers {
		if answer, err := p.ask("collect"); err != nil {
			t.Fatalf("collect: %q, %v", answer, err)
		}
	}
	more := before + int64(len(peers))
	eventually(t, func() bool { return s.Stats().GCs >= more && s.Stats().GCPause > 0 }, func() string {
		return fmt.Sprintf("%d collections in %v after %d more than %d", s.Stats().GCs, s.Stats().GCPause, len(peers), before)
	})
	for pid := range of {
		syscall.Kill(pid, syscall.SIGKILL)
		break
	}
	eventually(t, func() bool { return s.Stats().Restarts == 1 && s.Stats().Processes == workers }, func() string {
		return fmt.Sprintf("the worker is not started again: %+v", s.Stats())
	})
	if n := s.Stats().GCs; n < more {
		t.Errorf("%d collections after a worker was killed, and there were %d", n, more)
	}
	s.Close()
	gone(t)
}

package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// totals are counters that continue from one process to the next.
type totals struct {
	Accepted, OfListener, HandedOver, TakenOver, Closed, Messages int64
}

func readTotals(srv *Server) totals {
	s := srv.Stats()
	return totals{
		Accepted: s.Accepted, OfListener: srv.ListenerStats()[0].Accepted, HandedOver: s.HandedOver, TakenOver: s.TakenOver,
		Closed:   s.Closed.Peer + s.Closed.Handler + s.Closed.Other + s.Closed.Reset + s.Closed.Shutdown,
		Messages: s.Messages,
	}
}

// TestUpgrade hands connections over twice, with half a message and the handler's state, together with the listeners.
func TestUpgrade(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to successorConfig
		half     int // bytes
	}{
		{"epoll", successorConfig{Model: Epoll, Loops: 2}, successorConfig{Model: Epoll, Loops: 2}, 7},
		{"uring to goroutine", successorConfig{Model: Uring, Loops: 2}, successorConfig{Model: Goroutine}, 7},
		{"goroutine to uring", successorConfig{Model: Goroutine}, successorConfig{Model: Uring, Loops: 3}, 7},
		{"3 loops to 2, with more than a message of the processes takes",
			successorConfig{Model: Epoll, Loops: 3}, successorConfig{Model: Uring, Loops: 2}, 60 << 10},
		{"shards", successorConfig{Model: Uring, Limits: Limits{MaxConns: shardConns}},
			successorConfig{Model: Epoll, Limits: Limits{MaxConns: shardConns}}, 7},
		{"unix socket", successorConfig{Network: "unix", Model: Epoll, Loops: 1}, successorConfig{Model: Epoll, Loops: 1}, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n = 20
			if c.from.Network == "unix" {
				c.from.Addr = filepath.Join(t.TempDir(), "s")
			}
			t.Setenv("TMPDIR", "/none")
			t.Setenv("HOME", "/none")
			s, h := startUpgradable(t, c.from, c.to)
			half := strings.Repeat("x", c.half)
			clients := dialManyWithPartialLine(t, s.addr, n, half)
			stays := dial(t, s.addr)
			stays.ExchangeLine("does stay", "does")
			sent := int64(n*(len("a\n")+c.half) + len("does stay\n"))
			waitFor(t, "not all input has come", func() bool { return s.Stats().BytesIn == sent })
			h.saving = func() { // the new process is ready
				for range n {
					early := dial(t, s.addr)
					expectEqual(t, "process that accepts before the upgrade", servingPID(t, early), os.Getpid())
					early.Close()
					<-h.closed
				}
			}
			u := s.upgradeMoving(t, n, map[string]int{"not saved": 1})
			_, err := s.Upgrade(t.Context())
			expectError(t, "Upgrade after an upgrade", err, ErrServerClosed)
			stays.ExpectClosed()
			expectNoError(t, s.waitResult(t))
			for handed := 0; handed < n; {
				if why := <-h.closed; errors.Is(why, ErrHandedOver) {
					handed++
				} else if !errors.Is(why, ErrServerClosed) {
					t.Fatalf("closed for %v, want ErrHandedOver", why)
				}
			}
			for _, client := range clients {
				client.ExchangeLine(" line", half+" line 2")
				if pid := servingPID(t, client); pid != u.PID {
					t.Fatalf("process %d serves, want %d", pid, u.PID)
				}
			}
			clients[0].Send("upgrade\n")
			waitProcessEnd(t, u.PID)
			for range n { // whichever socket of the listener they come to
				dial(t, s.addr).ExchangeLine("b", "b 1")
			}
			all := totals{Accepted: 3*n + 1, OfListener: 3*n + 1, HandedOver: 2 * n, TakenOver: 2 * n,
				Closed: n + 1, Messages: 5*n + 2}
			var got, want string
			eventually(t, func() bool {
				clients[0].Send("totals\n")
				got, want = clients[0].ReadLine(), fmt.Sprintf("%+v", all)
				all.Messages++ // for this question
				return got == want
			}, func() string { return fmt.Sprintf("counted\n%s, want\n%s", got, want) })
			stopServerAt(t, s.addr)
			if _, err := os.Lstat(s.addr); err == nil {
				t.Error("the socket's file is left behind")
			}
		})
	}
}

// TestUpgradeFails tests all kinds of failures, also with worker processes: the server continues as if
// nothing had happened, and no process is left.
func TestUpgradeFails(t *testing.T) {
	const n, soon = 20, 300 * time.Millisecond
	for _, c := range []struct {
		name, model, does, says string
		from, to                int // processes
		lost, paused            bool
		reply, timeout          time.Duration // upgradeReplyTimeout, and that of the context
		command                 func() (*exec.Cmd, error)
	}{
		{name: "crashes", model: Uring, does: "crash", says: "has ended: exit status 3"},
		{name: "ends at once", model: Epoll, does: "leave", says: "exited with status 0"},
		{name: "is stopped at its start", model: Goroutine, does: "stop itself", says: "did not send \"ready\" within 300ms", reply: soon},
		{name: "is stopped in the middle", model: Goroutine, does: "stop in Restore", says: "has ended", lost: true, reply: time.Second},
		{name: "can't be served with", model: Goroutine, does: "other settings", says: "cannot serve: myriad: Server.Loops is -1"},
		{name: "dies in the middle", model: Epoll, does: "die in Restore", says: "has ended", lost: true},
		{name: "dies while accepting is paused", model: Goroutine, does: "die in Restore", says: "has ended", lost: true, paused: true},
		{name: "no such file", model: Epoll, says: "no such file", command: func() (*exec.Cmd, error) { return exec.Command("/no/such/file"), nil }},
		{name: "no command", model: Uring, says: "not today", command: func() (*exec.Cmd, error) { return nil, errors.New("not today") }},
		{name: "another program", model: Epoll, says: "deadline exceeded", timeout: soon, command: func() (*exec.Cmd, error) { return exec.Command("sleep", "100"), nil }},
		{name: "workers crash", model: Epoll, does: "crash as a worker", says: "worker processes do not stay alive", from: 2, to: 2},
		{name: "workers hang", model: Epoll, does: "hang as a worker", says: "deadline exceeded", from: 1, to: 2, timeout: soon},
		{name: "workers can't be served with", model: Epoll, does: "other settings", says: "Server.Loops is -1", from: 2, to: 2},
	} {
		t.Run(c.name+"/"+c.model, func(t *testing.T) {
			from := successorConfig{Model: c.model, Processes: c.from}
			s, _ := startUpgradable(t, from, successorConfig{Model: Epoll, Processes: c.to, Does: c.does, After: n / 2})
			if c.command != nil {
				s.Successor = c.command
			}
			if c.reply > 0 {
				defer func(was time.Duration) { upgradeReplyTimeout = was }(upgradeReplyTimeout)
				upgradeReplyTimeout = c.reply
			}
			clients := dialManyWithPartialLine(t, s.addr, n, "")
			if c.paused {
				requireNoError(t, s.PauseAccepting())
				s.waitAcceptPaused(t, true)
			}
			descriptors, children := countDescriptors(t), childPIDs(t)
			ctx := t.Context()
			if c.timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.timeout)
				defer cancel()
			}
			u, err := s.Upgrade(ctx)
			if err == nil || !strings.Contains(err.Error(), c.says) || (u.Lost > 0) != c.lost {
				t.Fatalf("Upgrade: %+v, %v; want an error that says %q, connections lost: %v", u, err, c.says, c.lost)
			}
			if text := u.String(); u.Done || !strings.Contains(text, "has not taken over") && !strings.Contains(text, "none was started") {
				t.Errorf("a failed upgrade says %q", text)
			}
			expectEqual(t, "connections that are served or said to be lost", countServed(t, clients, "b 2")+u.Lost, n)
			if receivers, err := s.Broadcast(Broadcast{Group: "0", All: c.from > 0}); receivers != 0 || err != nil {
				t.Errorf("a broadcast after a failed upgrade: %d receivers, %v; want none", receivers, err)
			}
			if c.paused {
				s.waitAcceptPaused(t, true)
				requireNoError(t, s.ResumeAccepting())
			}
			another := dial(t, s.addr)
			another.ExchangeLine("c", "c 1")
			if c.from > 1 {
				another.ExchangeLine("upgrade", "myriad: this server cannot be upgraded; expected a process on Linux that is not a worker process: "+errors.ErrUnsupported.Error())
			}
			another.Close()
			if left := childPIDs(t); !slices.Equal(left, children) {
				t.Errorf("the processes were %v and are %v", children, left)
			}
			waitFor(t, "descriptors are left", func() bool { return countDescriptors(t) <= descriptors })
		})
	}
}

func TestUpgradeRefused(t *testing.T) {
	s, _ := startUpgradable(t, successorConfig{}, successorConfig{Does: "hang"})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := s.Upgrade(ctx)
		first <- err
	}()
	waitFor(t, "no process is started", func() bool { return len(childPIDs(t)) == 1 })
	_, err := s.Upgrade(t.Context())
	expectError(t, "during another one", err, ErrUpgrading)
	cancel()
	expectReason(t, "the end of Upgrade", first, context.Canceled)
}

// TestUpgradeTicks checks that the old process ticks until it saves its state, and again only if the upgrade fails.
// Then the new one ticks.
func TestUpgradeTicks(t *testing.T) {
	for _, does := range []string{"", "die in Restore"} {
		s, h := startUpgradable(t, successorConfig{Model: Epoll, Ticks: true}, successorConfig{Model: Goroutine, Ticks: true, Does: does, After: 1})
		old := fmt.Sprint(os.Getpid())
		c := dial(t, s.addr)
		c.Send("a\n") // gets a Value, which is restored
		testkit.WaitFor(t, "the line is not answered", func() bool { return c.ReadLine() == "a 1" })
		if got := c.ReadLine(); got != old {
			t.Fatalf("process %s ticks, want %s", got, old)
		}
		h.saving = func() {
			if len(s.ticking) != 1 {
				t.Error("the state is saved while OnTick may run")
			}
		}
		u, err := s.Upgrade(t.Context())
		if (err == nil) != (does == "") {
			t.Fatalf("Upgrade: %v, %v", u, err)
		}
		if want := fmt.Sprint(u.PID); does == "" {
			testkit.WaitFor(t, "the new process does not tick", func() bool { return c.ReadLine() == want })
			for range 20 {
				if got := c.ReadLine(); got != want {
					t.Fatalf("process %s ticks after %s", got, want)
				}
			}
			stopServerAt(t, s.addr)
			expectNoError(t, s.waitResult(t))
		} else if got := dial(t, s.addr).ReadLine(); got != old {
			t.Errorf("process %s ticks after a failed upgrade, want %s", got, old)
		}
	}
}

// TestUpgradeOwnHandlers hands over connections with their own handlers and half a line; one as soon as it can be
// saved. Those that are not saved stay, and one that gets no handler is closed. Accepting stays paused.
func TestUpgradeOwnHandlers(t *testing.T) {
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) {
			s, h := startUpgradable(t, successorConfig{Model: model}, successorConfig{Model: model})
			clients := map[string]*testkit.Conn{}
			sent := 0
			for _, does := range []string{"move", "stay", "go later", "forget", "panic", "be plain"} {
				c := dial(t, s.addr)
				c.ExchangeLine("a", "a 1")
				sent += len("a\nhalf ")
				if does != "be plain" {
					c.ExchangeLine("own", "is")
					c.ExchangeLine("does "+does, "own does")
					sent += len("own\ndoes \n") + len(does)
				}
				c.Send("half ")
				clients[does] = c
			}
			waitFor(t, "not all input has come", func() bool { return s.Stats().BytesIn == int64(sent) })
			requireNoError(t, s.PauseAccepting())
			s.waitAcceptPaused(t, true)
			upgraded := make(chan Upgraded, 1)
			go func() {
				u, err := s.Upgrade(context.Background())
				expectNoError(t, err)
				upgraded <- u
			}()
			panicked := 0
			for range 4 { // all but those that stay or go later
				why := testkit.Receive(t, h.closed, "the end of a connection here")
				if _, ok := errors.AsType[*PanicError](why); ok {
					panicked++
				} else if !errors.Is(why, ErrHandedOver) {
					t.Errorf("closed for %v, want ErrHandedOver", why)
				}
			}
			expectEqual(t, "closed for a panic", panicked, 1)
			clients["go later"].ExchangeLine("a line", "own half a line 4")
			clients["go later"].ExchangeLine("does move", "own does")
			if u := testkit.Receive(t, upgraded, "the end of the upgrade"); u.Moved != 4 || u.Lost != 0 {
				t.Errorf("%+v; want 4 moved", u)
			}
			clients["move"].ExchangeLine("a line", "own half a line 4")
			clients["go later"].ExchangeLine("x", "own x 6")
			clients["be plain"].ExchangeLine("a line", "half a line 2")
			late := dial(t, s.addr)
			clients["be plain"].ExchangeLine("paused", "true")
			clients["be plain"].ExchangeLine("resume", "<nil>")
			late.ExchangeLine("b", "b 1")
			clients["stay"].ExchangeLine("a line", "own half a line 4") // then it is drained
			expectClosedWithoutOutput(t, clients["forget"], clients["panic"], clients["stay"])
			expectNoError(t, s.waitResult(t))
			stopServerAt(t, s.addr)
		})
	}
}

// TestUpgradeStayReasons upgrades servers with connections that can't move.
func TestUpgradeStayReasons(t *testing.T) {
	var log logRecorder
	logAtMove := make(chan string, 1)
	saver := hooks{message: func(c *Conn, line []byte) {
		if string(line) == "keep" {
			c.SetValue("something")
		}
		echoLine(c, line)
	}, closed: func(why error) {
		if errors.Is(why, ErrHandedOver) {
			logAtMove <- log.String()
		}
	}}
	next := newSuccessorFunc(t, successorConfig{})
	s := startServer(t, &Server{Log: log.newLogger(), Handler: Lines(saver), Successor: next})
	for _, says := range []string{"keep", "keep", "keep", "go"} {
		dial(t, s.addr).ExchangeLine(says, says)
	}
	u := s.upgradeMoving(t, 1, map[string]int{"value without Migrator": 3})
	if want := "3 stay until they are drained (value without Migrator: 3)"; !u.Done || !strings.Contains(u.String(), want) {
		t.Errorf("it says %q; want %q", u, want)
	}
	const warning = `level=WARN msg="connections with a Value will not move`
	if before := <-logAtMove; !strings.Contains(before, warning) {
		t.Errorf("the log has no %q before the hand-over:\n%s", warning, before)
	}
	log.waitForLine(t, warning, "connections=3", "handler=tcp.hooks", "Save and Restore")
	log.waitForLine(t, "\"stay_reasons.value without Migrator\"=3")
	expectNoError(t, s.waitResult(t))
	stopServerAt(t, s.addr)

	var netLog logRecorder
	s, _, accept := startNetListener(t, &Server{Log: netLog.newLogger(), Successor: next})
	_, n := accept()
	defer n.Close()
	s.upgradeMoving(t, 0, map[string]int{"NetConn": 1})
	netLog.waitForLine(t, "level=WARN msg=\"connections of a NetListener")
	if text := netLog.String(); strings.Contains(text, "Save and Restore") {
		t.Errorf("the log has\n%s", text)
	}
	stopServerAt(t, s.addr)
}

// TestUpgradeTLS checks that compact TLS connections move, that others are closed properly, and that clients resume
// their sessions in the new process and the one after that.
func TestUpgradeTLS(t *testing.T) {
	const n = 4
	for version, model := range map[uint16]string{tls.VersionTLS12: Epoll, tls.VersionTLS13: Uring} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			_, client := identity()
			client = client.Clone()
			client.MaxVersion, client.ClientSessionCache = version, tls.NewLRUClientSessionCache(0)
			cfg := successorConfig{Model: model, TLS: true}
			s, _ := startUpgradable(t, cfg, cfg)
			clients := make([]*testkit.Conn, n)
			for i := range clients {
				clients[i], _ = dialResuming(t, s.addr, client, i > 0)
			}
			isCompact := version == tls.VersionTLS13
			moved, stayed := 0, map[string]int{"TLS": n}
			if isCompact {
				moved, stayed = n, nil
			}
			u := s.upgradeMoving(t, moved, stayed)
			for _, c := range clients {
				if isCompact {
					expectEqual(t, "process that serves a connection that has moved", servingPID(t, c), u.PID)
					c.Conn.(*tls.Conn).CloseWrite()
				}
				c.ExpectEOF("") // a close-notify
				c.Close()
			}
			expectNoError(t, s.waitResult(t))
			next, pid := dialResuming(t, s.addr, client, true)
			expectEqual(t, "process that serves", pid, u.PID)
			next.Send("upgrade\n")
			if isCompact {
				testkit.WaitFor(t, "the connection moves again", func() bool { return servingPID(t, next) != u.PID })
			} else {
				next.ExpectEOF("")
			}
			waitProcessEnd(t, u.PID)
			last, pid := dialResuming(t, s.addr, client, true)
			last.Send("stop\n")
			waitProcessEnd(t, pid)
		})
	}
}

// TestUpgradeDescriptors checks that connections stay if the new process runs out of descriptors,
// and that none is lost.
func TestUpgradeDescriptors(t *testing.T) {
	const n, limit = 200, 220
	for _, c := range []struct{ from, to successorConfig }{
		{successorConfig{Model: Epoll}, successorConfig{Model: Epoll, Loops: 2}},
		{successorConfig{Model: Goroutine}, successorConfig{Model: Uring, Loops: 1, Files: 100}},
		{successorConfig{Model: Uring}, successorConfig{Model: Goroutine, Files: 100}},
	} {
		t.Run(fmt.Sprintf("%s to %s", c.from.Model, c.to.Model), func(t *testing.T) {
			c.to.Descriptors = limit
			s, _ := startUpgradable(t, c.from, c.to)
			clients := dialManyWithPartialLine(t, s.addr, n, "half")
			waitFor(t, "not all input has come", func() bool { return s.Stats().BytesIn == n*6 })
			u, err := s.Upgrade(t.Context())
			if most := limit - c.to.Files; err != nil || u.Lost != 0 || u.Moved == 0 || u.Moved > most {
				t.Errorf("Upgrade: %+v, %v; want some moved, %d at most, and none lost", u, err, most)
			}
			for _, client := range clients {
				client.ExchangeLine(" line", "half line 2")
			}
			expectNoError(t, s.waitResult(t)) // the others have been drained
			expectEqual(t, "served by the new process", countServed(t, clients, "b 3"), u.Moved)
			for _, client := range clients { // one that is served is enough; the new process may refuse another one
				_, _ = io.WriteString(client, "stop\n")
			}
			waitProcessEnd(t, u.PID)
		})
	}
}

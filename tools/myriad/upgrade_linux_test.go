package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/load"
)

// startUpgradable starts a server with an --admin address that a new process can take over.
func startUpgradable(t *testing.T, args ...string) *server {
	t.Helper()
	return startUpgradableCmd(t, newCommandProcess(t, append(args, "--addr", "127.0.0.1:0", "--admin", uniqueLoopbackAddr(9090))...))
}

// startUpgradableCmd starts a command whose successors end with the test, because they belong to
// its group.
func startUpgradableCmd(t *testing.T, cmd *exec.Cmd) *server {
	t.Helper()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	s := startProcess(t, cmd)
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }) // there may be none
	return s
}

// uniqueLoopbackAddr returns a loopback address that no other test process uses.
func uniqueLoopbackAddr(port int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d:%d", pid>>16&255, pid>>8&255, pid&255, port)
}

var tookOver = regexp.MustCompile(`process (\d+) has taken over with (\d+) connections in \S+; 0 are lost`)

// signalUpgrade sends SIGUSR2 to a process and returns the process that has taken over, in the nth
// upgrade, with a number of connections.
func (s *server) signalUpgrade(t *testing.T, from *os.Process, nth, connections int) (next *os.Process) {
	t.Helper()
	failOnError(t, from.Signal(syscall.SIGUSR2))
	return s.waitForUpgrade(t, nth, connections)
}

// waitForUpgrade waits for the nth upgrade and returns the new process.
func (s *server) waitForUpgrade(t *testing.T, nth, connections int) (next *os.Process) {
	t.Helper()
	var all [][]string
	testkit.WaitForFunc(t, func() bool {
		all = tookOver.FindAllStringSubmatch(s.stderr.String(), -1)
		return len(all) == nth
	}, func() string { return "no word of the upgrade: " + s.stderr.String() })
	if moved := all[nth-1][2]; moved != strconv.Itoa(connections) {
		t.Errorf("upgrade %d: %s connections were taken over, want %d", nth, moved, connections)
	}
	pid, err := strconv.Atoi(all[nth-1][1])
	failOnError(t, err)
	next, err = os.FindProcess(pid)
	failOnError(t, err)
	return next
}

// stopSuccessor stops the new process and waits for the old one.
func (s *server) stopSuccessor(t *testing.T, next *os.Process) {
	t.Helper()
	failOnError(t, next.Signal(syscall.SIGTERM))
	if code := s.stop(); code != 0 {
		t.Errorf("the old process has ended with %d; stderr: %s", code, s.stderr)
	}
}

// The page's order has a new process take over, at the page's address too, and is answered by the
// old one; after an upgrade that has failed the page is there again.
func TestUpgradeOrdered(t *testing.T) {
	file := writeTokenFile(t)
	s := startUpgradable(t, "serve", "--app", "lines", "--admin-control", "--admin-token-file", file)
	c := dialWithHalfMessage(t, s.addr)
	failOnError(t, os.Rename(file, file+".away")) // the new process misses it
	status, text := s.tryPostControl(t, "upgrade", secret)
	if status != http.StatusConflict || !strings.HasSuffix(text, "the new process has ended: exit status 2; this process continues\n") {
		t.Errorf("an upgrade that fails: %d, %q", status, text)
	}
	failOnError(t, os.Rename(file+".away", file))
	status, text = s.tryPostControl(t, "upgrade", secret)
	if found := tookOver.FindStringSubmatch(text); status != http.StatusOK || found == nil || found[2] != "1" {
		t.Fatalf("%d, %q; want that a process has taken over with 1 connection", status, text)
	}
	next := s.waitForUpgrade(t, 1, 1)
	sendAndExpect(t, c, " and half\n", "half and half\n")
	s.waitForPage(t, "/metrics", "\nmyriad_connections_taken_over_total 1\n")
	c.Close()
	s.stopSuccessor(t, next)
}

// At SIGUSR2 a new process goes on with half a message, has the address of --admin, and is the
// one that the service manager knows: the end of the old one is not the end of the service.
func TestUpgradeServe(t *testing.T) {
	socket, manager := listenForNotify(t)
	cmd := newCommandProcess(t, "serve", "--app", "lines", "--addr", "127.0.0.1:0", "--admin", uniqueLoopbackAddr(9090))
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+socket)
	s := startUpgradableCmd(t, cmd)
	c := dialWithHalfMessage(t, s.addr)
	next := s.signalUpgrade(t, s.Process, 1, 1)
	sendAndExpect(t, c, " and half\n", "half and half\n")
	sendAndExpect(t, dial(t, s.addr), "another\n", "another\n")
	s.waitForPage(t, "/metrics", "\nmyriad_connections_taken_over_total 1\n")
	c.Close()
	s.stopSuccessor(t, next)
	var heard []string
	for said := readNotification(manager, soon); said != ""; said = readNotification(manager, soon) {
		said, _, _ = strings.Cut(said, "\nMONOTONIC_USEC=")
		heard = append(heard, said)
	}
	// The new process says that it is ready when it serves, which may be after the hand-over.
	want := []string{fmt.Sprintf("MAINPID=%d\nREADY=1", next.Pid), "READY=1", "READY=1", "RELOADING=1", "STOPPING=1"}
	if len(heard) == 0 || heard[len(heard)-1] != "STOPPING=1" {
		t.Errorf("the manager has heard %q, want STOPPING=1 in the end", heard)
	}
	if slices.Sort(heard); !slices.Equal(heard, want) {
		t.Errorf("the manager has heard %q, want %q in some order", heard, want)
	}
}

// A hub that can't be upgraded goes on, with its page; then its subscribers, its counters and its last values move.
func TestUpgradeHub(t *testing.T) {
	const rules = "user alice on >a +@all &*\n"
	users := writeUsersFile(t, rules)
	s := startUpgradable(t, "hub", "--users", users, "--last-values", "10")
	alice := dial(t, s.addr)
	exchangeRESP(t, alice, "AUTH alice a\r\nSUBSCRIBE x\r\n", "+OK|*3|$9|subscribe|$1|x|:1")
	publish := func() {
		t.Helper()
		publisher := dial(t, s.addr)
		exchangeRESP(t, publisher, "AUTH alice a\r\nPUBLISH x 1\r\nQUIT\r\n", "+OK|:1|+OK")
		if _, err := publisher.Read(make([]byte, 1)); err == nil { // from then on it stays
			t.Error("the publisher's connection has not ended")
		}
		exchangeRESP(t, alice, "", "*3|$7|message|$1|x|$1|1")
	}
	overwriteFile(t, users, "user alice on >a +frob")
	failOnError(t, s.Process.Signal(syscall.SIGUSR2))
	testkit.WaitFor(t, "word of the failure", func() bool {
		return strings.Contains(s.stderr.String(), "the new process has ended: exit status 2; this process continues")
	})
	publish()
	s.waitForPage(t, "/hub", `"Published": 1,`)
	overwriteFile(t, users, rules)
	next := s.signalUpgrade(t, s.Process, 1, 1)
	publish()
	exchangeRESP(t, dial(t, s.addr), "AUTH alice a\r\nSUBSCRIBE x\r\n", "+OK|*3|$9|subscribe|$1|x|:1|*3|$7|message|$1|x|$1|1")
	s.waitForPage(t, "/hub", `"Published": 2,`)
	s.stopSuccessor(t, next)
}

// A load of WebSockets that publish and subscribe all the time misses no message in an upgrade, gets
// none twice, and keeps its connections.
func TestUpgradeHubLoad(t *testing.T) {
	t.Parallel()
	cmd := newCommandProcess(t, "hub", "--addr", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	s := startUpgradableCmd(t, cmd)
	load := testkit.Start(t, newCommandProcess(t, "load", "--pubsub", "ws", "-c", "20", "--topics", "4", "--publishers", "2",
		"--size", "64", "--rate", "100", "--duration", "2s", s.addr))
	s.waitForPage(t, "/metrics", "\nmyriad_hub_published_total [1-9]")
	next := s.signalUpgrade(t, s.Process, 1, 22)
	if code := load.ExitCode(); code != 0 || !strings.Contains(load.Output.String(), "each compared, in order") {
		t.Errorf("the load: exit code %d\n%s", code, load.Output)
	}
	s.stopSuccessor(t, next)
}

// TestUpgradeHubCluster has a new process take over the clients of a node, of all protocols, while
// messages of its own and of another node come thick and fast: each subscriber gets each message once and in
// order, here and there.
func TestUpgradeHubCluster(t *testing.T) {
	url := "nats://" + startNATS(t)
	far := serveLine(t, "hub --node far --admin 127.0.0.1:0 --nats "+url)
	near := startUpgradable(t, "hub", "--node", "near", "--nats", url)
	const idle = 500 // clients, whose move takes its time
	for range idle {
		exchangeRESP(t, dial(t, near.addr), "SUBSCRIBE u\r\n", "*3|$9|subscribe|$1|u|:1")
	}
	all := append(startSubscribers(t, "near", near.addr), startSubscribers(t, "far", far.addr)...)
	var publishers []*publisher
	for i, addr := range []string{far.addr, far.addr, far.addr, near.addr, near.addr} {
		publishers = append(publishers, startPublisher(t, addr, fmt.Sprint("p", i), 500*time.Microsecond, 10))
	}
	everywhere := func(what string) {
		t.Helper()
		for _, p := range publishers {
			waitForDelivery(t, what, p, all...)
		}
	}
	everywhere("before")
	next := near.signalUpgrade(t, near.Process, 1, idle+3+2)
	everywhere("with a new process")
	near.waitForPage(t, "/hub", `"All": false,`)
	everywhere("with its own topics")
	stopPublishersAndDrain(t, publishers, all)
	near.waitForPage(t, "/hub", `(?s)"Name": "far",.*"Here": true`)
	for name, of := range map[string]*server{"near": near, "far": far} {
		if s := fetchClusterStats(t, of); s.Lost != 0 || s.Unsent != 0 {
			t.Errorf("%s: %d lost, %d unsent; expected none", name, s.Lost, s.Unsent)
		}
	}
	for _, y := range all {
		if n := y.checkOrder(t); n > 0 {
			t.Errorf("%s misses %d messages", y.name, n)
		}
	}
	near.stopSuccessor(t, next)
}

// A hub with a server of NATS inside refuses an upgrade, says what to do, and goes on.
func TestUpgradeHubPeers(t *testing.T) {
	t.Setenv(clusterSecretVariable, "s3cret")
	s := startUpgradable(t, "hub", "--cluster", "127.0.0.1:0", "--admin-control", "--admin-token-file", writeTokenFile(t))
	const why = "a hub with --cluster can't be upgraded, because its embedded nats-server can't hand its listener to a new process; " +
		"this process continues: restart one node after the other with SIGTERM, or run nats-server beside the hubs and use --nats, which keeps clients connected"
	if status, text := s.tryPostControl(t, "upgrade", secret); status != http.StatusConflict || !strings.Contains(text, why) {
		t.Errorf("an order: %d, %q; expected %q", status, text, why)
	}
	failOnError(t, s.Process.Signal(syscall.SIGUSR2))
	testkit.WaitFor(t, "word of the signal", func() bool { return strings.Contains(s.stderr.String(), syscall.SIGUSR2.String()+": "+why) })
	exchangeRESP(t, dial(t, s.addr), "PUBLISH a 1\r\n", ":0")
	s.stopSuccessor(t, s.Process)
}

// SIGTERM ends an upgrade whose new process hangs, and that process.
func TestUpgradeGivenUp(t *testing.T) {
	users := writeUsersFile(t, "user alice on >a +@all &*\n")
	s := startUpgradable(t, "hub", "--users", users)
	failOnError(t, os.Remove(users))
	failOnError(t, syscall.Mkfifo(users, 0o600)) // which nobody writes to
	failOnError(t, s.Process.Signal(syscall.SIGUSR2))
	testkit.WaitFor(t, "the new process", func() bool { // it reads then, and nothing comes
		pipe, err := os.OpenFile(users, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			t.Cleanup(func() { pipe.Close() })
		}
		return err == nil
	})
	code := s.signalAndWait(t, syscall.SIGTERM)
	if said := s.stderr.String(); code != 0 || !strings.Contains(said, "\nmyriad: upgrade: ") || strings.Contains(said, "did not send") {
		t.Errorf("exit code %d, stderr %q; want 0 and an upgrade that did not wait", code, said)
	}
}

// Only one upgrade is made at a time.
func TestUpgradeOnce(t *testing.T) {
	f, out := &serverFlags{}, &lockedBuffer{}
	f.upgrading.Store(true)
	cmd := &cobra.Command{}
	cmd.SetErr(out)
	if _, err := f.replaceProcess(context.Background(), cmd, "a test"); err == nil {
		t.Error("a second upgrade has no error")
	}
	if !strings.Contains(out.String(), "an upgrade is under way or has succeeded") {
		t.Errorf("it says %q", out.String())
	}
}

// The first of several processes has its workers' connections moved, and all of the old ones end.
func TestUpgradeProcesses(t *testing.T) {
	s := startUpgradable(t, "serve", "--app", "lines", "--processes", "2", "--model", "epoll")
	var conns []net.Conn
	for range 20 {
		conns = append(conns, dialWithHalfMessage(t, s.addr))
	}
	failOnError(t, syscall.Kill(-s.Process.Pid, syscall.SIGUSR2)) // to the workers, too
	next := s.waitForUpgrade(t, 1, len(conns))
	for _, c := range conns {
		sendAndExpect(t, c, " and half\n", "half and half\n")
	}
	sendAndExpect(t, dial(t, s.addr), "another\n", "another\n")
	s.waitForPage(t, "/metrics", "\nmyriad_connections_taken_over_total 20\n")
	s.stopSuccessor(t, next)
}

// A socket that the service manager has passed to the first process is found by its name in the
// next, and in the one after that.
func TestUpgradeActivated(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			addr := "127.0.0.1:0"
			if network == "unix" {
				addr = filepath.Join(t.TempDir(), "s")
			}
			l, err := net.Listen(network, addr)
			failOnError(t, err)
			defer l.Close()
			file, err := l.(interface{ File() (*os.File, error) }).File()
			failOnError(t, err)
			cmd := wrapInShell(newCommandProcess(t, "serve", "--app", "lines", "--addr", "systemd:web"), "export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web")
			cmd.ExtraFiles = []*os.File{file}
			s := startUpgradableCmd(t, cmd)
			file.Close()
			c := testkit.Dial(t, l.Addr().String())
			sendAndExpect(t, c, "a\nhalf", "a\n")
			next := s.Process
			for n := range 2 {
				next = s.signalUpgrade(t, next, n+1, n+1)
				sendAndExpect(t, c, " a line\nhalf", "half a line\n")
				sendAndExpect(t, testkit.Dial(t, l.Addr().String()), "another\n", "another\n")
			}
			c.Close()
			s.stopSuccessor(t, next)
			if network == "unix" {
				if _, err := os.Lstat(addr); err != nil {
					t.Errorf("the manager's socket is gone: %v", err)
				}
			}
		})
	}
}

// A server stays as process 1, or where it is told to, while others serve: through upgrades it
// passes signals on, and it ends as the last one does.
func TestUpgradeStays(t *testing.T) {
	for _, c := range []struct {
		name string
		kill bool
		code int
	}{{"process 1", false, 0}, {"told to", false, 0}, {"killed", true, 1}} {
		t.Run(c.name, func(t *testing.T) {
			cmd := newCommandProcess(t, "serve", "--app", "lines", "--addr", "127.0.0.1:0", "--admin", uniqueLoopbackAddr(9090))
			switch {
			case c.name != "process 1":
				cmd.Args = append(cmd.Args, "--stay")
			case os.Getuid() != 0:
				t.Skip("a namespace of processes is root's")
			default:
				cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
			}
			s := startUpgradableCmd(t, cmd)
			conn := dialWithHalfMessage(t, s.addr)
			var next *os.Process
			for n := range 3 {
				next = s.signalUpgrade(t, s.Process, n+1, 1)
				sendAndExpect(t, conn, " a line\nhalf", "half a line\n")
			}
			conn.Close()
			if c.kill {
				failOnError(t, next.Kill())
			} else {
				failOnError(t, s.Process.Signal(syscall.SIGTERM))
			}
			if code := s.stop(); code != c.code || c.kill && !strings.Contains(s.stderr.String(), "has ended: signal: killed") {
				t.Errorf("it has ended with %d, want %d; stderr: %s", code, c.code, s.stderr)
			}
		})
	}
}

// Another program takes over where there is one now, and the first one takes over from that: a rollback.
func TestUpgradeRollback(t *testing.T) {
	dir := t.TempDir()
	current := filepath.Join(dir, "current")
	release := func(name string) (path string) {
		t.Helper()
		path = filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			failOnError(t, exec.Command("cp", os.Args[0], path).Run())
		}
		failOnError(t, os.Symlink(path, current+".new"))
		failOnError(t, os.Rename(current+".new", current))
		return path
	}
	release("release-1")
	s := startUpgradableCmd(t, exec.Command(current, "serve", "--app", "lines", "--addr", "127.0.0.1:0"))
	c := dialWithHalfMessage(t, s.addr)
	next := s.Process
	for i, name := range []string{"release-2", "release-1"} {
		path := release(name)
		next = s.signalUpgrade(t, next, i+1, 1)
		if runs, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", next.Pid)); err != nil || runs != path {
			t.Errorf("%s runs, %v; want %s", runs, err, path)
		}
		sendAndExpect(t, c, " and half\nhalf", "half and half\n")
	}
	c.Close()
	s.stopSuccessor(t, next)
}

// Upgrades in a row: each connection has messages in flight, a part of the next one is held by the server, and the
// load compares every byte. The same by hand is docs/upgrade.md's.
func TestUpgradeAgainAndAgain(t *testing.T) {
	t.Parallel()
	const upgrades, connections, ahead = 4, 300, 40
	for name, args := range map[string][]string{
		"goroutine":      {"--model", "goroutine"},
		"epoll, shards":  {"--model", "epoll", "--max-conns", "50000"},
		"uring, workers": {"--model", "uring", "--workers", "4"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasSuffix(name, "shards") {
				testkit.ReserveDescriptors(t, 10_000) // a limit of 1,024 can't be divided among shards
			}
			cmd := newCommandProcess(t, append([]string{"serve", "--app", "lines", "--addr", "127.0.0.1:0"}, args...)...)
			s := startUpgradableCmd(t, cmd)
			ctx, stop := context.WithCancelCause(t.Context())
			enough := errors.New("enough")
			var answered atomic.Int64
			ended := make(chan error, 1)
			go func() {
				r, err := load.Run(ctx, load.Config{
					Target: s.addr, Connections: connections, ConnectTimeout: patience, Duration: 10 * patience, Drain: patience, Ahead: ahead,
					ProgressEvery: 20 * time.Millisecond, Observe: func(e load.Event) { answered.Store(e.Snapshot.Answered) },
				})
				if !errors.Is(err, enough) || r.Err() != nil || r.Unanswered != 0 || r.Connected != connections {
					ended <- fmt.Errorf("%w, %w; %d connected, %d unanswered, lost %v", err, r.Err(), r.Connected, r.Unanswered, r.Lost)
				}
				close(ended)
			}()
			next := s.Process
			for i := range upgrades {
				before := answered.Load()
				testkit.WaitFor(t, "answers", func() bool { return answered.Load() >= before+2*connections })
				next = s.signalUpgrade(t, next, i+1, connections)
			}
			stop(enough)
			if err := testkit.Receive(t, ended, "the end of the load"); err != nil {
				t.Error(err)
			}
			s.stopSuccessor(t, next)
		})
	}
}

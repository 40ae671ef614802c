package main

import (
	"crypto/tls"
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
	"sync"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
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
// upgrade, with a number of connections, or any if that is negative.
func (s *server) signalUpgrade(t *testing.T, from *os.Process, nth, connections int) (next *os.Process) {
	t.Helper()
	testkit.RequireNoError(t, from.Signal(syscall.SIGUSR2))
	return s.waitForUpgrade(t, nth, connections)
}

func (s *server) waitForUpgrade(t *testing.T, nth, connections int) (next *os.Process) {
	t.Helper()
	var all [][]string
	testkit.WaitForFunc(t, func() bool {
		all = tookOver.FindAllStringSubmatch(s.stderr.String(), -1)
		return len(all) == nth
	}, func() string { return "no word of the upgrade: " + s.stderr.String() })
	if moved := all[nth-1][2]; connections >= 0 && moved != strconv.Itoa(connections) {
		t.Errorf("upgrade %d: %s connections were taken over, want %d", nth, moved, connections)
	}
	pid, err := strconv.Atoi(all[nth-1][1])
	testkit.RequireNoError(t, err)
	next, err = os.FindProcess(pid)
	testkit.RequireNoError(t, err)
	return next
}

// stopSuccessor stops the new process and waits for the old one.
func (s *server) stopSuccessor(t *testing.T, next *os.Process) {
	t.Helper()
	testkit.RequireNoError(t, next.Signal(syscall.SIGTERM))
	s.checkStop(t)
}

// A new process goes on with half a message, has the address of --admin, and is the one that the service manager knows:
// the end of the old one is not the end of the service. The first takes over by the page's order, which the old process
// answers, after one that has failed; the second at SIGUSR2.
func TestUpgradeServe(t *testing.T) {
	socket, manager := listenForNotify(t)
	file := writeTokenFile(t)
	cmd := newCommandProcess(t, "serve", "--app", "lines", "--addr", "127.0.0.1:0", "--admin", uniqueLoopbackAddr(9090),
		"--admin-control", "--admin-token-file", file)
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+socket)
	s := startUpgradableCmd(t, cmd)
	c := dialWithHalfMessage(t, s.addr)
	testkit.RequireNoError(t, os.Rename(file, file+".away")) // the new process misses it
	status, text := s.tryPostControl(t, "upgrade", secret)
	if want := "the new process has ended: exit status 2; this process continues to serve\n"; status != http.StatusConflict || !strings.HasSuffix(text, want) {
		t.Errorf("an upgrade that fails: %d, %q", status, text)
	}
	testkit.RequireNoError(t, os.Rename(file+".away", file))
	readNotifications(manager)
	status, text = s.tryPostControl(t, "upgrade", secret)
	if found := tookOver.FindStringSubmatch(text); status != http.StatusOK || found == nil || found[2] != "1" {
		t.Fatalf("%d, %q; want that a process has taken over with 1 connection", status, text)
	}
	next := s.waitForUpgrade(t, 1, 1)
	sendAndExpect(c, " and half\nhalf", "half and half\n")
	next = s.signalUpgrade(t, next, 2, 1)
	c.ExchangeLine(" and half", "half and half")
	testkit.Dial(t, s.addr).ExchangeLine("another", "another")
	s.waitForPage(t, "/metrics", "\nmyriad_connections_taken_over_total 2\n")
	c.Close()
	s.stopSuccessor(t, next)
	heard := readNotifications(manager)
	main := fmt.Sprintf("MAINPID=%d\nREADY=1", next.Pid)
	if !slices.Contains(heard, main) || !slices.Contains(heard, "RELOADING=1") {
		t.Errorf("the manager has heard %q, want RELOADING=1 and %q among them", heard, main)
	}
	if slices.Index(heard, "STOPPING=1") != len(heard)-1 {
		t.Errorf("the manager has heard %q, want STOPPING=1 in the end, once", heard)
	}
}

// startNumberedPublisher publishes 1, 2 and so on, each after the answer to the one before, until the connection ends
// or stop is called.
func startNumberedPublisher(c *testkit.Conn) (stop func() (published int)) {
	var publishing sync.WaitGroup
	stopping, published := make(chan struct{}), 0
	publishing.Go(func() {
		for {
			select {
			case <-stopping:
				return
			default:
			}
			fmt.Fprint(c, testkit.RESPCommand("PUBLISH", "t", fmt.Sprint(published+1)))
			if line, _ := c.R.ReadString('\n'); !strings.HasPrefix(line, ":") {
				return
			}
			published++
		}
	})
	return func() int {
		close(stopping)
		publishing.Wait()
		return published
	}
}

// expectNumbered expects messages of a numbered publisher.
func expectNumbered(subscriber *testkit.Conn, from, to int) {
	for n := from; n <= to; n++ {
		exchangeRESP(subscriber, "", fmt.Sprintf("*3|$7|message|$1|t|$%d|%d", len(fmt.Sprint(n)), n))
	}
}

// TestUpgradeHubReplay has the clients of a hub that keeps messages move while one that cannot move publishes in the
// old process: each message comes once and in order.
func TestUpgradeHubReplay(t *testing.T) {
	cert, key := testkit.WriteCertificate(t)
	s := startUpgradable(t, "hub", "--replay", "t", "--tls-addr", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key)
	stays := testkit.DialTLS(t, s.waitForSecondAddr(t), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
	subscriber := testkit.Dial(t, s.addr)
	exchangeRESP(subscriber, "SUBSCRIBE t\r\n", "*3|$9|subscribe|$1|t|:1")
	stop := startNumberedPublisher(stays)
	expectNumbered(subscriber, 1, 100)
	next := s.signalUpgrade(t, s.Process.Process, 1, -1)
	published := stop()
	expectNumbered(subscriber, 101, published)
	exchangeRESP(testkit.Dial(t, s.addr), "PUBLISH t after\r\n", ":1")
	exchangeRESP(subscriber, "", "*3|$7|message|$1|t|$5|after")
	s.stopSuccessor(t, next)
}

// TestUpgradeHubCluster has a new process take over the clients of a node while another node publishes all the time:
// each message comes once and in order. An upgrade that fails leaves the old process serving. The protocol of a
// take-over is tested in package cluster, and what moves in package hub.
func TestUpgradeHubCluster(t *testing.T) {
	const rules = "user default on nopass +@all &*\n"
	url, users := "nats://"+startNATS(t), writeUsersFile(t, rules)
	far := serveLine(t, "hub --node far --admin 127.0.0.1:0 --nats "+url)
	near := startUpgradable(t, "hub", "--node", "near", "--users", users, "--last-values", "10", "--nats", url)
	subscriber, publisher := testkit.Dial(t, near.addr), testkit.Dial(t, far.addr)
	exchangeRESP(subscriber, "SUBSCRIBE t\r\n", "*3|$9|subscribe|$1|t|:1")
	far.waitForPage(t, "/hub", `(?s)"Name": "near",.*"Subscriptions": 1`)
	stop := startNumberedPublisher(publisher)
	receive := func(from, to int) {
		t.Helper()
		expectNumbered(subscriber, from, to)
	}
	receive(1, 100)
	overwriteFile(t, users, "user default on nopass +frob")
	near.Signal(syscall.SIGUSR2)
	near.waitForError(t, "the new process has ended: exit status 2; this process continues to serve")
	receive(101, 200)
	overwriteFile(t, users, rules)
	next := near.signalUpgrade(t, near.Process.Process, 1, 1)
	receive(201, 300)
	published := stop()
	receive(301, published)
	for name, of := range map[string]*server{"near": near, "far": far} {
		if s := fetchClusterStats(t, of); s.Lost != 0 || s.Unsent != 0 {
			t.Errorf("%s: %d lost, %d unsent; expected none", name, s.Lost, s.Unsent)
		}
	}
	late := testkit.Dial(t, near.addr) // gets the last value, which has moved
	late.Send("SUBSCRIBE t\r\n")
	number := fmt.Sprint(published)
	exchangeRESP(late, "", fmt.Sprintf("*3|$9|subscribe|$1|t|:1|*3|$7|message|$1|t|$%d|%s", len(number), number))
	near.stopSuccessor(t, next)
}

// A hub with a server of NATS inside refuses an upgrade, says what to do, and goes on.
func TestUpgradeHubPeers(t *testing.T) {
	t.Setenv(clusterSecretVariable, "s3cret")
	s := startUpgradable(t, "hub", "--cluster", "127.0.0.1:0", "--admin-control", "--admin-token-file", writeTokenFile(t))
	const why = "a hub with --cluster cannot be upgraded, because its embedded NATS server cannot pass its listener to a new process; " +
		"this process continues to serve: restart one node after the other with SIGTERM, or run a separate nats-server and use --nats"
	if status, text := s.tryPostControl(t, "upgrade", secret); status != http.StatusConflict || !strings.Contains(text, why) {
		t.Errorf("an order: %d, %q; expected %q", status, text, why)
	}
	s.Signal(syscall.SIGUSR2)
	s.waitForError(t, syscall.SIGUSR2.String()+": "+why)
	exchangeRESP(testkit.Dial(t, s.addr), "PUBLISH a 1\r\n", ":0")
	s.stopSuccessor(t, s.Process.Process)
}

// SIGUSR2 to the whole group has the connections of all workers moved, and all of the old processes end.
func TestUpgradeProcesses(t *testing.T) {
	s := startUpgradable(t, "serve", "--app", "lines", "--processes", "2", "--model", "epoll")
	var conns []*testkit.Conn
	for range 20 {
		conns = append(conns, dialWithHalfMessage(t, s.addr))
	}
	s.signalGroup(t, syscall.SIGUSR2)
	next := s.waitForUpgrade(t, 1, len(conns))
	for _, c := range conns {
		c.ExchangeLine(" and half", "half and half")
	}
	s.stopSuccessor(t, next)
}

// A socket that the service manager has passed to the first process is found by its name in the
// next, and in the one after that.
func TestUpgradeActivated(t *testing.T) {
	for network, addr := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "s")} {
		l, err := net.Listen(network, addr)
		testkit.RequireNoError(t, err)
		defer l.Close()
		file, err := l.(interface{ File() (*os.File, error) }).File()
		testkit.RequireNoError(t, err)
		cmd := wrapInShell(newCommandProcess(t, "serve", "--app", "lines", "--addr", "systemd:web"),
			"export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web")
		cmd.ExtraFiles = []*os.File{file}
		s := startUpgradableCmd(t, cmd)
		file.Close()
		c := dialWithHalfMessage(t, l.Addr().String())
		next := s.Process.Process
		for n := range 2 {
			next = s.signalUpgrade(t, next, n+1, n+1)
			sendAndExpect(c, " a line\nhalf", "half a line\n")
			testkit.Dial(t, l.Addr().String()).ExchangeLine("another", "another")
		}
		c.Close()
		s.stopSuccessor(t, next)
		if _, err := os.Lstat(addr); network == "unix" && err != nil {
			t.Errorf("the manager's socket is gone: %v", err)
		}
	}
}

// A server stays as process 1, or where it is told to, while others serve: through upgrades it
// passes signals on, and it ends as the last one does.
func TestUpgradeStays(t *testing.T) {
	for _, c := range []struct {
		name string
		code int
	}{{"process 1", 0}, {"told to", 0}, {"killed", 1}} {
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
				next = s.signalUpgrade(t, s.Process.Process, n+1, 1)
				sendAndExpect(conn, " a line\nhalf", "half a line\n")
			}
			conn.Close()
			if c.name == "killed" {
				testkit.RequireNoError(t, next.Kill())
			} else {
				s.Signal(syscall.SIGTERM)
			}
			if code := s.stop(); code != c.code || code == 1 && !strings.Contains(s.stderr.String(), "has ended: signal: killed") {
				t.Errorf("it has ended with %d, want %d; stderr: %s", code, c.code, s.stderr)
			}
		})
	}
}

// Another program takes over where there is one now, and the first one takes over from that: a rollback.
func TestUpgradeRollback(t *testing.T) {
	dir := t.TempDir()
	current := filepath.Join(dir, "current")
	release := func(path string) {
		t.Helper()
		testkit.RequireNoError(t, os.Symlink(path, current+".new"))
		testkit.RequireNoError(t, os.Rename(current+".new", current))
	}
	other := filepath.Join(dir, "release-2")
	testkit.RequireNoError(t, exec.Command("cp", os.Args[0], other).Run())
	release(os.Args[0])
	s := startUpgradableCmd(t, exec.Command(current, "serve", "--app", "lines", "--addr", "127.0.0.1:0"))
	c := dialWithHalfMessage(t, s.addr)
	next := s.Process.Process
	for i, path := range []string{other, os.Args[0]} {
		release(path)
		next = s.signalUpgrade(t, next, i+1, 1)
		if runs, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", next.Pid)); err != nil || runs != path {
			t.Errorf("%s runs, %v; want %s", runs, err, path)
		}
		sendAndExpect(c, " and half\nhalf", "half and half\n")
	}
	c.Close()
	s.stopSuccessor(t, next)
}

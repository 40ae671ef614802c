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
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/internal/testkit"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The page's order has a new process take over, at the page's address too, and is answered by the
// old one; after an upgrade that has failed the page is there again.
func TestUpgradeOrdered(t *testing.T) {
	file := tokenFile(t)
	s := upgradable(t, "", "serve", "--app", "lines", "--admin-control", "--admin-token-file", file)
	c := halfMessage(t, s.addr)
	if status, text := s.tryOrder(t, "upgrade", "wrong"); status != http.StatusUnauthorized {
		t.Errorf("with a wrong token: %d, %q", status, text)
	}
	must(t, os.Rename(file, file+".away")) // the new process misses it
	if status, text := s.tryOrder(t, "upgrade", secret); status != http.StatusConflict || !strings.HasSuffix(text, "the new process has ended: exit status 2; this process goes on\n") {
		t.Errorf("an upgrade that fails: %d, %q", status, text)
	}
	must(t, os.Rename(file+".away", file))
	status, text := s.tryOrder(t, "upgrade", secret)
	found := tookOver.FindStringSubmatch("myriad: " + text)
	if status != http.StatusOK || found == nil || found[2] != "1" {
		t.Fatalf("%d, %q; want that a process has taken over with 1 connection", status, text)
	}
	pid, err := strconv.Atoi(found[1])
	must(t, err)
	next, err := os.FindProcess(pid)
	must(t, err)
	exchange(t, c, " and half\n", "half and half\n")
	if status, text := get(t, s.admin+"/metrics"); status != http.StatusOK || !strings.Contains(text, "\nmyriad_connections_taken_over_total 1\n") {
		t.Errorf("/metrics of the new process: %d, %.300s", status, text)
	}
	c.Close()
	s.endNext(t, next)
}

// upgradable is a server whose successors end with the test, too: they are of its group.
func upgradable(t *testing.T, env string, args ...string) *server {
	t.Helper()
	return upgradableAs(t, process(t, append(args, "--addr", "127.0.0.1:0", "--admin", ownAddress(9090))...), env)
}

// upgradableAs is upgradable with a command.
func upgradableAs(t *testing.T, cmd *exec.Cmd, env string) *server {
	t.Helper()
	cmd.Env = append(cmd.Env, env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s := startProcess(t, cmd)
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }) // there may be none
	return s
}

// ownAddress is an address of loopback that no other test process has.
func ownAddress(port int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d:%d", pid>>16&255, pid>>8&255, pid&255, port)
}

var tookOver = regexp.MustCompile(`myriad: process (\d+) has taken over with (\d+) connections in \S+; 0 are lost`)

// upgrade has the server upgraded, waits until the old process has ended, and gives the new one.
func (s *server) upgrade(t *testing.T, connections int) *os.Process {
	t.Helper()
	must(t, s.Process.Signal(syscall.SIGUSR2))
	var found []string
	testkit.WaitFor(t, "word of the upgrade", func() bool {
		found = tookOver.FindStringSubmatch(s.stderr.String())
		return found != nil
	})
	if found[2] != strconv.Itoa(connections) {
		t.Errorf("%s connections were taken over, want %d", found[2], connections)
	}
	pid, err := strconv.Atoi(found[1])
	must(t, err)
	testkit.WaitFor(t, "the end of the old process", func() bool {
		return errors.Is(s.Process.Signal(syscall.Signal(0)), os.ErrProcessDone)
	})
	next, err := os.FindProcess(pid)
	must(t, err)
	return next
}

// endNext ends the new process, and waits: whoever has the old one's output has ended then.
func (s *server) endNext(t *testing.T, next *os.Process) {
	t.Helper()
	must(t, next.Signal(syscall.SIGTERM))
	if code := s.stop(); code != 0 {
		t.Errorf("the old process has ended with %d; stderr: %s", code, s.stderr)
	}
}

// At SIGUSR2 a new process goes on with half a message, has the address of --admin, and is the
// one that the service manager knows: the end of the old one is not the end of the service.
func TestUpgradeServe(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	must(t, err)
	defer manager.Close()
	s := upgradable(t, "NOTIFY_SOCKET="+socket, "serve", "--app", "lines")
	c := halfMessage(t, s.addr)
	next := s.upgrade(t, 1)
	exchange(t, c, " and half\n", "half and half\n")
	exchange(t, dial(t, s.addr), "another\n", "another\n")
	if status, text := get(t, s.admin+"/metrics"); status != http.StatusOK || !strings.Contains(text, "\nmyriad_connections_taken_over_total 1\n") {
		t.Errorf("/metrics of the new process: %d, %.300s", status, text)
	}
	c.Close()
	s.endNext(t, next)
	var heard []string
	for b := make([]byte, 100); ; {
		must(t, manager.SetReadDeadline(time.Now().Add(10*time.Millisecond))) // all is there by now
		n, err := manager.Read(b)
		if err != nil {
			break
		}
		said, _, _ := strings.Cut(string(b[:n]), "\nMONOTONIC_USEC=")
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

// A hub that can't be upgraded goes on, with its page; then its subscribers move.
func TestUpgradeHub(t *testing.T) {
	const rules = "user alice on >a +@all &*\n"
	users := usersFile(t, rules)
	s := upgradable(t, "", "hub", "--users", users)
	alice := dial(t, s.addr)
	talk(t, alice, "AUTH alice a\r\nSUBSCRIBE x\r\n", "+OK|*3|$9|subscribe|$1|x|:1")
	publish := func() {
		t.Helper()
		publisher := dial(t, s.addr)
		talk(t, publisher, "AUTH alice a\r\nPUBLISH x 1\r\nQUIT\r\n", "+OK|:1|+OK")
		if _, err := publisher.Read(make([]byte, 1)); err == nil { // from then on it stays
			t.Error("the publisher's connection has not ended")
		}
		talk(t, alice, "", "*3|$7|message|$1|x|$1|1")
	}
	rewrite(t, users, "user alice on >a +frob")
	must(t, s.Process.Signal(syscall.SIGUSR2))
	testkit.WaitFor(t, "word of the failure", func() bool {
		return strings.Contains(s.stderr.String(), "the new process has ended: exit status 2; this process goes on")
	})
	publish()
	if status, _ := get(t, s.admin+"/hub"); status != http.StatusOK {
		t.Errorf("the page after an upgrade that has failed: %d", status)
	}
	rewrite(t, users, rules)
	next := s.upgrade(t, 1)
	publish()
	if status, text := get(t, s.admin+"/hub"); status != http.StatusOK || !strings.Contains(text, `"Published": 2,`) {
		t.Errorf("/hub of the new process: %d, %s", status, text)
	}
	s.endNext(t, next)
}

// SIGTERM ends an upgrade whose new process hangs, and that process.
func TestUpgradeGivenUp(t *testing.T) {
	users := usersFile(t, "user alice on >a +@all &*\n")
	s := upgradable(t, "", "hub", "--users", users)
	must(t, os.Remove(users))
	must(t, syscall.Mkfifo(users, 0o600)) // which nobody writes to
	must(t, s.Process.Signal(syscall.SIGUSR2))
	testkit.WaitFor(t, "the new process", func() bool { // it reads then, and nothing comes
		pipe, err := os.OpenFile(users, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			t.Cleanup(func() { pipe.Close() })
		}
		return err == nil
	})
	code := s.end(t, syscall.SIGTERM)
	if said := s.stderr.String(); code != 0 || !strings.Contains(said, "\nmyriad: upgrade: ") || strings.Contains(said, "does not say within") {
		t.Errorf("exit code %d, stderr %q; want 0 and an upgrade that did not wait", code, said)
	}
}

// Only one upgrade is made at a time.
func TestUpgradeOnce(t *testing.T) {
	f, out := &serverFlags{}, &lockedBuffer{}
	f.upgrading.Store(true)
	cmd := &cobra.Command{}
	cmd.SetErr(out)
	if _, err := f.upgrade(context.Background(), cmd, "a test"); err == nil {
		t.Error("a second upgrade has no error")
	}
	if !strings.Contains(out.String(), "an upgrade is under way, or has been made") {
		t.Errorf("it says %q", out.String())
	}
}

// The first of several processes has its workers' connections moved, and all of the old ones end.
func TestUpgradeProcesses(t *testing.T) {
	s := upgradable(t, "", "serve", "--app", "lines", "--processes", "2", "--model", "epoll")
	var conns []net.Conn
	for range 20 {
		conns = append(conns, halfMessage(t, s.addr))
	}
	must(t, syscall.Kill(-s.Process.Pid, syscall.SIGUSR2)) // to the workers, too
	next := s.awaitUpgrade(t, 1)
	for _, c := range conns {
		exchange(t, c, " and half\n", "half and half\n")
	}
	exchange(t, dial(t, s.addr), "another\n", "another\n")
	testkit.WaitFor(t, "that the new processes' metrics have them", func() bool { // workers publish every 100 ms
		_, text := get(t, s.admin+"/metrics")
		return strings.Contains(text, "\nmyriad_connections_taken_over_total 20\n")
	})
	s.endNext(t, next)
}

// awaitUpgrade waits for the word of the nth upgrade, and gives the new process.
func (s *server) awaitUpgrade(t *testing.T, n int) *os.Process {
	t.Helper()
	var found [][]string
	testkit.WaitFor(t, "word of the upgrade", func() bool {
		found = tookOver.FindAllStringSubmatch(s.stderr.String(), -1)
		return len(found) >= n
	})
	pid, err := strconv.Atoi(found[n-1][1])
	must(t, err)
	next, err := os.FindProcess(pid)
	must(t, err)
	return next
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
			must(t, err)
			file, err := l.(interface{ File() (*os.File, error) }).File()
			must(t, err)
			cmd := process(t, "serve", "--app", "lines", "--addr", "systemd:web", "--admin", ownAddress(9090))
			cmd.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
			cmd.Path, err = exec.LookPath("sh")
			must(t, err)
			cmd.ExtraFiles = []*os.File{file}
			s := upgradableAs(t, cmd, "")
			file.Close()
			connect := func() net.Conn {
				t.Helper()
				c, err := net.Dial(network, l.Addr().String())
				must(t, err)
				t.Cleanup(func() { c.Close() })
				return c
			}
			c := connect()
			exchange(t, c, "a\nhalf", "a\n")
			next := s.Process
			for n := range 2 {
				must(t, next.Signal(syscall.SIGUSR2))
				next = s.awaitUpgrade(t, n+1)
				exchange(t, c, " a line\nhalf", "half a line\n")
				exchange(t, connect(), "another\n", "another\n")
			}
			c.Close()
			s.endNext(t, next)
			if network == "unix" {
				if _, err := os.Lstat(addr); err != nil {
					t.Errorf("the manager's socket is gone: %v", err)
				}
			}
			l.Close()
		})
	}
}

// A server stays as process 1, or where it is told to, while others serve: through two upgrades it
// passes signals on, and it ends as the last one does.
func TestUpgradeStays(t *testing.T) {
	for _, c := range []struct {
		name string
		init bool
		kill bool
		code int
	}{{"process 1", true, false, 0}, {"told to", false, false, 0}, {"killed", false, true, 1}} {
		t.Run(c.name, func(t *testing.T) {
			args := []string{"serve", "--app", "lines", "--addr", "127.0.0.1:0", "--admin", ownAddress(9090)}
			if !c.init {
				args = append(args, "--stay")
			}
			cmd := process(t, args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if c.init {
				cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
				if os.Getuid() != 0 {
					t.Skip("a namespace of processes is root's")
				}
			}
			s := startProcess(t, cmd)
			t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
			conn := halfMessage(t, s.addr)
			exchange(t, conn, " a\nhalf", "half a\n")
			var next *os.Process
			for n := range 3 {
				must(t, s.Process.Signal(syscall.SIGUSR2))
				next = s.awaitUpgrade(t, n+1)
				exchange(t, conn, " a line\nhalf", "half a line\n")
			}
			conn.Close()
			if c.kill {
				must(t, next.Kill())
			} else {
				must(t, s.Process.Signal(syscall.SIGTERM))
			}
			if code := s.stop(); code != c.code || c.kill && !strings.Contains(s.stderr.String(), "has ended: signal: killed") {
				t.Errorf("it has ended with %d, want %d; stderr: %s", code, c.code, s.stderr)
			}
		})
	}
}

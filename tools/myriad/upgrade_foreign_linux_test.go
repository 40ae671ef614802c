package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// These tests have programs that we did not write stay connected through upgrades.

// upgradeNext has a process upgraded, and gives the one that has taken over, in the nth upgrade of
// all, and how many connections that has.
func (s *server) upgradeNext(t *testing.T, from *os.Process, nth int) (next *os.Process, connections int) {
	t.Helper()
	must(t, from.Signal(syscall.SIGUSR2))
	var all [][]string
	testkit.WaitFor(t, "word of the upgrade", func() bool {
		all = tookOver.FindAllStringSubmatch(s.stderr.String(), -1)
		return len(all) == nth
	})
	pid, err := strconv.Atoi(all[nth-1][1])
	must(t, err)
	connections, err = strconv.Atoi(all[nth-1][2])
	must(t, err)
	next, err = os.FindProcess(pid)
	must(t, err)
	return next, connections
}

// redis-cli keeps its subscription through upgrades, and gets each message once.
func TestUpgradeRedisCLI(t *testing.T) {
	if _, err := exec.LookPath("redis-cli"); err != nil {
		t.Skip("there is no redis-cli: install Debian's package redis-tools")
	}
	const upgrades = 3
	for _, model := range []string{"epoll", "uring", "goroutine"} {
		t.Run(model, func(t *testing.T) {
			s := upgradable(t, "", "hub", "--model", model)
			host, port, err := net.SplitHostPort(s.addr)
			must(t, err)
			cli := exec.Command("redis-cli", "-h", host, "-p", port, "subscribe", "x")
			out, err := cli.StdoutPipe()
			must(t, err)
			must(t, cli.Start())
			lines := make(chan string, 1000)
			go func() {
				defer close(lines)
				for in := bufio.NewScanner(out); in.Scan(); {
					lines <- in.Text()
				}
			}()
			defer func() {
				_ = cli.Process.Kill()
				for range lines {
				}
				_ = cli.Wait()
			}()
			want := func(all ...string) {
				t.Helper()
				for _, w := range all {
					if got := testkit.Receive(t, lines, w); got != w {
						t.Fatalf("redis-cli says %q, want %q", got, w)
					}
				}
			}
			want("subscribe", "x", "1")
			publish := func(text string) {
				t.Helper()
				c := dial(t, s.addr)
				talk(t, c, "PUBLISH x "+text+"\r\n", ":1")
				c.Close()
				want("message", "x", text)
			}
			publish("before")
			process := s.Process
			for i := range upgrades {
				next, _ := s.upgradeNext(t, process, i+1)
				process = next
				publish(fmt.Sprint("after-", i))
			}
			s.endNext(t, process)
		})
	}
}

// wrk sees no error while the server is upgraded again and again.
func TestUpgradeWrk(t *testing.T) {
	slow(t)
	t.Parallel()
	if _, err := exec.LookPath("wrk"); err != nil {
		t.Skip("there is no wrk: install Debian's package wrk")
	}
	const upgrades, connections = 5, 50
	for _, model := range []string{"epoll", "uring", "goroutine"} {
		t.Run(model, func(t *testing.T) {
			s := upgradable(t, "", "serve", "--app", "http", "--model", model)
			wrk := exec.Command("wrk", "-t1", "-c", strconv.Itoa(connections), "-d1h", "http://"+s.addr+"/")
			var out lockedBuffer
			wrk.Stdout, wrk.Stderr = &out, &out
			must(t, wrk.Start())
			defer wrk.Process.Kill()
			testkit.WaitFor(t, "all are connected", func() bool {
				_, text := get(t, s.admin+"/metrics")
				return metric(text, "myriad_connections") == connections
			})
			process, moved := s.Process, 0
			for i := range upgrades {
				time.Sleep(300 * time.Millisecond) // under load for a while
				next, n := s.upgradeNext(t, process, i+1)
				process, moved = next, moved+n
			}
			must(t, wrk.Process.Signal(os.Interrupt)) // it ends, and says what it has seen
			must(t, wrk.Wait())
			if said := out.String(); strings.Contains(said, "error") || strings.Contains(said, "Non-2xx") || !strings.Contains(said, "requests in") {
				t.Errorf("wrk says: %s", said)
			}
			if moved != upgrades*connections {
				t.Errorf("%d connections were handed over in all, want %d each time", moved, connections)
			}
			s.endNext(t, process)
		})
	}
}

// Another build takes over, and the first one takes over from that: a rollback.
func TestUpgradeRollback(t *testing.T) {
	slow(t)
	dir := t.TempDir()
	builds := []string{filepath.Join(dir, "release-1"), filepath.Join(dir, "release-2")}
	for _, path := range builds {
		build := exec.Command("go", "build", "-ldflags", "-s -w -X github.com/myriad-go/myriad/tools/internal/version.commit="+filepath.Base(path), "-o", path, ".")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	}
	current := filepath.Join(dir, "current")
	release := func(path string) {
		t.Helper()
		must(t, os.Symlink(path, current+".new"))
		must(t, os.Rename(current+".new", current))
	}
	release(builds[0])
	cmd := exec.Command(current, "serve", "--app", "lines", "--addr", "127.0.0.1:0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s := startProcess(t, cmd)
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }) // there may be none
	c := halfMessage(t, s.addr)
	process := s.Process
	for i, path := range []string{builds[1], builds[0]} {
		release(path)
		next, n := s.upgradeNext(t, process, i+1)
		if n != 1 {
			t.Errorf("%d connections were taken over, want 1", n)
		}
		process = next
		if runs, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", process.Pid)); err != nil || runs != path {
			t.Errorf("%s runs, %v; want %s", runs, err, path)
		}
		exchange(t, c, " and half\nhalf", "half and half\n")
	}
	c.Close()
	s.endNext(t, process)
}

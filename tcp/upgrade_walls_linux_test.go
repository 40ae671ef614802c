package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// startFirst starts a process that serves at a unix socket, to be upgraded by a line "upgrade".
func startFirst(t *testing.T, first *exec.Cmd, path string) {
	t.Helper()
	err := first.Start()
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("needs more rights: %v", err)
	}
	must(t, err)
	over := make(chan error, 1)
	go func() { over <- first.Wait() }()
	t.Cleanup(func() {
		_ = first.Process.Kill()
		<-over
	})
	testkit.WaitFor(t, "the server does not listen", func() bool {
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// TestUpgradeDiskFull upgrades where nothing can be written: records that are too long for a
// message go by the kernel's memory.
func TestUpgradeDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a file system that is full")
	}
	const n = 20
	for _, model := range []string{"epoll", "uring", "goroutine"} {
		t.Run(model, func(t *testing.T) {
			dir := t.TempDir()
			path, full := filepath.Join(dir, "s"), filepath.Join(dir, "full")
			must(t, os.Mkdir(full, 0o700))
			cmd, err := succeeded(t, successorConfig{Addr: path, Network: "unix", Model: model})()
			must(t, err)
			fill := `mount -t tmpfs -o size=4k none "$1" && cd "$1" && cat /dev/zero 2>&- >zeros; ! echo x 2>&- >another && exec "$0"`
			first := exec.Command("/bin/sh", "-c", fill, cmd.Path, full)
			first.Env, first.Stderr = append(cmd.Env, "TMPDIR="+full, "HOME="+full), os.Stderr
			first.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
			startFirst(t, first, path)
			half := strings.Repeat("x", 60<<10) // which is more than a message takes, of two connections
			var clients []*lineClient
			for range n {
				client := newLineClient(t, "unix", path)
				client.want(t, "a", "a 1")
				_, err := io.WriteString(client, half)
				must(t, err)
				clients = append(clients, client)
			}
			asks := newLineClient(t, "unix", path)
			old := asks.pid(t)
			if at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", old)); err != nil || at != full {
				t.Fatalf("the server is in %s, %v; want %s", at, err, full)
			}
			_, err = io.WriteString(asks, "upgrade\n")
			must(t, err)
			awaitGone(t, old)
			for _, client := range clients {
				client.want(t, "y", half+"y 2")
			}
			ends(t, "unix", path)
		})
	}
}

// TestUpgradeDescriptors has descriptors run out in the new process: whoever finds no room stays,
// and is served to the end of its message, and nobody is lost.
func TestUpgradeDescriptors(t *testing.T) {
	const n, limit = 300, 320
	for _, c := range []struct {
		from, to    string
		loops, most int // of the new process
		files       int
	}{
		{"epoll", "epoll", 2, 0, 0}, {"goroutine", "uring", 1, 0, 0}, {"uring", "goroutine", 0, 0, 0},
		{"uring", "epoll", 1, 0, 200}, {"epoll", "uring", 2, 0, 200}, {"epoll", "goroutine", 0, 0, 200},
	} {
		t.Run(fmt.Sprintf("%s to %s, %d files", c.from, c.to, c.files), func(t *testing.T) {
			srv := &Server{Addr: "127.0.0.1:0", Model: c.from}
			srv.Successor = succeeded(t, successorConfig{Addr: srv.Addr, Model: c.to, Loops: c.loops, Descriptors: limit, Files: c.files})
			srv.Handler = Lines(&counted{srv: srv})
			s := start(t, srv)
			var clients []*lineClient
			for range n {
				client := newLineClient(t, "tcp", s.addr)
				client.want(t, "a", "a 1")
				_, err := io.WriteString(client, "half ")
				must(t, err)
				clients = append(clients, client)
			}
			eventually(t, func() bool { return s.Stats().BytesIn == n*7 }, func() string { return "not all input has come" })
			u, err := s.Upgrade(context.Background())
			if most := limit - c.files; err != nil || u.Lost != 0 || u.Moved == 0 || u.Moved > most {
				t.Errorf("Upgrade: %+v, %v; want some moved, %d at most, and none lost", u, err, most)
			}
			t.Logf("%d have moved", u.Moved)
			for _, client := range clients {
				client.want(t, "line", "half line 2")
			}
			ok(t, s.result(t)) // the others have been drained
			served := 0
			for _, client := range clients {
				if answer, err := client.ask("b"); err == nil && answer == "b 3" {
					served++
				}
				client.Close()
			}
			if served != u.Moved {
				t.Errorf("%d are served by the new process, %d have moved", served, u.Moved)
			}
			ends(t, "tcp", s.addr)
		})
	}
}

package sock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestListenUnixAbstract(t *testing.T) {
	name := fmt.Sprintf("@myriad-test-%d", os.Getpid())
	first := mustListen(t, name)
	if !connects(t, name) {
		t.Error("nobody listens")
	}
	if l, err := ListenUnix(name); l != nil || !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "another socket has this name") {
		t.Errorf("got %v, %v", l, err)
	}
	first.Close()
	mustListen(t, name)
	if _, err := os.Lstat(name); err == nil {
		t.Error("there is a file of that name")
	}
}

// TestListenUnixDatagrams has a socket of another type, which can't be connected
// to and is in use all the same.
func TestListenUnixDatagrams(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if l, err := ListenUnix(path); l != nil || !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "can't be found out") {
		t.Errorf("got %v, %v", l, err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the socket was removed: %v", err)
	}
}

// TestListenUnixFull has a listener whose queue is full: it listens, and does not
// take a connection.
func TestListenUnixFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		c, err := net.Dial("unix", path)
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil || i > 10 {
			t.Fatalf("after %d connections: %v; want EAGAIN", i, err)
		}
		defer c.Close()
	}
	if l, err := ListenUnix(path); l != nil || !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got %v, %v", l, err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the socket was removed: %v", err)
	}
}

func TestListenUnixPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := ListenUnix(path); l != nil || !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "a named pipe") {
		t.Errorf("got %v, %v", l, err)
	}
}

// TestListenUnixRemoveFails has a socket that is left in a folder without leave
// to write. Root needs none, so its thread is somebody else for the file system,
// and ends with the goroutine that is locked to it.
func TestListenUnixRemoveFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	leave(t, path)
	for name, mode := range map[string]os.FileMode{filepath.Dir(dir): 0o755, path: 0o777, dir: 0o555} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	defer os.Chmod(dir, 0o755)
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if os.Geteuid() == 0 {
			if _, err := unix.SetfsuidRetUid(65534); err != nil {
				done <- err
				return
			}
		}
		_, err := ListenUnix(path)
		done <- err
	}()
	if err := <-done; !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "can't be removed") {
		t.Errorf("got %v", err)
	}
}

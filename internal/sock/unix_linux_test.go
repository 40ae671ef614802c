package sock

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
)

func isListening(path string) bool {
	c, err := net.Dial("unix", path)
	if err == nil {
		c.Close()
	}
	return err == nil
}

func mustListenUnix(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := ListenUnixReplacingStale(path)
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// wantNoListener checks that listening at path fails with an error that says the given text.
func wantNoListener(t *testing.T, path, says string, want error) {
	t.Helper()
	l, err := ListenUnixReplacingStale(path)
	if l != nil || err == nil || !strings.Contains(err.Error(), says) || want != nil && !errors.Is(err, want) {
		t.Errorf("%q: got %v, %v; want an error that says %q and is %v", path, l, err, says, want)
	}
}

func createStaleSocket(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

// TestListenUnix listens at a new path, at a stale socket, at the longest path and at an abstract
// name, and checks that closing leaves no file.
func TestListenUnix(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "s") // a short path
	testkit.RequireNoError(t, err)
	defer os.RemoveAll(dir)
	testkit.RequireNoError(t, createStaleSocket(dir+"/stale"))
	for _, path := range []string{
		dir + "/new", dir + "/stale", dir + "/" + strings.Repeat("x", maxUnixPath-len(dir)-1), fmt.Sprintf("@myriad-test-%d", os.Getpid()),
	} {
		l := mustListenUnix(t, path)
		if !isListening(path) {
			t.Errorf("%s: nobody listens", path)
		}
		wantNoListener(t, path, path, syscall.EADDRINUSE)
		if !isListening(path) {
			t.Errorf("%s: the listener is gone", path)
		}
		testkit.ExpectNoError(t, l.Close())
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the file is left: %v", path, err)
		}
	}
}

func TestListenUnixInUse(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	testkit.RequireNoError(t, createStaleSocket(stale))
	for says, make := range map[string]func(path string) error{
		"a regular file":  func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) },
		"a directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"a symbolic link": func(path string) error { return os.Symlink(stale, path) },
		"a named pipe":    func(path string) error { return unix.Mkfifo(path, 0o600) },
		"another program": func(path string) error { mustListenUnix(t, path); return nil },
		"cannot determine whether": func(path string) error { // a datagram socket rejects the connection attempt
			c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			if err == nil {
				t.Cleanup(func() { c.Close() })
			}
			return err
		},
		"resource temporarily": func(path string) error { return listenWithFullQueue(t, path) },
	} {
		path := filepath.Join(dir, "f")
		testkit.RequireNoError(t, make(path))
		wantNoListener(t, path, says, syscall.EADDRINUSE)
		if err := os.Remove(path); err != nil {
			t.Errorf("%s was removed: %v", says, err)
		}
	}
	if _, err := os.Lstat(stale); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
}

func listenWithFullQueue(t *testing.T, path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		return err
	}
	for range 10 {
		c, err := net.Dial("unix", path)
		if errors.Is(err, syscall.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
	}
	return errors.New("the queue takes more than 10 connections")
}

// TestListenUnixRemoveFails has a stale socket in a folder without write permission. Root needs no
// permission, so its thread becomes another user for the file system and exits with the goroutine.
func TestListenUnixRemoveFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	testkit.RequireNoError(t, createStaleSocket(path))
	for name, mode := range map[string]os.FileMode{filepath.Dir(dir): 0o755, path: 0o777, dir: 0o555} {
		testkit.RequireNoError(t, os.Chmod(name, mode))
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
		_, err := ListenUnixReplacingStale(path)
		done <- err
	}()
	if err := <-done; !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "cannot be removed") {
		t.Errorf("got %v", err)
	}
}

func TestListenUnixRefuses(t *testing.T) {
	dir := t.TempDir()
	for path, says := range map[string]string{
		"":                                     `is ""; expected a path such as`,
		"@":                                    `is "@"`,
		dir + "/a\x00b":                        "without a zero byte",
		dir + "/none/s":                        "no such file",
		"/" + strings.Repeat("x", maxUnixPath): "expected at most",
	} {
		wantNoListener(t, path, says, nil)
	}
}

// TestListenUnixDescriptors checks that a worker's descriptor keeps the file.
func TestListenUnixDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := mustListenUnix(t, path)
	f, err := l.File()
	testkit.RequireNoError(t, err)
	worker, err := net.FileListener(f)
	f.Close()
	testkit.RequireNoError(t, err)
	worker.Close()
	if !isListening(path) {
		t.Error("a worker that ended took the socket with it")
	}
}

package sock

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// connects says whether somebody listens at path.
func connects(t *testing.T, path string) bool {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func mustListen(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// leave makes a socket file without a listener.
func leave(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
}

func TestListenUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := mustListen(t, path)
	if !connects(t, path) {
		t.Error("nobody listens")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}

func TestListenUnixStale(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	leave(t, path)
	mustListen(t, path)
	if !connects(t, path) {
		t.Error("nobody listens")
	}
}

func TestListenUnixInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	mustListen(t, path)
	l, err := ListenUnix(path)
	if l != nil || !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "another program listens") || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v, %v", l, err)
	}
	if !connects(t, path) {
		t.Error("the first listener's socket is gone")
	}
}

// TestListenUnixOtherKinds has files at the path that are no sockets.
func TestListenUnixOtherKinds(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	leave(t, stale)
	for kind, make := range map[string]func(path string) error{
		"a regular file":  func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) },
		"a directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"a symbolic link": func(path string) error { return os.Symlink(stale, path) },
	} {
		path := filepath.Join(dir, "f")
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		l, err := ListenUnix(path)
		if l != nil || !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), kind) {
			t.Errorf("%s: got %v, %v", kind, l, err)
		}
		if err := os.Remove(path); err != nil {
			t.Errorf("%s was removed: %v", kind, err)
		}
	}
	if _, err := os.Lstat(stale); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
}

func TestListenUnixRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, path, says string }{
		{"empty", "", `is ""; expected one such as`},
		{"an empty abstract name", "@", `is "@"`},
		{"a zero", dir + "/a\x00b", "without a zero byte"},
		{"too long", "/" + strings.Repeat("x", maxUnixPath), "expected at most"},
		{"no folder", filepath.Join(dir, "none", "s"), "no such file"},
	} {
		if l, err := ListenUnix(c.path); l != nil || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, %v; want an error that says %s", c.name, l, err, c.says)
		}
	}
}

// TestListenUnixLongest has a path of just the bound.
func TestListenUnixLongest(t *testing.T) {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if len(dir)+2 > maxUnixPath {
		t.Skipf("the folder for temporary files has too long a name: %s", dir)
	}
	path := dir + "/" + strings.Repeat("x", maxUnixPath-len(dir)-1)
	mustListen(t, path)
	if !connects(t, path) {
		t.Error("nobody listens")
	}
}

// TestListenUnixDescriptors holds the promise for worker processes: their
// descriptors keep the socket alive, and leave its file.
func TestListenUnixDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := mustListen(t, path)
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	worker, err := net.FileListener(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	worker.Close()
	if !connects(t, path) {
		t.Error("a worker that ended took the socket with it")
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}

func TestAbstractNeedsLinux(t *testing.T) {
	if runtime.GOOS == "linux" {
		return // unix_linux_test.go
	}
	if l, err := ListenUnix("@myriad"); l != nil || err == nil || !strings.Contains(err.Error(), "need Linux") {
		t.Errorf("got %v, %v", l, err)
	}
}

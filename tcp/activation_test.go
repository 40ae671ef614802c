package tcp

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// serveUnix serves at a path until stop, which waits for the end.
func serveUnix(t *testing.T, path string) (stop func()) {
	t.Helper()
	ready, ended := make(chan net.Addr, 1), make(chan error, 1)
	srv := &Server{Network: "unix", Addr: path, Handler: Lines(MessageFunc(echoLine)), Listening: func(a net.Addr) { ready <- a }}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- srv.ListenAndServe(ctx) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	return func() {
		cancel()
		ok(t, <-ended)
	}
}

// The end removes our file and not that of a successor, even if that has the
// number that ours had.
func TestUnixSuccessor(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open socket's file can't be replaced")
	}
	path := filepath.Join(t.TempDir(), "s")
	stop := serveUnix(t, path)
	must(t, os.Remove(path))
	stopSuccessor := serveUnix(t, path)
	stop()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the successor's file is gone: %v", err)
	}
	ask(t, c, "hello")
	c.Close()
	stopSuccessor()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is there after the end: %v", err)
	}
}

// One file that was written again is as another with its number.
func TestSameSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	look := func() os.FileInfo {
		t.Helper()
		info, err := os.Lstat(path)
		must(t, err)
		return info
	}
	must(t, os.WriteFile(path, nil, 0o600))
	before := look()
	if !sameSocket(before, look()) {
		t.Error("a file is not the same as itself")
	}
	later := before.ModTime().Add(1e9)
	must(t, os.Chtimes(path, later, later))
	if sameSocket(before, look()) {
		t.Error("a file of another time is taken for ours")
	}
}

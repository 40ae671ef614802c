package tcp

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// At its end a server removes its unix socket but not that of a successor, even if the inode
// number is reused.
func TestUnixSuccessor(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open socket's file can't be replaced")
	}
	path := filepath.Join(t.TempDir(), "s")
	first := startServer(t, &Server{Network: "unix", Addr: path})
	requireNoError(t, os.Remove(path))
	second := startServer(t, &Server{Network: "unix", Addr: path})
	first.stop()
	expectNoError(t, first.waitResult(t))
	c := dial(t, path)
	c.Exchange("hello", "hello")
	c.Close()
	second.stop()
	expectNoError(t, second.waitResult(t))
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is there after the end: %v", err)
	}
}

// A file that was written again does not count as the same file.
func TestSameSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	look := func() os.FileInfo {
		t.Helper()
		info, err := os.Lstat(path)
		requireNoError(t, err)
		return info
	}
	requireNoError(t, os.WriteFile(path, nil, 0o600))
	before := look()
	if !isSameUnmodifiedFile(before, look()) {
		t.Error("a file is not the same as itself")
	}
	later := before.ModTime().Add(1e9)
	requireNoError(t, os.Chtimes(path, later, later))
	if isSameUnmodifiedFile(before, look()) {
		t.Error("a file of another time is taken for ours")
	}
}

package tcp

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// copyHandler calls a function when it receives input.
type copyHandler struct {
	Base
	copy func(c *Conn)
}

func (h copyHandler) Received(c *Conn, in []byte) int {
	h.copy(c)
	return len(in)
}

// TestCopy checks that io.Copy uses the file directly and advances its offset.
func TestCopy(t *testing.T) {
	content := strings.Repeat("0123456789abcdef", 20<<10)
	path := filepath.Join(t.TempDir(), "file")
	requireNoError(t, os.WriteFile(path, []byte(content), 0o600))
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) {
			s := startServer(t, &Server{Model: model, Handler: copyHandler{copy: func(c *Conn) { copyFromAllSources(t, c, path, len(content)) }}})
			nc, err := net.Dial("tcp", s.addr)
			requireNoError(t, err)
			defer nc.Close()
			nc.SetDeadline(time.Now().Add(patience))
			if _, err := io.WriteString(nc, "go"); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(nc)
			requireNoError(t, err)
			if want := content[:100000] + content[100000:] + "reader" + "pipe" + "slices"; string(got) != want {
				t.Errorf("got %d bytes, want %d, or others", len(got), len(want))
			}
		})
	}
}

func copyFromAllSources(t *testing.T, c *Conn, path string, size int) {
	f, err := os.Open(path)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Error(err)
		return
	}
	io.WriteString(w, "pipe")
	w.Close()
	defer r.Close()
	for _, step := range []struct {
		name string
		copy func() (int64, error)
		n    int
	}{
		{"a part", func() (int64, error) { return io.CopyN(c, f, 100000) }, 100000},
		{"the rest", func() (int64, error) { return io.Copy(c, f) }, size - 100000},
		{"the end", func() (int64, error) { return io.Copy(c, f) }, 0},
		{"a reader", func() (int64, error) { return io.Copy(c, io.LimitReader(strings.NewReader("reader..."), 6)) }, 6},
		{"a pipe", func() (int64, error) { return io.Copy(c, r) }, 4},
		{"slices", func() (int64, error) {
			n, err := c.Writev(net.Buffers{[]byte("sli"), []byte("ces")}...)
			return int64(n), err
		}, 6},
	} {
		if n, err := step.copy(); n != int64(step.n) || err != nil {
			t.Errorf("copying %s: %d, %v; want %d", step.name, n, err, step.n)
		}
	}
	if n, err := io.CopyN(c, f, 1); n != 0 || err != io.EOF {
		t.Errorf("copying beyond the end: %d, %v; want 0, EOF", n, err)
	}
	c.Close()
}

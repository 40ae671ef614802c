package tcp

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCopy checks that io.Copy uses the file directly and advances its offset.
func TestCopy(t *testing.T) {
	const part = 100_000
	content := strings.Repeat("0123456789abcdef", 20<<10)
	path := filepath.Join(t.TempDir(), "file")
	requireNoError(t, os.WriteFile(path, []byte(content), 0o600))
	forEachModel(t, func(t *testing.T, model string, loops int) {
		f, err := os.Open(path)
		requireNoError(t, err)
		defer f.Close()
		r, w, err := os.Pipe()
		requireNoError(t, err)
		defer r.Close()
		io.WriteString(w, "pipe")
		w.Close()
		copyAll := func(c *Conn, in []byte) int {
			for _, step := range []struct {
				name string
				copy func() (int64, error)
				n    int
				err  error
			}{
				{"a part", func() (int64, error) { return io.CopyN(c, f, part) }, part, nil},
				{"the rest", func() (int64, error) { return io.Copy(c, f) }, len(content) - part, nil},
				{"the end", func() (int64, error) { return io.Copy(c, f) }, 0, nil},
				{"beyond the end", func() (int64, error) { return io.CopyN(c, f, 1) }, 0, io.EOF},
				{"a reader", func() (int64, error) { return io.Copy(c, io.LimitReader(strings.NewReader("reader..."), 6)) }, 6, nil},
				{"a pipe", func() (int64, error) { return io.Copy(c, r) }, 4, nil},
				{"slices", func() (int64, error) {
					n, err := c.Writev(net.Buffers{[]byte("sli"), []byte("ces")}...)
					return int64(n), err
				}, 6, nil},
			} {
				if n, err := step.copy(); n != int64(step.n) || err != step.err {
					t.Errorf("copying %s: %d, %v; want %d, %v", step.name, n, err, step.n, step.err)
				}
			}
			c.Close()
			return len(in)
		}
		s := startServer(t, &Server{Model: model, Loops: loops, Handler: hooks{received: copyAll}})
		c := dial(t, s.addr)
		c.Send("go")
		if got, want := c.ExpectClosed(), content+"reader"+"pipe"+"slices"; got != want {
			t.Errorf("got %d bytes, want %d, or others", len(got), len(want))
		}
	})
}

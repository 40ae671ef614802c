package web_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/web"
)

// TestFiles sends files whole: alone and pipelined, when the handler returns and before, where
// it flushes.
func TestFiles(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 20<<10)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	m := http.NewServeMux()
	m.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) })
	m.HandleFunc("/flush", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, path)
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		<-release
	})
	m.HandleFunc("/panic", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, path)
		panic("on purpose")
	})
	get := func(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n" }
	eachModel(t, &web.HTTP{Handler: m}, func(t *testing.T, addr string) {
		nc, r := dial(t, addr)
		for _, s := range []string{get("/file"), get("/file"), strings.Repeat(get("/file"), 40), get("/flush"), get("/file")} {
			io.WriteString(nc, s)
			for range bytes.Count([]byte(s), []byte("GET")) {
				if _, got := answer(t, r); got != string(content) {
					t.Fatalf("for %.40q came %d bytes, and not those of the file", s, len(got))
				}
			}
			if s == get("/flush") {
				release <- struct{}{}
			}
		}
		io.WriteString(nc, get("/panic"))
		if _, err := io.Copy(io.Discard, r); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection of a handler that panicked stays open")
		}
		for range 3 {
			gone, _ := dial(t, addr) // whose client reads nothing
			io.WriteString(gone, get("/file")+get("/file"))
			gone.Close()
		}
		nc, r = dial(t, addr)
		io.WriteString(nc, get("/file"))
		answer(t, r)
	})
}

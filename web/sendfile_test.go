package web_test

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/web"
)

// TestFiles sends complete files, alone and pipelined, before and after a flush.
func TestFiles(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 20<<10)
	path := filepath.Join(t.TempDir(), "file")
	testkit.RequireNoError(t, os.WriteFile(path, content, 0o600))
	release := make(chan struct{})
	m := http.NewServeMux()
	m.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) })
	m.HandleFunc("/flush", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, path)
		testkit.ExpectNoError(t, http.NewResponseController(w).Flush())
		<-release
	})
	m.HandleFunc("/panic", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, path)
		panic("on purpose")
	})
	forEachModel(t, &web.HTTP{Handler: m}, func(t *testing.T, addr string) {
		c := testkit.Dial(t, addr)
		for _, paths := range [][]string{{"/file"}, slices.Repeat([]string{"/file"}, 40), {"/flush"}, {"/file"}} {
			c.Send(getRequests(paths...))
			for range paths {
				expectBody(t, c, string(content))
			}
			if paths[0] == "/flush" {
				release <- struct{}{}
			}
		}
		c.Send(getRequests("/panic"))
		c.ExpectClosed()
		for range 3 {
			gone := testkit.Dial(t, addr) // whose client reads nothing
			gone.Send(getRequests("/file", "/file"))
			gone.Close()
		}
		c = testkit.Dial(t, addr)
		ask(t, c, "/file", string(content))
	})
}

package web_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/web"
)

// TestPipelined sends many requests at once: their answers come in order, each without waiting
// for a handler behind it, and what ends the connection keeps the handlers behind from running.
func TestPipelined(t *testing.T) {
	release := make(chan struct{})
	handlers := http.NewServeMux()
	handlers.HandleFunc("/n/{i}", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.PathValue("i")) })
	handlers.HandleFunc("/large", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, strings.Repeat("large ", 2000)) })
	handlers.HandleFunc("/wait", func(w http.ResponseWriter, r *http.Request) { <-release })
	handlers.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) { panic("on purpose") })
	handlers.HandleFunc("/goexit", func(http.ResponseWriter, *http.Request) { runtime.Goexit() })
	handlers.HandleFunc("/never", func(http.ResponseWriter, *http.Request) { t.Error("a handler has run behind the end") })
	handlers.HandleFunc("/hijack", func(w http.ResponseWriter, r *http.Request) {
		nc, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		go func() {
			defer nc.Close()
			io.Copy(nc, rw)
		}()
	})
	get := func(paths ...string) (all string) {
		for _, path := range paths {
			all += "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"
		}
		return all
	}
	eachModel(t, &web.HTTP{Handler: handlers}, func(t *testing.T, addr string) {
		t.Run("before a slow handler", func(t *testing.T) {
			nc, r := dial(t, addr)
			io.WriteString(nc, get("/n/1", "/wait", "/n/2"))
			for _, want := range []string{"1", "", "2"} {
				if _, got := answer(t, r); got != want {
					t.Fatalf("answered with %q; expected %q", got, want)
				}
				if want == "1" {
					release <- struct{}{}
				}
			}
		})
		t.Run("in order", func(t *testing.T) {
			nc, r := dial(t, addr)
			const n = 300
			go func() {
				for i := range n / 3 {
					io.WriteString(nc, get(fmt.Sprint("/n/", 3*i), "/large", fmt.Sprint("/n/", 3*i+2)))
				}
			}()
			for i := range n {
				want := fmt.Sprint(i)
				if i%3 == 1 {
					want = strings.Repeat("large ", 2000)
				}
				if _, got := answer(t, r); got != want {
					t.Fatalf("answer %d is %.20q; expected %.20q", i, got, want)
				}
			}
		})
		for _, path := range []string{"/panic", "/goexit"} {
			t.Run(path, func(t *testing.T) {
				nc, r := dial(t, addr)
				io.WriteString(nc, get("/n/1", path, "/never"))
				if _, got := answer(t, r); got != "1" {
					t.Errorf("answered with %q", got)
				}
				if b, err := io.ReadAll(r); err != nil || len(b) > 0 {
					t.Errorf("then read %q, %v; expected the end", b, err)
				}
			})
		}
		t.Run("hijacked", func(t *testing.T) {
			nc, r := dial(t, addr)
			rest := get("/never", "/never") + "no request"
			io.WriteString(nc, get("/n/1", "/hijack")+rest)
			nc.(*net.TCPConn).CloseWrite()
			if _, got := answer(t, r); got != "1" {
				t.Errorf("answered with %q", got)
			}
			if b, err := io.ReadAll(r); string(b) != rest {
				t.Errorf("the handler has got %q, %v; expected %q", b, err, rest)
			}
		})
	})
}

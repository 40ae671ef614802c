package libraries

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// runUnderWeb runs a test of a handler served by package web, under every model and with a pool as Workers.
func runUnderWeb(t *testing.T, h *web.HTTP, cfg *tls.Config, test func(t *testing.T, addr string)) {
	h.ErrorLog = log.New(io.Discard, "", 0)
	runUnderModels(t, func(t *testing.T, model string) {
		test(t, startServer(t, &tcp.Server{Model: model, Handler: h, TLSConfig: cfg, Limits: limits}))
	})
	t.Run("workers", func(t *testing.T) {
		p, err := pool.New(pool.Config{Max: 64})
		testkit.RequireNoError(t, err)
		t.Cleanup(func() { p.Close(context.Background()) })
		test(t, startServer(t, &tcp.Server{Workers: p, Handler: h, TLSConfig: cfg, Limits: limits}))
	})
}

// limits allow clients that still send to read why they are closed, and responses of 1 MiB.
var limits = tcp.Limits{Linger: 30 * time.Second, MaxUnsent: 2 << 20}

// TestWebHTTP checks that package web serves net/http's client like net/http does.
func TestWebHTTP(t *testing.T) {
	gone := make(chan bool, 1)
	runUnderWeb(t, &web.HTTP{Handler: newTestHandler(gone)}, nil, func(t *testing.T, addr string) {
		checkHTTP(t, newClient(t, nil), "http://"+addr, addr, gone)
	})
}

// TestWebOverTLS checks the same with TLS, over HTTP/2 and over HTTP/1.1.
func TestWebOverTLS(t *testing.T) {
	gone := make(chan bool, 1)
	own, trusting := newTLSConfigs(t)
	for proto, disabled := range map[string]bool{"HTTP/2.0": false, "HTTP/1.1": true} {
		t.Run(proto, func(t *testing.T) {
			runUnderWeb(t, &web.HTTP{Handler: newTestHandler(gone), DisableHTTP2: disabled}, own, func(t *testing.T, addr string) {
				c := newClient(t, trusting)
				c.Transport.(*http.Transport).ForceAttemptHTTP2 = true
				checkHTTP(t, c, "https://"+addr, "", gone)
				res, err := c.Get("https://" + addr + "/hello")
				if err != nil || res.Proto != proto {
					t.Fatalf("%v, %v; want %s", res, err, proto)
				}
				res.Body.Close()
			})
		})
	}
}

// TestWebCurl uses curl, a client in another language.
func TestWebCurl(t *testing.T) {
	program, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl")
	}
	file := filepath.Join(t.TempDir(), "file")
	all, _ := io.ReadAll(&numberStream{end: 3 << 20})
	testkit.RequireNoError(t, os.WriteFile(file, all, 0o600))
	mux := http.NewServeMux()
	mux.Handle("/", newTestHandler(nil))
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, file) })
	runUnderWeb(t, &web.HTTP{Handler: mux}, nil, func(t *testing.T, addr string) {
		url := "http://" + addr
		curl := func(t *testing.T, args ...string) (out []byte, told string) {
			var said bytes.Buffer
			cmd := exec.CommandContext(t.Context(), program, append([]string{"--silent", "--show-error", "--max-time", "60"}, args...)...)
			cmd.Stderr = &said
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("curl %q: %v\n%s", args, err, said.String())
			}
			return out, said.String()
		}
		t.Run("100-continue", func(t *testing.T) {
			out, told := curl(t, "-v", "--expect100-timeout", "60", "-H", "Expect: 100-continue", "-T", file, url+"/echo")
			if !bytes.Equal(out, all) || !strings.Contains(told, "< HTTP/1.1 100 Continue") {
				t.Errorf("%d bytes came back of %d:\n%s", len(out), len(all), told)
			}
			out, told = curl(t, "-v", "--expect100-timeout", "60", "-H", "Expect: 100-continue", "-T", file, url+"/refuse")
			if string(out) != "no\n" || strings.Contains(told, "100 Continue") {
				t.Errorf("answered with %q:\n%s", out, told)
			}
		})
		t.Run("ranges", func(t *testing.T) {
			if out, _ := curl(t, "-r", "1000000-2999999", url+"/file"); !bytes.Equal(out, all[1000000:3000000]) {
				t.Errorf("%d bytes, and not those", len(out))
			}
			if out, _ := curl(t, "-r", "0-9,100-109", "-w", "%{http_code} %{content_type}", url+"/file"); !bytes.Contains(out, []byte("206 multipart/byteranges")) || !bytes.Contains(out, all[100:110]) {
				t.Errorf("two ranges came as %q", out)
			}
		})
	})
}

package libraries

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// newTestHandler returns a handler that uses many features of net/http. gone receives a value when a client of /gone
// has disconnected.
func newTestHandler(gone chan bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello from %s to %s", r.Context().Value(http.LocalAddrContextKey), r.RemoteAddr)
	})
	mux.HandleFunc("/sum", func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Trailer", "Heard")
		fmt.Fprintf(w, "%d %x", n, h.Sum(nil))
		w.Header().Set("Heard", r.Trailer.Get("Said"))
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		io.Copy(w, r.Body)
	})
	mux.HandleFunc("/numbers", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, &numberStream{end: 8 << 20}) })
	mux.HandleFunc("/drip", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		for i := range 3 {
			fmt.Fprintln(w, i)
			w.(http.Flusher).Flush()
			if _, err := r.Body.Read(make([]byte, 1)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/refuse", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	mux.HandleFunc("/gone", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done() // the client has disconnected
		gone <- true
	})
	mux.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/hijack", func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		line, _ := rw.ReadString('\n')
		fmt.Fprintf(c, "yours: %s", line)
	})
	return mux
}

// startHTTPServer runs a *http.Server on a listener until the test ends. ended receives the result of Serve.
func startHTTPServer(t *testing.T, l net.Listener) (web *http.Server, gone chan bool, ended chan error) {
	gone, ended = make(chan bool, 1), make(chan error, 1)
	web = &http.Server{Handler: newTestHandler(gone), ErrorLog: log.New(io.Discard, "", 0)}
	go func() { ended <- web.Serve(l) }()
	t.Cleanup(func() { web.Close() })
	return web, gone, ended
}

// newClient returns net/http's client, with up to 50 idle connections.
func newClient(t *testing.T, cfg *tls.Config) *http.Client {
	transport := &http.Transport{TLSClientConfig: cfg, MaxIdleConnsPerHost: 50}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: testTimeout}
}

// newTLSConfigs returns a certificate for 127.0.0.1 and the configuration of a client that trusts it.
func newTLSConfigs(t *testing.T) (server, client *tls.Config) {
	ts := httptest.NewTLSServer(nil)
	t.Cleanup(ts.Close)
	return &tls.Config{Certificates: ts.TLS.Certificates}, ts.Client().Transport.(*http.Transport).TLSClientConfig
}

// TestHTTP checks that a *http.Server serves a NetListener like any other listener and ends with the server.
func TestHTTP(t *testing.T) {
	runUnderModels(t, func(t *testing.T, model string) {
		l := tcp.NewNetListener()
		web, gone, ended := startHTTPServer(t, l)
		var down sync.WaitGroup
		srv := &tcp.Server{Model: model, Handler: l, Stopping: func() { down.Go(func() { web.Shutdown(context.Background()) }) }}
		addr := startServer(t, srv)
		t.Cleanup(func() {
			srv.Shutdown(context.Background())
			down.Wait()
			if err := <-ended; !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
				t.Errorf("Serve: %v", err)
			}
		})
		checkHTTP(t, newClient(t, nil), "http://"+addr, addr, gone)
	})
}

// TestHTTPOverTLS lets the server do TLS; net/http serves the plaintext.
func TestHTTPOverTLS(t *testing.T) {
	own, trusting := newTLSConfigs(t)
	runUnderModels(t, func(t *testing.T, model string) {
		l := tcp.NewNetListener()
		_, gone, _ := startHTTPServer(t, l)
		addr := startServer(t, &tcp.Server{Model: model, Handler: l, TLSConfig: own})
		checkHTTP(t, newClient(t, trusting), "https://"+addr, "", gone)
	})
}

// checkHTTP checks what a client may expect. It opens a raw connection to raw, unless that is empty.
func checkHTTP(t *testing.T, client *http.Client, url, raw string, gone chan bool) {
	get := func(path string) (string, *http.Response, error) {
		resp, err := client.Get(url + path)
		if err != nil {
			return "", nil, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), resp, err
	}
	t.Run("addresses, and connections that are kept", func(t *testing.T) {
		var kept []string
		for range 3 {
			body, _, err := get("/hello")
			testkit.RequireNoError(t, err)
			if !strings.HasPrefix(body, "hello from "+strings.SplitN(url, "//", 2)[1]+" to 127.0.0.1:") {
				t.Errorf("got %q", body)
			}
			kept = append(kept, body)
		}
		if kept[0] != kept[1] || kept[1] != kept[2] {
			t.Errorf("not all requests had the same connection: %q", kept)
		}
	})
	t.Run("large bodies", func(t *testing.T) {
		h := sha256.New()
		io.Copy(h, &numberStream{end: 8 << 20})
		want := fmt.Sprintf("%d %x", 8<<20, h.Sum(nil))
		req, _ := http.NewRequest("POST", url+"/sum", struct{ io.Reader }{&numberStream{end: 8 << 20}}) // chunked
		req.Trailer = http.Header{"Said": {"this"}}
		resp, err := client.Do(req)
		testkit.RequireNoError(t, err)
		summed, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(summed) != want || resp.Trailer.Get("Heard") != "this" {
			t.Errorf("got %q and %v; want %q", summed, resp.Trailer, want)
		}
		got, _, err := get("/numbers")
		all, _ := io.ReadAll(&numberStream{end: 8 << 20})
		if err != nil || got != string(all) {
			t.Errorf("%d bytes, %v; want %d, and those", len(got), err, len(all))
		}
	})
	t.Run("both directions at once", func(t *testing.T) {
		resp, err := client.Post(url+"/echo", "text/plain", struct{ io.Reader }{&numberStream{end: 8 << 20}})
		testkit.RequireNoError(t, err)
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		all, _ := io.ReadAll(&numberStream{end: 8 << 20})
		if err != nil || !bytes.Equal(got, all) {
			t.Errorf("%d bytes, %v; want %d, and those", len(got), err, len(all))
		}
	})
	t.Run("what is flushed comes at once", func(t *testing.T) {
		r, w := io.Pipe()
		resp, err := client.Post(url+"/drip", "text/plain", r)
		testkit.RequireNoError(t, err)
		defer resp.Body.Close()
		lines := bufio.NewReader(resp.Body)
		for i := range 3 {
			if line, err := lines.ReadString('\n'); line != fmt.Sprintln(i) || err != nil {
				t.Fatalf("got %q, %v", line, err)
			}
			w.Write([]byte("x"))
		}
		w.Close()
	})
	t.Run("Expect: 100-continue", func(t *testing.T) {
		req, _ := http.NewRequest("POST", url+"/refuse", strings.NewReader("unwanted"))
		req.Header.Set("Expect", "100-continue")
		resp, err := client.Do(req)
		if err != nil || resp.StatusCode != http.StatusForbidden {
			t.Fatalf("%v, %v; want 403", resp, err)
		}
		resp.Body.Close()
	})
	t.Run("a handler that gives up", func(t *testing.T) {
		if _, _, err := get("/panic"); err == nil {
			t.Error("no error of a request whose handler panicked")
		}
	})
	t.Run("many clients", func(t *testing.T) {
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				for range 10 {
					if body, resp, err := get("/hello"); err != nil || resp.StatusCode != 200 || !strings.HasPrefix(body, "hello") {
						t.Errorf("%q, %v", body, err)
					}
				}
			})
		}
		all.Wait()
	})
	t.Run("a client that goes", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		req, _ := http.NewRequestWithContext(ctx, "GET", url+"/gone", nil)
		resp, err := client.Do(req)
		testkit.RequireNoError(t, err)
		cancel()
		resp.Body.Close()
		testkit.Receive(t, gone, "the handler does not hear of it")
	})
	if raw == "" {
		return
	}
	t.Run("hijacked", func(t *testing.T) {
		c := testkit.Dial(t, raw)
		c.Send("GET /hijack HTTP/1.1\r\nHost: x\r\n\r\nall of it\n")
		c.ExpectEOF("yours: all of it\n")
	})
}

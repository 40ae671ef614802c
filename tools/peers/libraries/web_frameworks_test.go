package libraries

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/klauspost/compress/gzhttp"
	"github.com/labstack/echo/v4"
	echomiddleware "github.com/labstack/echo/v4/middleware"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/web"
)

const longText = "A line that is repeated until it is worth compressing.\n"

// newFrameworks returns handlers of frameworks, middleware and net/http by path.
func newFrameworks(t *testing.T) http.Handler {
	dir := t.TempDir()
	testkit.RequireNoError(t, os.WriteFile(filepath.Join(dir, "file.txt"), bytes.Repeat([]byte(longText), 2000), 0o600))
	mux := http.NewServeMux()

	c := chi.NewRouter()
	c.Use(middleware.RequestID, middleware.Recoverer, middleware.Compress(5), middleware.Timeout(time.Minute))
	c.Get("/chi/users/{id}", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "user ", chi.URLParam(r, "id")) })
	c.Post("/chi/echo", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	c.Get("/chi/long", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		io.WriteString(w, strings.Repeat(longText, 100))
	})
	mux.Handle("/chi/", c)

	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	g.Use(gin.Recovery())
	g.GET("/gin/users/:id", func(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"user": c.Param("id")}) })
	g.POST("/gin/form", func(c *gin.Context) { c.String(http.StatusCreated, "%s", c.PostForm("a")) })
	g.GET("/gin/stream", func(c *gin.Context) {
		n := 0
		c.Stream(func(w io.Writer) bool {
			c.SSEvent("count", n)
			n++
			return n < 3
		})
	})
	g.GET("/gin/file", func(c *gin.Context) { c.File(filepath.Join(dir, "file.txt")) })
	mux.Handle("/gin/", g)

	e := echo.New()
	e.Use(echomiddleware.Recover(), echomiddleware.Gzip())
	e.GET("/echo/error", func(c echo.Context) error { return echo.NewHTTPError(http.StatusTeapot, "teapot") })
	e.GET("/echo/stream", func(c echo.Context) error {
		for i := range 3 {
			fmt.Fprintln(c.Response(), i)
			c.Response().Flush()
		}
		return nil
	})
	mux.Handle("/echo/", e)

	mux.Handle("/gzip/", gzhttp.GzipHandler(http.StripPrefix("/gzip", http.FileServer(http.Dir(dir)))))
	mux.Handle("/files/", http.StripPrefix("/files", http.FileServer(http.Dir(dir))))

	behind := httptest.NewServer(mux)
	t.Cleanup(behind.Close)
	target, err := url.Parse(behind.URL)
	testkit.RequireNoError(t, err)
	mux.Handle("/proxy/", http.StripPrefix("/proxy", httputil.NewSingleHostReverseProxy(target)))
	return mux
}

// TestFrameworks compares answers of frameworks under package web with those under net/http, over HTTP/1.1 and HTTP/2.
func TestFrameworks(t *testing.T) {
	h := newFrameworks(t)
	theirs := httptest.NewUnstartedServer(h)
	theirs.Config.Protocols = newProtocols(true, true)
	theirs.Start()
	defer theirs.Close()
	requests := []struct{ method, path, field, body string }{
		{"GET", "/chi/users/7", "", ""}, {"POST", "/chi/echo", "Content-Type: text/plain", "body"}, {"GET", "/chi/long", "Accept-Encoding: gzip", ""},
		{"GET", "/gin/users/7", "", ""}, {"POST", "/gin/form", "Content-Type: application/x-www-form-urlencoded", "a=b"}, {"GET", "/gin/stream", "", ""},
		{"GET", "/gin/file", "Range: bytes=5-99", ""},
		{"GET", "/echo/error", "", ""}, {"GET", "/echo/stream", "Accept-Encoding: gzip", ""},
		{"GET", "/gzip/file.txt", "Accept-Encoding: gzip", ""}, {"HEAD", "/gzip/file.txt", "Accept-Encoding: gzip", ""}, {"GET", "/files/file.txt", "", ""}, {"GET", "/files/", "", ""},
		{"HEAD", "/files/file.txt", "", ""}, {"GET", "/files/file.txt", "Range: bytes=0-9,20-29", ""}, {"GET", "/files/none", "", ""},
		{"POST", "/proxy/chi/echo", "Content-Type: text/plain", "body"}, {"GET", "/proxy/gin/stream", "", ""}, {"GET", "/proxy/files/file.txt", "", ""},
	}
	runUnderWeb(t, &web.HTTP{Handler: h, UnencryptedHTTP2: true}, nil, func(t *testing.T, addr string) {
		for _, http1 := range []bool{true, false} {
			tr := &http.Transport{Protocols: newProtocols(http1, !http1), DisableCompression: true}
			defer tr.CloseIdleConnections()
			for _, r := range requests {
				ask := func(base string) string {
					req, err := http.NewRequestWithContext(t.Context(), r.method, base+r.path, strings.NewReader(r.body))
					testkit.RequireNoError(t, err)
					if name, value, ok := strings.Cut(r.field, ": "); ok {
						req.Header.Set(name, value)
					}
					res, err := tr.RoundTrip(req)
					if err != nil {
						return err.Error()
					}
					defer res.Body.Close()
					body, err := io.ReadAll(res.Body)
					text := string(body)
					if _, boundary, ok := strings.Cut(res.Header.Get("Content-Type"), "boundary="); ok { // a random one
						text = strings.ReplaceAll(text, boundary, "B")
						res.Header.Set("Content-Type", "with a boundary")
					}
					res.Header.Del("Date")
					keys := slices.Sorted(maps.Keys(res.Header))
					return fmt.Sprint(res.Proto, res.Status, res.ContentLength, res.TransferEncoding, keys, res.Header, text, err)
				}
				if got, want := ask("http://"+addr), ask(theirs.URL); got != want {
					t.Errorf("HTTP/1.1 %v, %v:\n got %.600q\nwant %.600q", http1, r, got, want)
				}
			}
		}
	})
}

func newProtocols(http1, unencryptedHTTP2 bool) *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(http1)
	p.SetUnencryptedHTTP2(unencryptedHTTP2)
	return p
}

// TestGinStreamEnds checks that a stream of gin ends when its client disconnects.
func TestGinStreamEnds(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	gone := make(chan bool, 1)
	g := gin.New()
	g.GET("/", func(c *gin.Context) {
		gone <- c.Stream(func(w io.Writer) bool {
			fmt.Fprintln(w, "more")
			return true
		})
	})
	runUnderWeb(t, &web.HTTP{Handler: g}, nil, func(t *testing.T, addr string) {
		res, err := newClient(t, nil).Get("http://" + addr)
		testkit.RequireNoError(t, err)
		res.Body.Read(make([]byte, 1))
		res.Body.Close()
		if !<-gone {
			t.Error("the stream ended by itself")
		}
	})
}

const connectPath = "/test.v1.Echo/"

// TestConnect makes calls of connect-go by each of its protocols: unary, and streams in both directions over HTTP/2.
func TestConnect(t *testing.T) {
	type message = wrapperspb.StringValue
	mux := http.NewServeMux()
	mux.Handle(connectPath+"Unary", connect.NewUnaryHandler(connectPath+"Unary", func(_ context.Context, r *connect.Request[message]) (*connect.Response[message], error) {
		if r.Msg.Value == "fail" {
			return nil, connect.NewError(connect.CodeNotFound, errors.New("on purpose"))
		}
		return connect.NewResponse(wrapperspb.String(r.Msg.Value + " " + r.Header().Get("X-Sent"))), nil
	}))
	mux.Handle(connectPath+"Stream", connect.NewBidiStreamHandler(connectPath+"Stream", func(_ context.Context, s *connect.BidiStream[message, message]) error {
		for {
			m, err := s.Receive()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil {
				err = s.Send(m)
			}
			if err != nil {
				return err
			}
		}
	}))
	runUnderWeb(t, &web.HTTP{Handler: mux, UnencryptedHTTP2: true}, nil, func(t *testing.T, addr string) {
		for _, http1 := range []bool{true, false} {
			tr := &http.Transport{Protocols: newProtocols(http1, !http1)}
			defer tr.CloseIdleConnections()
			for name, option := range map[string]connect.ClientOption{"connect": connect.WithProtoJSON(), "gRPC": connect.WithGRPC(), "gRPC-Web": connect.WithGRPCWeb()} {
				if http1 && name == "gRPC" {
					continue // needs HTTP/2
				}
				c := &http.Client{Transport: tr, Timeout: testTimeout}
				unary := connect.NewClient[message, message](c, "http://"+addr+connectPath+"Unary", option)
				for _, size := range []int{1, 100_000} {
					want := strings.Repeat("x", size)
					req := connect.NewRequest(wrapperspb.String(want))
					req.Header().Set("X-Sent", "sent")
					if res, err := unary.CallUnary(t.Context(), req); err != nil || res.Msg.Value != want+" sent" {
						t.Errorf("%s, HTTP/1.1 %v, %d bytes: %v", name, http1, size, err)
					}
				}
				if _, err := unary.CallUnary(t.Context(), connect.NewRequest(wrapperspb.String("fail"))); connect.CodeOf(err) != connect.CodeNotFound {
					t.Errorf("%s: %v; want not found", name, err)
				}
				if http1 {
					continue
				}
				s := connect.NewClient[message, message](c, "http://"+addr+connectPath+"Stream", option).CallBidiStream(t.Context())
				for i := range 100 {
					want := fmt.Sprint("message ", i)
					err := s.Send(wrapperspb.String(want))
					if err != nil {
						t.Fatal(name, err)
					}
					if m, err := s.Receive(); err != nil || m.Value != want {
						t.Fatalf("%s: %v, %v; want %q", name, m, err, want)
					}
				}
				s.CloseRequest()
				if m, err := s.Receive(); !errors.Is(err, io.EOF) {
					t.Errorf("%s: %v, %v; want the end", name, m, err)
				}
				s.CloseResponse()
			}
		}
	})
}

package web_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// sendAndReadAnswers sends pieces, each after the server has received the previous one. It
// returns the answers to all requests and whether the connection stays open.
func sendAndReadAnswers(t testing.TB, addr string, pieces, methods []string, received func() int64) string {
	t.Helper()
	c := testkit.Dial(t, addr)
	var raw bytes.Buffer
	r := bufio.NewReader(io.TeeReader(c, &raw))
	sent := 0
	for i, p := range pieces {
		if i > 0 && strings.Contains(pieces[i-1], "100-continue") {
			_, _ = http.ReadResponse(r, nil)
		} else if i > 0 {
			testkit.WaitFor(t, "the pieces are not read", func() bool { return received() >= int64(sent) })
		}
		if _, err := io.WriteString(c, p); err != nil {
			break
		}
		sent += len(p)
	}
	for _, m := range methods {
		for {
			res, err := http.ReadResponse(r, &http.Request{Method: m})
			if err == nil {
				_, err = io.Copy(io.Discard, res.Body)
			}
			if err != nil {
				return raw.String() + "!" + err.Error()
			}
			if res.StatusCode >= 200 {
				break
			}
		}
	}
	// An open connection answers another request.
	end := raw.Len()
	_, _ = io.WriteString(c, getRequests("/empty"))
	if _, err := http.ReadResponse(r, nil); err != nil {
		return string(raw.Bytes()[:end]) + "<closed>"
	}
	return string(raw.Bytes()[:end]) + "<open>"
}

var dates = regexp.MustCompile(`(?m)^(Date|Last-Modified): [^\r]*`)

func normalizeDates(s string) string { return dates.ReplaceAllString(s, "$1: D") }

func newTestHandlers(t testing.TB) http.Handler {
	dir := t.TempDir()
	testkit.RequireNoError(t, os.WriteFile(filepath.Join(dir, "file.txt"), bytes.Repeat([]byte("0123456789abcdef"), 4<<10), 0o666))
	m := http.NewServeMux()
	handle := func(path string, f http.HandlerFunc) { m.HandleFunc(path, f) }
	handle("/hello", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello, world\n") })
	handle("/empty", func(w http.ResponseWriter, r *http.Request) {})
	handle("/status/", func(w http.ResponseWriter, r *http.Request) {
		for key, values := range r.URL.Query() {
			w.Header()[key] = values
		}
		var n int
		fmt.Sscan(strings.TrimPrefix(r.URL.Path, "/status/"), &n)
		w.WriteHeader(n)
		io.WriteString(w, "body")
	})
	handle("/set/{key}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(r.PathValue("key"), r.URL.RawQuery)
		if r.URL.RawQuery == "nil" {
			w.Header()[r.PathValue("key")] = nil
		}
		io.WriteString(w, "12345")
	})
	handle("/large", func(w http.ResponseWriter, r *http.Request) {
		for i := range 100 {
			fmt.Fprintf(w, "%099d\n", i)
		}
	})
	handle("/block", func(w http.ResponseWriter, r *http.Request) { w.Write(bytes.Repeat([]byte("x"), 100<<10)) })
	handle("/long", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "3")
		n, err := io.WriteString(w, "12345")
		n2, err2 := io.WriteString(w, "123")
		_, _, _, _ = n, err, n2, err2
	})
	handle("/flush", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "one")
		w.(http.Flusher).Flush()
		io.WriteString(w, "two")
		w.Header().Set("Too-Late", "1")
	})
	handle("/headers", func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-B", "two\r\nInjected: yes")
		h.Add("X-A", "one")
		h.Add("X-A", " more ")
		h["x-lower"] = []string{"kept"}
		h["Bad Name"] = []string{"left out"}
		h["Date"] = nil
		h.Set("Content-Type", "text/x")
		io.WriteString(w, "ok")
	})
	handle("/change", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.Header.Get("X-Type"))
		fmt.Fprintf(w, "%s %q", r.URL, r.Header)
		r.URL.Path, r.Header["X-Type"][0] = "/changed", "changed"
		r.Header.Set("X-Added", "1")
	})
	handle("/trailer", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum, Content-Length")
		io.WriteString(w, "body")
		w.Header().Set("X-Sum", "42")
		w.Header().Set(http.TrailerPrefix+"X-Late", "yes")
	})
	handle("/body/close", func(w http.ResponseWriter, r *http.Request) { r.Body.Close(); io.WriteString(w, "closed") })
	handle("/body/nil", func(w http.ResponseWriter, r *http.Request) { r.Body = nil; io.WriteString(w, "nil") })
	handle("/readfrom", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(w, io.MultiReader(strings.NewReader(""), strings.NewReader(r.URL.RawQuery)))
		fmt.Fprint(w, n, err)
	})
	handle("/hints", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		io.WriteString(w, "done")
	})
	handle("/echo", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%q %v %d %v %v", b, err, r.ContentLength, r.TransferEncoding, r.Trailer)
	})
	handle("/unread", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "not read") })
	handle("/about", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s %v host=%q close=%v url=%#v\n", r.Method, r.RequestURI, r.Proto, r.ContentLength, r.Host, r.Close, *r.URL)
		for _, k := range []string{"Connection", "Cookie", "X-Twice", "X-Empty", "Cache-Control", "Host", "Transfer-Encoding", "Trailer"} {
			fmt.Fprintf(w, "%s=%q\n", k, r.Header[k])
		}
	})
	handle("/panic", func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	handle("/latepanic", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	handle("/twice", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(201)
		w.WriteHeader(202)
		w.Header().Set("Content-Length", "1")
		io.WriteString(w, "hello")
	})
	handle("/error", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "teapot", http.StatusTeapot) })
	m.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir(dir))))
	return m
}

// TestAsNetHTTP sends the same bytes to net/http's server and to this one: the answers must be
// identical, except for dates, and so must be whether the connection stays open.
func TestAsNetHTTP(t *testing.T) {
	with := func(path string, fields ...string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: x\r\n" + strings.Join(append(fields, ""), "\r\n") + "\r\n"
	}
	post := func(path, fields, body string) string {
		return "POST " + path + " HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n" + body
	}
	chunked := func(path, body string) string { return post(path, "Transfer-Encoding: chunked\r\n", body) }
	type row struct {
		name    string
		pieces  []string
		methods []string
	}
	// methods are those of the requests after the first one.
	one := func(name, s string, methods ...string) row {
		return row{name, []string{s}, append([]string{s[:strings.Index(s, " ")]}, methods...)}
	}
	rows := []row{}
	for _, path := range []string{"/hello", "/empty", "/large", "/block", "/set/Content-Length?5",
		"/set/Content-Length?10", "/set/Content-Length?nil", "/long", "/flush", "/headers", "/trailer",
		"/readfrom?abc", "/set/Connection?close",
		"/set/Connection?keep-alive", "/set/Transfer-Encoding?identity", "/set/Transfer-Encoding?chunked",
		"/set/Transfer-Encoding?foo", "/set/Content-Encoding?foo", "/set/Content-Encoding?", "/set/Content-Type?nil",
		"/set/Date?today", "/hints", "/panic", "/latepanic", "/twice", "/error", "/nothing", "/files/file.txt",
		"/files/", "/status/200", "/status/204?Content-Length=123", "/status/204?Content-Type=foo/bar",
		"/status/304?Content-Length=123", "/status/304", "/status/599"} {
		rows = append(rows, one(path, getRequests(path)), one("HEAD "+path, strings.Replace(getRequests(path), "GET", "HEAD", 1)),
			one("close "+path, with(path, "Connection: close")))
		if path != "/hints" { // which ours does not send to 1.0, as RFC 9110 has it
			rows = append(rows, one("1.0 "+path, "GET "+path+" HTTP/1.0\r\n\r\n"),
				one("1.0 keep-alive "+path, "GET "+path+" HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"))
		}
	}
	for _, host := range []string{"1.2.3.4", "foo-bar_baz.com", "foo.com:80", "[::1]", "[::1]:80"} {
		rows = append(rows, one("host "+host, "GET /about HTTP/1.1\r\nHost: "+host+"\r\n\r\n"))
	}
	rows = append(rows,
		one("about", with("/about?a=b&c=%20", "Cookie: a=b", "X-Twice: 1", "x-twice: 2", "X-Empty:", "Pragma: no-cache")),
		one("absolute target", "GET http://other:81/about HTTP/1.1\r\nHost: x\r\n\r\n"),
		one("escaped path", with("/about?", "Connection: keep-alive, X-Foo")),
		one("lower case", with("/about", "cookie: a=b", "CONNECTION: Keep-Alive")),
		one("unusual values", with("/about", "X-Twice: a\tb", "X-Empty: \xff")),
		one("options", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"),
		one("upgrade to HTTP/2",
			with("/hello", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")),
		one("range", with("/files/file.txt", "Range: bytes=10-19")),
		one("large range", with("/files/file.txt", "Range: bytes=100-")),
		one("body", post("/echo", "Content-Length: 5\r\n", "hello")),
		one("body of GET", "GET /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"),
		one("empty line before", post("/echo", "Content-Length: 3\r\n", "ABC\r\n"+getRequests("/hello")), "GET"),
		one("empty body", post("/echo", "Content-Length: 0\r\n", "")),
		one("chunks", chunked("/echo", "5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\n\r\n")),
		one("trailers", post("/echo", "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n", "5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n")),
		one("bad chunk", chunked("/echo", "5\r\nhelloXX0\r\n\r\n")),
		one("bad chunk that is not read", chunked("/unread", "hax\r\n"+getRequests("/hello"))),
		one("bad trailer that is not read", chunked("/unread", "0\r\nbad\r\n"+getRequests("/hello"))),
		one("closed body", post("/body/close", "Content-Length: 5\r\n", "hello")),
		one("closed large body", post("/body/close", "Content-Length: 1000000\r\n", strings.Repeat("b", 1000000))),
		one("body set to nil", post("/body/nil", "Content-Length: 5\r\n", "hello"+getRequests("/hello")), "GET"),
		one("body that does not come", post("/status/401", "Content-Length: 5\r\nExpect: 100-cOntInUE\r\n", "")),
		one("unread huge body", post("/status/401", "Content-Length: 9999999999\r\n", strings.Repeat("b", 20<<10))),
		one("unread body", post("/unread", "Content-Length: 5\r\n", "hello")),
		one("unread large body", post("/unread", "Content-Length: 100000\r\n", strings.Repeat("b", 100000))),
		one("unread chunks", chunked("/unread", "5\r\nhello\r\n0\r\n\r\n")),
		one("unknown expectation", post("/unread", "Content-Length: 5\r\nExpect: tea\r\n", "hello")),
		row{"expect", []string{post("/echo", "Content-Length: 5\r\nExpect: 100-continue\r\n", ""), "hello"}, []string{"POST"}},
		row{"body in pieces", []string{post("/echo", "Content-Length: 10\r\n", "hel"), "lo", "world"}, []string{"POST"}},
		row{"chunks in pieces", []string{chunked("/echo", "5\r\nhello\r"), "\n0\r\n", "\r\n"},
			[]string{"POST"}},
		row{"head in pieces", []string{"GET /hel", "lo HTTP/1.1\r\nHo", "st: x\r\n\r", "\n"}, []string{"GET"}},
		one("pipeline", getRequests("/hello", "/large")+post("/echo", "Content-Length: 5\r\n", "hello")+
			getRequests("/empty", "/flush"), "GET", "POST", "GET", "GET"),
		one("pipeline and unread body", post("/unread", "Content-Length: 5\r\n", "hello")+getRequests("/hello"), "GET"),
		one("pipeline with a close", getRequests("/hello", "/set/Connection?close"), "GET"),
		one("repeated", strings.Repeat(with("/change?a", "X-Type: text/a"), 3)+
			strings.Repeat(with("/change?a", "X-Type: text/b"), 2)+with("/change?a", "X-Type: text/a"),
			"GET", "GET", "GET", "GET", "GET"),
		row{"two in a row", []string{getRequests("/hello"), getRequests("/flush")}, []string{"GET", "GET"}},
	)
	h := newTestHandlers(t)
	theirs := httptest.NewUnstartedServer(h)
	theirs.Config.ErrorLog = silent
	theirs.Start()
	defer theirs.Close()
	wants := make(map[string]string)
	for _, r := range rows {
		wants[r.name] = normalizeDates(sendAndReadAnswers(t, theirs.Listener.Addr().String(), []string{strings.Join(r.pieces, "")}, r.methods, nil))
	}
	for _, model := range append(tcp.Models(), "quick", "quick in a mux") {
		newServer := func() *tcp.Server {
			switch model {
			case "quick in a mux":
				mux := http.NewServeMux()
				mux.Handle("/", web.Quick(h))
				return &tcp.Server{Handler: &web.HTTP{Handler: mux, ErrorLog: silent}}
			case "quick":
				return &tcp.Server{Handler: &web.HTTP{Handler: web.Quick(h), ErrorLog: silent}}
			}
			return &tcp.Server{Model: model, Handler: &web.HTTP{Handler: h, ErrorLog: silent}}
		}
		t.Run(model, func(t *testing.T) {
			addr := startServer(t, newServer())
			for _, r := range rows {
				t.Run(r.name, func(t *testing.T) {
					t.Parallel()
					addr, received := addr, func() int64 { return 0 }
					if len(r.pieces) > 1 {
						own := newServer() // whose Stats are this row's
						addr, received = startServer(t, own), func() int64 { return own.Stats().BytesIn }
					}
					if got, want := normalizeDates(sendAndReadAnswers(t, addr, r.pieces, r.methods, received)), wants[r.name]; got != want {
						t.Errorf("for %q\n got %s\nwant %s", r.pieces, quoteTruncated(got), quoteTruncated(want))
					}
				})
			}
		})
	}
}

func quoteTruncated(s string) string {
	if len(s) > 900 {
		return fmt.Sprintf("%q ... %q (%d)", s[:600], s[len(s)-200:], len(s))
	}
	return fmt.Sprintf("%q", s)
}

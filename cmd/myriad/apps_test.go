package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/internal/proof"
	"github.com/myriad-go/myriad/internal/stall"
)

// Applications answer what they have to, on every model and under plain.
func TestApps(t *testing.T) {
	long := strings.Repeat("x", 100)
	sha := func(line string, digits int) string {
		return fmt.Sprintf("%x", sha256.Sum256([]byte(line)))[:digits] + "\n"
	}
	serves := []string{"plain"}
	for _, model := range myriad.Models() {
		serves = append(serves, "serve --model "+model)
	}
	for _, serve := range serves {
		for app, c := range map[string]struct{ send, want string }{
			"echo":             {"no line", "no line"},
			"lines":            {"one\ntwo\nthr", "one\ntwo\n"},
			"sha":              {"ping\n\n" + long + "\n", sha("ping", 4) + "\n" + sha(long, 64)},
			"pow":              {"ping\n", string(proof.Append(nil, []byte("ping"), 16))},
			"wait":             {"a\nb\n", "a\nb\n"},
			"push":             {"pong\npongo\nhave!\n!\n!news\n", "pongo\nhave!\n\nnews\n"},
			"stall --stall 0s": {"a\nb\n", "a\nb\n"},
		} {
			if serve == "plain" && (app == "push" || strings.HasPrefix(app, "stall")) {
				continue
			}
			s := serveHere(t, serve+" --app "+app)
			conn := dial(t, s.addr)
			exchange(t, conn, c.send, c.want)
			conn.Close()
			if code := s.stop(); code != 0 {
				t.Errorf("%s --app %s: exit code %d, stderr %s", serve, app, code, s.stderr)
			}
		}
	}
}

func TestWait(t *testing.T) {
	const wait = 30 * time.Millisecond
	c := dial(t, serveHere(t, "serve --app wait --wait "+wait.String()).addr)
	begin := time.Now()
	exchange(t, c, "a\nb\n", "a\nb\n")
	if took := time.Since(begin); took < 2*wait {
		t.Errorf("two lines took %v, want %v at least", took, 2*wait)
	}
}

// A line that begins with an exclamation mark reaches all.
func TestPush(t *testing.T) {
	for _, model := range myriad.Models() {
		s := serveHere(t, "serve --app push --max-unsent 100 --model "+model)
		var conns []net.Conn
		for range 5 {
			c := dial(t, s.addr)
			exchange(t, c, "hello\n", "hello\n") // so that it has been accepted
			conns = append(conns, c)
		}
		io.WriteString(conns[0], "!news for all\n")
		for _, c := range conns {
			exchange(t, c, "", "news for all\n")
		}
		exchange(t, conns[1], "!"+strings.Repeat("x", 200)+"\n", "error: ")
	}
}

// Each kind of pool serves, and the server drains with it. What no worker has time for is
// answered with busy, and counted.
func TestWorkers(t *testing.T) {
	for _, args := range []string{"--workers 2", "--workers 2-10 --workers-target 1ms", "--workers adaptive --workers-queue 10", "--workers 0"} {
		for _, app := range []string{"lines", "wait --shed"} {
			s := serveHere(t, "serve --app "+app+" "+args)
			c := dial(t, s.addr)
			exchange(t, c, "hello\n", "hello\n")
			c.Close()
			if code := s.stop(); code != 0 {
				t.Errorf("%s, %s: exit code %d, stderr: %s", args, app, code, s.stderr)
			}
		}
	}
	if len(myriad.Models()) == 1 {
		return // no model here has loops
	}
	s := serveHere(t, "serve --app wait --shed --wait 200ms --model epoll --workers 1 --workers-queue -1 --admin 127.0.0.1:0")
	// Both have a line for the one worker. It may see to both at first: what is never
	// shed, that a connection has opened, may wait for it with the line.
	first, second := dial(t, s.addr), dial(t, s.addr)
	inFirst, inSecond := bufio.NewReader(first), bufio.NewReader(second)
	for busy := false; !busy; {
		io.WriteString(first, "a\n")
		io.WriteString(second, "a\n")
		for _, in := range []*bufio.Reader{inFirst, inSecond} {
			got, err := in.ReadString('\n')
			if err != nil || got != "busy\n" && got != "a\n" {
				t.Fatalf("got %q, %v; want the line or busy", got, err)
			}
			busy = busy || got == "busy\n"
		}
	}
	_, text := get(t, s.admin+"/metrics")
	for _, name := range []string{`myriad_pool_jobs_refused_total\{cause="full"\}`, "myriad_pool_jobs_accepted_total", "myriad_handler_sheds_total", "myriad_connections", "go_goroutines"} {
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^%s [1-9]`, name)).MatchString(text) {
			t.Errorf("no %s above 0 in the metrics:\n%s", name, text)
		}
	}
}

// get asks a server of HTTP.
func get(t *testing.T, url string) (status int, text string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	answer, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(all)
}

// No line is answered before it can be: one after the other, none in a stall.
func TestStall(t *testing.T) {
	const n = 60
	plan := stall.Plan{Capacity: 500, Stall: 50 * time.Millisecond, Every: 100 * time.Millisecond}
	for _, model := range myriad.Models() {
		s := serveHere(t, fmt.Sprintf("serve --app stall --stall %v --stall-every %v --stall-capacity %v --loops 1 --model %s", plan.Stall, plan.Every, plan.Capacity, model))
		found := regexp.MustCompile(`stall: epoch (\d+)ns\n`).FindStringSubmatch(s.stderr.String())
		if found == nil {
			t.Fatalf("stderr is %q, want a line with the epoch", s.stderr)
		}
		ns, err := strconv.ParseInt(found[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		epoch, c := time.Unix(0, ns), dial(t, s.addr)
		begin := time.Since(epoch)
		io.WriteString(c, strings.Repeat("one line\n", n))
		arrivals, ends := slices.Repeat([]time.Duration{begin}, n), make([]time.Duration, n)
		for i := range n {
			exchange(t, c, "", "one line\n")
			ends[i] = time.Since(epoch)
		}
		for i, took := range plan.Truth(arrivals) {
			if ends[i] < begin+took {
				t.Errorf("%s: line %d is answered at %v after the epoch, want not before %v", model, i, ends[i], begin+took)
			}
		}
	}
}

// A connection whose line finds no room to wait is closed.
func TestStallFull(t *testing.T) {
	c := dial(t, serveHere(t, "serve --app stall --stall 0s --stall-capacity 0.02 --drain 1ms").addr)
	go io.WriteString(c, strings.Repeat("\n", stall.MaxLines+1000))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v; want the end of the connection", n, err)
	}
}

func TestParseRequest(t *testing.T) {
	const get, host = "GET / HTTP/1.1\r\n", "Host: a\r\n"
	// fits is a head of exactly maxHead bytes.
	fits := get + host + "A: "
	fits += strings.Repeat("x", maxHead-len(fits)-len("\r\n\r\n")) + "\r\n\r\n"
	for _, c := range []struct {
		in   string
		want verdict
	}{
		{"", incomplete},
		{"\r\n\r", incomplete},
		{get + host + "\r", incomplete},
		{get + host + "\r\n", served},
		{"\r\n\r\n" + get + host + "\r\n", served},
		{"GET http://a/ HTTP/1.1\r\n" + host + "Connection: Keep-Alive\r\n\r\n", served},
		{get + host + "Content-Length: 0\r\n\r\n", served},
		{get + host + "Connection: upgrade , Close\r\n\r\n", servedLast},
		{"GET / HTTP/1.0\r\n\r\n", servedLast},
		{"GET / HTTP/1.0\r\nConnection: KEEP-ALIVE\r\n\r\n", servedKept},
		{"POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc", refused},
		{"HEAD / HTTP/1.1\r\n" + host + "\r\n", refused},
		{"GET / HTTP/2.0\r\n" + host + "\r\n", refused},
		{get + host + "Content-Length: 1\r\n\r\nx", refused},
		{get + host + "Transfer-Encoding: chunked\r\n\r\n", refused},
		{get + "\r\n", refused},
		{get + host + host + "\r\n", refused},
		{"GET / HTTP/1.1\nHost: a\n\n", refused},
		{"GET / HTTP/11\r\n\r\n", refused},
		{"ping\n", refused},
		{"\x16\x03\x01", refused},
		{fits, served},
		{fits[:len(fits)-1], incomplete},
		{strings.Replace(fits, "A: ", "A: x", 1), refused},
	} {
		h := &httpHello{}
		for range 2 { // the second time the head is known
			n, v := h.parse([]byte(c.in))
			if v != c.want || v != incomplete && v < servedLast && n != len(c.in) {
				t.Errorf("%.80q: verdict %d, %d bytes used; want %d", c.in, v, n, c.want)
			}
		}
	}
}

// FuzzParseRequest serves the same requests however the bytes are cut.
func FuzzParseRequest(f *testing.F) {
	one := "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	f.Add([]byte(one+one+"\r\n"+one), []byte{3, 40})
	f.Add([]byte("GET /x HTTP/1.0\r\nConnection: keep-alive\r\nA:b\r\n\r\nPOST / HTTP/1.1\r\n\r\n"), []byte{1, 1, 1, 1})
	f.Add([]byte(one+strings.Repeat("x", maxHead)), []byte{90, 200, 17})
	f.Add([]byte("GET / HTTP/1.0\nn:alive\r\nA:b\n\n\r\n\r\n"), []byte{1, 1, 1, 27})
	// verdicts feeds pieces as a connection would, and lists what is served.
	verdicts := func(pieces ...[]byte) (all []verdict) {
		h := &httpHello{}
		var kept []byte
		for _, p := range pieces {
			kept = append(kept, p...)
			for len(kept) > 0 {
				n, v := h.parse(kept)
				kept = kept[n:]
				if v == incomplete {
					break
				}
				if v == refused {
					return all
				}
				if all = append(all, v); v == servedLast {
					return all
				}
			}
		}
		return all
	}
	f.Fuzz(func(t *testing.T, in, cuts []byte) {
		var pieces [][]byte
		rest := in
		for _, n := range cuts {
			n := min(int(n), len(rest))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		whole, cut := verdicts(bytes.Clone(in)), verdicts(append(pieces, rest)...)
		if !slices.Equal(whole, cut) {
			t.Errorf("%q: verdicts %v as a whole, %v cut at %v", in, whole, cut, cuts)
		}
	})
}

// The answers to a pipeline come in order, each complete, with the date; what comes after
// stays open or ends as HTTP says.
func TestHTTP(t *testing.T) {
	const one = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, model := range myriad.Models() {
		s := serveHere(t, "serve --app http --model "+model)
		for send, statuses := range map[string]string{
			strings.Repeat(one, 40): strings.Repeat("200 ", 40),
			one + "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" + one: "200 200 end",
			one + "POST / HTTP/1.1\r\nHost: a\r\n\r\n" + one:                     "200 400 end",
		} {
			c := dial(t, s.addr)
			io.WriteString(c, send)
			in := bufio.NewReader(c)
			for _, want := range strings.Fields(statuses) {
				r, err := http.ReadResponse(in, nil)
				if want == "end" {
					if err == nil {
						t.Errorf("%s: %.60q: %s, want the end", model, send, r.Status)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%s: %.60q: %v", model, send, err)
				}
				text, _ := io.ReadAll(r.Body)
				date, err := http.ParseTime(r.Header.Get("Date"))
				if r.Status[:3] != want || err != nil || time.Since(date).Abs() > patience || want == "200" && string(text) != "Hello, World!" {
					t.Errorf("%s: %.60q: %s, %q, %v, %v; want %s", model, send, r.Status, text, date, err, want)
				}
			}
		}
	}
	h := &httpHello{}
	at := time.Unix(1767323045, 999e6)
	first := h.current(at)
	if h.current(at.Add(time.Microsecond)) != first || !bytes.Contains(h.current(at.Add(time.Millisecond)).text[refused], []byte("03:04:06 GMT")) {
		t.Error("the date of answers does not change with the second, and only then")
	}
}

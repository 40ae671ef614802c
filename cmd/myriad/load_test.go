package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/load"
)

// events reads a stream of JSON.
func events(t *testing.T, stream string) (list []load.Event) {
	t.Helper()
	for lines := json.NewDecoder(strings.NewReader(stream)); lines.More(); {
		var e load.Event
		if err := lines.Decode(&e); err != nil {
			t.Fatalf("event %d of %q: %v", len(list), stream, err)
		}
		list = append(list, e)
	}
	return list
}

// The line that is published works as it stands, but for its numbers.
func TestLoadPublishedLine(t *testing.T) {
	s := startServer(t, "serve", "--app", "lines")
	got := invoke(t, "load", "-c", "100", "--connect-rate=2000", "--duration=200ms", "-m", "ping\n", s.addr)
	if got.code != 0 || !strings.Contains(got.stdout, "100 of 100") {
		t.Errorf("exit code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
}

func TestLoadOut(t *testing.T) {
	s := startServer(t, "serve", "--app", "lines")
	file := filepath.Join(t.TempDir(), "run.jsonl")
	line := []string{"load", "-c", "5", "-T", "0.2", "--interval", "50ms", "-em", `ping\n`, s.addr}
	toFile := invoke(t, append(line, "--out", file)...)
	if toFile.code != 0 || !strings.Contains(toFile.stdout, "5 of 5") {
		t.Errorf("--out FILE: exit code %d, stdout %q, stderr %q; want the result for people too", toFile.code, toFile.stdout, toFile.stderr)
	}
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	streams := map[string]string{"--out FILE": string(written)}
	for _, flag := range []string{"--out=-", "--json"} {
		got := invoke(t, append(line, flag)...)
		streams[flag] = got.stdout
		if got.code != 0 {
			t.Errorf("%s: exit code %d, stderr %q", flag, got.code, got.stderr)
		}
	}
	for name, stream := range streams {
		list := events(t, stream)
		if len(list) == 0 {
			t.Errorf("%s: no events", name)
			continue
		}
		last := list[len(list)-1]
		if last.Phase != load.Done || last.Result == nil || last.Result.Answered == 0 {
			t.Errorf("%s: the last of %d events is %+v; want it to be done, with a result", name, len(list), last)
		}
	}
	if got := invoke(t, append(line, "--out", "/no/such/directory/run.jsonl")...); got.code != 2 || !strings.Contains(got.stderr, "--out: open /no/such") {
		t.Errorf("--out where there is no directory: exit code %d, stderr %q", got.code, got.stderr)
	}
}

// The events of an earlier run stay until there are all of a new one, and nothing is left
// beside them.
func TestLoadOutWhole(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "run.jsonl")
	for name, flags := range map[string]*resultFlags{"alone": {out: file}, "with a page": {out: file, html: filepath.Join(dir, "a.html")}} {
		if err := os.WriteFile(file, []byte("before"), 0o600); err != nil {
			t.Fatal(err)
		}
		reporter, err := flags.open(&cobra.Command{})
		if err != nil {
			t.Fatal(err)
		}
		reporter.observe(load.Event{Phase: load.Began})
		if got, err := os.ReadFile(file); string(got) != "before" {
			t.Errorf("%s: while it runs the file is %q, %v; want what was there", name, got, err)
		}
		if err := reporter.finish(nil); err != nil {
			t.Error(err)
		}
		if got, err := os.ReadFile(file); string(got) != "before" {
			t.Errorf("%s: after a run without a result the file is %q, %v; want what was there", name, got, err)
		}
		if left, err := os.ReadDir(dir); len(left) != 1 {
			t.Errorf("%s: left %v, %v; want the file alone", name, left, err)
		}
	}
}

// A URL is loaded by its protocol; a server of HTTP that gets something else is recognised.
func TestLoadURLs(t *testing.T) {
	s := startServer(t, "serve", "--app", "http")
	for target, says := range map[string]string{
		"http://" + s.addr + "/":  "",
		"tcp://" + s.addr:         "myriad: the server answers HTTP, and what is sent is not; use a URL such as http://" + s.addr + "/, --http",
		s.addr:                    "use a URL such as http://" + s.addr,
		"https://" + s.addr + "/": "tls",
		"ws://" + s.addr + "/":    "websocket",
	} {
		got := invoke(t, "load", "-c", "2", "--messages", "2", target)
		if (got.code == 0) != (says == "") || !strings.Contains(strings.ToLower(got.stderr), strings.ToLower(says)) {
			t.Errorf("%s: exit code %d, stderr %q; want %q", target, got.code, got.stderr, says)
		}
	}
}

func TestLoadMessageFile(t *testing.T) {
	s := startServer(t, "serve", "--app", "lines")
	dir := t.TempDir()
	write := func(name string, size int) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, append(bytes.Repeat([]byte{'\\'}, max(size-1, 0)), "\n"[:min(size, 1)]...), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, test := range []struct {
		path string
		code int
		says string
	}{
		{write("line", 20), 0, "20 bytes"},
		{write("empty", 0), 2, "has no bytes; expected 1 to 1048576"},
		{write("long", load.MaxMessage+1), 2, "has more; expected 1 to 1048576"},
		{filepath.Join(dir, "missing"), 2, "missing"},
		{dir, 2, "--message-file"},
	} {
		got := invoke(t, "load", "-c", "2", "--messages", "3", "-e", "-f", test.path, s.addr)
		if got.code != test.code || !strings.Contains(got.stdout+got.stderr, test.says) {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q; want %d and %q", test.path, got.code, got.stdout, got.stderr, test.code, test.says)
		}
	}
}

func TestLoadTLSAlias(t *testing.T) {
	cert, key := certFiles(t)
	s := startServer(t, "serve", "--app", "lines", "--tls-cert", cert, "--tls-key", key)
	if got := invoke(t, "load", "-c", "2", "--messages", "3", "--ssl", "--tls-ca", cert, s.addr); got.code != 0 || !strings.Contains(got.stdout, "TLS 1.3") {
		t.Errorf("--ssl: exit code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
}

func TestLoadHelp(t *testing.T) {
	got := invoke(t, "load", "--help")
	at := 0
	for _, part := range []string{
		"Usage:\n  myriad load", "Examples:\n  myriad load -c 10000 --connect-rate=2000 --duration=60s -m $'ping\\n' 127.0.0.1:9000\n",
		"\nConnections:\n", "--connections N", "\nTraffic:\n", "--message-rate N", "\nMessages:\n", "--ws PATH", "\nAnswers:\n", "--match RULE",
		"\nEncryption:\n", "\nResults:\n", "--out FILE", "\ntcpkali:\n", "--ssl is --tls",
	} {
		n := strings.Index(got.stdout[at:], part)
		if n < 0 {
			t.Fatalf("load --help does not say %q behind what came before:\n%s", part, got.stdout)
		}
		at += n
	}
	for _, hidden := range []string{"dump-one", "statsd"} {
		if strings.Contains(got.stdout, hidden) {
			t.Errorf("load --help shows %q, which is not there", hidden)
		}
	}
}

// encoded is the histogram of a result whose latencies are 1 to 1000 µs.
func encoded(t *testing.T) string {
	t.Helper()
	h := hdrhistogram.New(1, int64(time.Minute), 3)
	for n := 1; n <= 1000; n++ {
		h.RecordValue(int64(n) * 1000)
	}
	text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestWritePercents(t *testing.T) {
	var out bytes.Buffer
	result := &load.Result{Histogram: encoded(t), Latency: load.Latency{Count: 1000}}
	if err := writePercents(&out, result, []float64{62.5, 99.5}); err != nil || out.String() != "latency 62.5%  625µs\nlatency 99.5%  995µs\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
	out.Reset()
	if err := writePercents(&out, &load.Result{}, []float64{62.5}); err != nil || out.String() != "latency 62.5%  not measured\n" {
		t.Errorf("without a histogram: got %q, %v", out.String(), err)
	}
}

func TestLoadExpect(t *testing.T) {
	s := startServer(t, "serve", "--app", "lines")
	for _, test := range []struct {
		flags []string
		code  int
		out   []string
	}{
		{[]string{"--expect", "connected==2", "--expect", "errors==0"}, 0, nil},
		{[]string{"--expect", "connected==3", "--expect", "lost==0", "--expect", "answered>1M"}, 1, []string{"FAIL connected==3: 2\n", "FAIL answered>1M: 6\n", "2 of 3 expectations not met"}},
		{[]string{"--json", "--expect", "connected==3"}, 1, []string{"FAIL connected==3: 2\n"}},
		{[]string{"--expect", "joy>1"}, 2, []string{"--expect: ", `name "joy"; expected one of`}},
	} {
		got := invoke(t, append([]string{"load", "-c", "2", "--messages", "3", s.addr}, test.flags...)...)
		if got.code != test.code {
			t.Errorf("%q: exit code %d, want %d; stderr %q", test.flags, got.code, test.code, got.stderr)
		}
		for _, part := range test.out {
			if !strings.Contains(got.stdout+got.stderr, part) {
				t.Errorf("%q: stdout %q, stderr %q; want %q", test.flags, got.stdout, got.stderr, part)
			}
		}
		if len(test.out) == 0 && strings.Contains(got.stdout, "FAIL") {
			t.Errorf("%q: stdout %q; want no failure", test.flags, got.stdout)
		}
		if test.flags[0] == "--json" && strings.Contains(got.stdout, "FAIL") {
			t.Errorf("%q: %q is among the events", test.flags, "FAIL")
		}
	}
}

// The page has what the exit code says: a run that missed an expectation isn't clean.
func TestLoadExpectPage(t *testing.T) {
	s := startServer(t, "serve", "--app", "lines")
	path := filepath.Join(t.TempDir(), "run.html")
	for _, test := range []struct {
		expect, says, never string
		code                int
	}{
		{"connected==2", "The expectation is met.", "expectations not met", 0},
		{"connected==3", "1 of 1 expectations not met. connected==3: 2.", "A clean run", 1},
	} {
		got := invoke(t, "load", "-c", "2", "--messages", "3", "--html", path, "--expect", test.expect, s.addr)
		page, err := os.ReadFile(path)
		if got.code != test.code || err != nil || !strings.Contains(string(page), test.says) || strings.Contains(string(page), test.never) {
			t.Errorf("%s: exit code %d, %v; want %d, and a page with %q, without %q", test.expect, got.code, err, test.code, test.says, test.never)
		}
	}
}

package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/sample"
	"github.com/myriad-go/myriad/tools/load"
)

// parseLoadConfig is the configuration, as JSON, that a command line of load describes.
func parseLoadConfig(line ...string) (string, error) {
	cmd := &cobra.Command{Use: "load"}
	var f loadFlags
	f.addSettingFlagGroups(cmd, "Connections", "Traffic", "Messages", "Answers", "Encryption", "Results", "tcpkali")
	if err := cmd.ParseFlags(line); err != nil {
		return "", err
	}
	if err := f.buildConfigFromFlags(strings.NewReader(""), cmd.Flags().Args()); err != nil {
		return "", err
	}
	text, err := json.Marshal(f.cfg)
	return string(text), err
}

// Flags say what the keys of JSON do, by all their names.
func TestLoadConfig(t *testing.T) {
	for line, want := range map[string]string{
		"":                          ``,
		"-c10k --connect-rate=2000": `"connections":10000,"connect_rate":2000,`,
		"-T10 -c 5 -c 7":            `"connections":7,"duration":"10s",`,
		"--lifetime 30s --early":    `"early":true,"lifetime":"30s",`,
		"--channel-lifetime=0.1":    `"lifetime":"100ms",`,
		"--source-ip 127.0.0.1-127.0.0.2 --src 127.0.0.7": `"src":["127.0.0.1","127.0.0.2","127.0.0.7"],`,
		"--workers 3":               `"loops":3,`,
		"--rate 1k:100k":            `"rate":"1000:100000",`,
		"-r42 --arrivals=poisson":   `"message_rate":42,"arrivals":"poisson",`,
		`-m ping\n`:                 `"message":"ping\\n",`,
		`-em ping\n`:                `"message":"ping\n",`,
		`-em \{connection.uid}\n`:   `"message":"\\{connection.uid}\n",`,
		`-em a\\{b`:                 `"message":"a\\\\{b",`,
		`-e -m a --answer b\\{\n`:   `"message":"a","answer":"b\\{\n",`,
		`-e -1 hello\r\n -m a`:      `"message":"a","first_message":"hello\r\n",`,
		`--match delimiter:\r\n -e`: `"match":"delimiter:\\r\\n",`,
		`--latency-marker \r -e`:    `"match":"marker:\\x0d",`,
		"--websocket=/chat -H A:b":  `"ws":"/chat","header":["A: b"],`,
		"--ssl --tls-insecure":      `"tls":true,"tls_insecure":true,`,
		"--latency-connect --latency-first-byte --latency-percentiles 95,99": ``,
	} {
		got, err := parseLoadConfig(append(strings.Fields(line), "127.0.0.1:9000")...)
		if want = strings.TrimSuffix(`{"target":"127.0.0.1:9000",`+want, ",") + "}"; err != nil || got != want {
			t.Errorf("%s: %v\n got %s\nwant %s", line, err, got, want)
		}
	}
	if got, err := parseLoadConfig("-H", "A:b", "ws://127.0.0.1:9000/"); err != nil || !strings.Contains(got, `"header":["A: b"]`) {
		t.Errorf("a header for a URL of a WebSocket: %s, %v", got, err)
	}
	path := filepath.Join(t.TempDir(), "run.json")
	if err := os.WriteFile(path, []byte(`{"target": "http://127.0.0.1:9000/x", "connections": "2k", "src": ["127.0.0.1"], "duration": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := parseLoadConfig("--config", path, "-c", "5", "--src", "127.0.0.2")
	if want := `{"target":"127.0.0.1:9000","connections":5,"src":["127.0.0.2"],"duration":"1s","message":"GET /x HTTP/1.1\r\nHost: 127.0.0.1:9000\r\n\r\n","match":"http"}`; err != nil || got != want {
		t.Errorf("with a file: %v\n got %s\nwant %s", err, got, want)
	}
}

func TestParsePercentiles(t *testing.T) {
	if got, err := parsePercentiles("50, 95,99.5,100"); !slices.Equal(got, []float64{50, 95, 99.5, 100}) || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	most := strings.Repeat("99,", maxPercentiles-1) + "99"
	if got, err := parsePercentiles(most); len(got) != maxPercentiles || err != nil {
		t.Errorf("as many as there can be: got %d, %v", len(got), err)
	}
	for _, text := range []string{"", "0", "101", "p99", "99,", "nan", most + ",99"} {
		if got, err := parsePercentiles(text); err == nil {
			t.Errorf("%.10q: got %v; want an error", text, got)
		}
	}
}

// What is above the rate that a search has found, and why other rates did not keep the goal.
func TestSearchLines(t *testing.T) {
	steps := []load.Step{{Rate: 1000, Kept: true}, {Rate: 4000}, {Rate: 1050, Limited: true}, {Rate: 1050, Unsent: 7}}
	goal := load.Goal{Percentile: 99, Under: 10}
	for want, found := range map[string]load.Found{
		"5% more did not":                    {Steps: steps},
		"at 5% more the generator was late":  {Steps: steps[:3]},
		"the search went no further":         {Steps: steps[:1], Most: true},
		"found 1000/s on 2 connections, 500": {Steps: steps},
	} {
		found.Rate, found.Goal = 1000, goal
		if got := formatFoundRate(&load.Result{Connected: 2, Search: &found}); !strings.Contains(got, want) {
			t.Errorf("%q, want %q in it", got, want)
		}
	}
	for i, want := range []string{"p99 0s, kept", "fell behind", "the generator was late", "7 never sent or answered"} {
		if got := formatSearchStep(&steps[i], goal); !strings.Contains(got, want) {
			t.Errorf("%q, want %q in it", got, want)
		}
	}
}

// Command lines of load against servers of this program.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	message := filepath.Join(dir, "message")
	failOnError(t, os.WriteFile(message, []byte("nineteen backslash\\\n"), 0o600))
	lines, site := serveLine(t, "serve --app lines"), serveLine(t, "serve --app http")
	sha, plain := serveLine(t, "serve --app sha"), serveLine(t, "plain --app lines")
	for line, c := range map[string]struct {
		code int
		says []string
	}{
		"-c 20 --duration 100ms -m ping\n " + lines.addr:                                  {0, []string{"20 of 20"}},
		"-c 2 --messages 3 -e -f " + message + " " + lines.addr:                           {0, []string{"20 bytes"}},
		"-c 2 --messages 3 " + plain.addr:                                                 {0, []string{"2 of 2"}},
		"-c 2 --messages 1 -m ping\n " + sha.addr:                                         {1, []string{"ping"}},
		"-c 20 --pipeline 16 --messages 50 --http " + site.addr:                           {0, []string{"1,000"}},
		"-c 2 --messages 2 http://" + site.addr + "/":                                     {0, nil},
		"-c 2 --messages 2 " + site.addr:                                                  {1, []string{"the server speaks HTTP, but the messages are not HTTP; use a URL such as http://" + site.addr + "/, or --http"}},
		"-c 2 --messages 2 https://" + site.addr + "/":                                    {1, []string{"TLS"}},
		"-c 2 --messages 2 ws://" + site.addr + "/":                                       {1, []string{"WebSocket"}},
		"-c 2 --messages 3 --latency-percentiles 62.5 " + lines.addr:                      {0, []string{"latency 62.5%  "}},
		"-c 2 --messages 3 --expect connected==2 --expect errors==0 " + lines.addr:        {0, []string{"ok   connected==2: 2\n"}},
		"-c 2 --messages 3 --expect connected==3 --expect lost==0 " + lines.addr:          {1, []string{"FAIL connected==3: 2\n", "1 of 2 expectations not met"}},
		"-c 2 --messages 3 --html " + dir + "/a.html --expect connected==3 " + lines.addr: {1, []string{"FAIL connected==3"}},
		"-c 2 --messages 3 --html /dev/full " + lines.addr:                                {1, []string{"/dev/full is not written"}},
		"-c 2 --messages 3 --metrics 127.0.0.1:0 --csv " + dir + "/a.csv " + lines.addr:   {0, []string{"metrics on http://127.0.0.1:"}},
	} {
		args := append([]string{"load"}, strings.Split(line, " ")...)
		got := invokeCommand(t, args...)
		if got.code != c.code {
			t.Errorf("load %s: exit code %d, want %d: %s", line, got.code, c.code, got.output())
		}
		for _, part := range c.says {
			if !strings.Contains(got.output(), part) {
				t.Errorf("load %s: it does not say %q: %s", line, part, got.output())
			}
		}
	}
	if page, err := os.ReadFile(dir + "/a.html"); err != nil || !strings.Contains(string(page), "1 of 1 expectations not met. connected==3: 2.") {
		t.Errorf("the page does not say what was not met: %v", err)
	}
}

// parseEvents reads a stream of JSON.
func parseEvents(t *testing.T, stream string) (list []load.Event) {
	t.Helper()
	for lines := json.NewDecoder(strings.NewReader(stream)); lines.More(); {
		var e load.Event
		failOnError(t, lines.Decode(&e))
		list = append(list, e)
	}
	return list
}

// Events go to a file or to standard output, from flags or a configuration, and expectations
// are not among them; report reads them again.
func TestLoadEvents(t *testing.T) {
	s := serveLine(t, "serve --app lines")
	dir := t.TempDir()
	file, config := filepath.Join(dir, "run.jsonl"), filepath.Join(dir, "config.json")
	failOnError(t, os.WriteFile(config, []byte(`{"connections": 3, "messages": 7, "target": "`+s.addr+`"}`), 0o600))
	line := "load --config " + config + " --expect answered>21"
	streams := map[string]string{}
	for _, flag := range []string{"--out=-", "--json", "--out=" + file} {
		got := invokeLine(t, line+" "+flag)
		if got.code != 1 || !strings.Contains(got.output(), "FAIL answered>21: 21\n") {
			t.Errorf("%s: exit code %d, stderr %q", flag, got.code, got.stderr)
		}
		streams[flag] = got.stdout
	}
	written, err := os.ReadFile(file)
	failOnError(t, err)
	streams["--out="+file] = string(written)
	for name, stream := range streams {
		list := parseEvents(t, stream)
		if last := list[len(list)-1]; last.Phase != load.Done || last.Result == nil || last.Result.Answered != 21 {
			t.Errorf("%s: the last of %d events is %+v; want 21 answers", name, len(list), last)
		}
	}
	out := filepath.Join(dir, "out.json")
	if got := invokeLine(t, "report --format json --out "+out+" --expect answered==21 "+file); got.code != 0 {
		t.Errorf("report: %s", got.stderr)
	}
	text, err := os.ReadFile(out)
	var r load.Result
	if err != nil || json.Unmarshal(text, &r) != nil || r.Target != s.addr {
		t.Errorf("report: %v, %s", err, text)
	}
}

// Metrics are served while a run goes on.
func TestLoadMetrics(t *testing.T) {
	var stdout, stderr lockedBuffer
	cmd := &cobra.Command{}
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	r, err := (&outputFlags{metrics: "127.0.0.1:0", quiet: true}).newReporter(cmd)
	if err != nil {
		t.Fatal(err)
	}
	_, url, _ := strings.Cut(strings.TrimSuffix(stderr.String(), "/metrics\n"), "metrics on ")
	for _, step := range []struct {
		event load.Event
		ready int
	}{
		{load.Event{Phase: load.Began, Plan: &load.Plan{Targets: []string{"a:1"}, Model: "epoll", Connections: 9}}, http.StatusOK},
		{load.Event{Phase: load.Progress, Snapshot: load.Snapshot{Open: 7}, Interval: &load.Interval{Open: 7, Counts: load.Counts{Answered: 5}}}, http.StatusOK},
		{load.Event{Phase: load.Done, Snapshot: load.Snapshot{Open: 7}}, http.StatusServiceUnavailable},
	} {
		r.notifyObservers(step.event)
		if status, _ := httpGet(t, url+"/readyz"); status != step.ready {
			t.Errorf("%v: /readyz is %d, want %d", step.event.Phase, status, step.ready)
		}
	}
	_, text := httpGet(t, url+"/metrics")
	for _, want := range []string{"myriad_load_connections 7\n", "myriad_load_messages_answered_total 5\n", "go_goroutines "} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics lacks %q:\n%s", want, text)
		}
	}
	if err := r.writeResultAndCommitFiles(nil); err != nil {
		t.Error(err)
	}
	if _, err := http.Get(url); err == nil {
		t.Error("metrics are served after the run")
	}
}

// The events of an earlier run stay until there are all of a new one, and nothing is left
// beside them.
func TestOutputsAreWhole(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "run.jsonl")
	if err := os.WriteFile(file, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := (&outputFlags{out: file, html: filepath.Join(dir, "a.html"), quiet: true}).newReporter(&cobra.Command{})
	if err != nil {
		t.Fatal(err)
	}
	r.notifyObservers(load.Event{Phase: load.Began})
	if err := r.writeResultAndCommitFiles(nil); err != nil {
		t.Error(err)
	}
	got, _ := os.ReadFile(file)
	if left, _ := os.ReadDir(dir); string(got) != "before" || len(left) != 1 {
		t.Errorf("after a run without a result the file is %q, beside %v; want what was there, alone", got, left)
	}
}

// load speaks TLS with both kinds of server of this program, and says who is not to be trusted.
func TestLoadTLS(t *testing.T) {
	skipIfShort(t)
	cert, key := writeCertificate(t)
	for _, serve := range []string{"plain", "serve"} {
		s := serveLine(t, serve+" --app lines --tls-cert "+cert+" --tls-key "+key)
		for flags, says := range map[string]string{
			"--ssl --tls-ca " + cert: "TLS 1.3, ",
			"--tls --tls-ca " + cert + " --tls-server-name there --pipeline 16": "10 of 10",
			"--tls --tls-insecure": "10 of 10",
			"--tls":                "10 × TLS handshake: ",
			"--tls --tls-ca " + cert + " --tls-server-name elsewhere": "elsewhere",
			"": "",
		} {
			got := invokeLine(t, "load -c 10 --messages 20 "+flags+" "+s.addr)
			good := strings.Contains(says, "10 of") || strings.Contains(says, "TLS 1.3")
			if (got.code == 0) != good || !strings.Contains(got.stdout, says) {
				t.Errorf("%s, load %s: exit code %d, want %q: %s", serve, flags, got.code, says, got.output())
			}
		}
	}
}

// hold says how many connections it holds, verifies them, and ends when it is interrupted.
func TestHold(t *testing.T) {
	s := serveLine(t, "serve --app lines")
	for line, c := range map[string]struct {
		code  int
		says  string
		times int
	}{
		"--duration 100ms": {0, "held: 20 connections after ", 1},
		"--check=3 --duration 100ms --expect checked==40": {0, "20 of 20 connections answered", 2},
		"--broadcast dusk --duration 100ms":               {1, "broadcast: 20 of 20 connections did not receive it", 1},
	} {
		got := invokeLine(t, "hold -n 20 "+line+" "+s.addr)
		if got.code != c.code || strings.Count(got.output(), c.says) < c.times {
			t.Errorf("hold %s: exit code %d, %s; want %q", line, got.code, got.output(), c.says)
		}
	}
	p := serveLine(t, "serve --app push --heartbeat 100ms")
	hold := testkit.Start(t, newCommandProcess(t, "hold", "-n", "5", "--heartbeat", "ping", "--heartbeat-answer", "pong", "--broadcast", "noon\n",
		"--expect", "heartbeats>=5", "--json", p.addr))
	hold.WaitForOutput(`"heartbeats":`)
	sendAndExpect(t, dial(t, p.addr), "!noon\n", "noon\n")
	hold.WaitForOutput(`"phase":"heard"`)
	hold.Signal(os.Interrupt)
	if code := hold.ExitCode(); code != 0 || !strings.Contains(hold.Output.String(), `"heard":5,"again":0`) {
		t.Errorf("%d, %s", code, hold.Output)
	}
}

// What memory a held connection takes is worked out from what was used before and then.
func TestHeldMemory(t *testing.T) {
	var out strings.Builder
	h := &heldConnsReport{printf: (&runReporter{textResult: true, stdout: &out}).printTextUnlessJSON}
	interval := func(stage string, open, resident int64) load.Event {
		return load.Event{Phase: load.Progress, Interval: &load.Interval{
			Stage: stage, Open: open, Generator: load.Usage{Process: sample.Process{RSS: resident}}, Server: &load.Usage{Process: sample.Process{RSS: 2 * resident}},
		}}
	}
	h.printMemoryPerConn() // nothing was held
	for _, e := range []load.Event{
		{Phase: load.Began, Plan: &load.Plan{Generator: &load.Usage{Process: sample.Process{RSS: 1 << 20}}, Server: &load.Usage{Process: sample.Process{RSS: 1 << 20}}}},
		interval("window", 1024, 2<<20),
		interval("close", 3, 3<<20),
	} {
		h.recordHeldConnsEvent(e)
	}
	h.printMemoryPerConn()
	want := "generator  1024 bytes of user memory a connection; resident 2.0 MiB in all, 1.0 MiB before\nserver     3072 bytes of user memory a connection; resident 4.0 MiB in all, 1.0 MiB before\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

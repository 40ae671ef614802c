package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
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
	f.addFlagGroupsWithAliasesAndHelp(cmd, "Connections", "Traffic", "Messages", "Answers", "Encryption", "Results", "tcpkali")
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
	testkit.RequireNoError(t, os.WriteFile(path, []byte(`{"target": "http://127.0.0.1:9000/x", "connections": "2k", "src": ["127.0.0.1"], "duration": 1}`), 0o600))
	got, err := parseLoadConfig("--config", path, "-c", "5", "--src", "127.0.0.2")
	if want := `{"target":"127.0.0.1:9000","connections":5,"src":["127.0.0.2"],"duration":"1s","message":"GET /x HTTP/1.1\r\nHost: 127.0.0.1:9000\r\n\r\n","match":"http"}`; err != nil || got != want {
		t.Errorf("with a file: %v\n got %s\nwant %s", err, got, want)
	}
}

// What is above the rate that a search has found, and why other rates did not keep the goal.
func TestSearchLines(t *testing.T) {
	steps := []load.Step{{Rate: 1000, Kept: true}, {Rate: 4000}, {Rate: 1050, Limited: true}, {Rate: 1050, Unsent: 7}}
	goal := load.Goal{Percentile: 99, Under: 10}
	for want, found := range map[string]load.Found{
		"5% more did not":                   {Steps: steps},
		"at 5% more the generator was late": {Steps: steps[:3]},
		"the search went no further":        {Steps: steps[:1], Most: true},
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
	testkit.RequireNoError(t, os.WriteFile(message, []byte("nineteen backslash\\\n"), 0o600))
	lines, site := serveLine(t, "serve --app lines").addr, serveLine(t, "serve --app http").addr
	sha, plain := serveLine(t, "serve --app sha").addr, serveLine(t, "plain --app lines").addr
	cert, key := testkit.WriteCertificate(t)
	withTLS := " --app lines --tls-cert " + cert + " --tls-key " + key
	secured, plainSecured := serveLine(t, "serve"+withTLS).addr, serveLine(t, "plain"+withTLS).addr
	for line, c := range map[string]struct {
		code int
		says []string
	}{
		"-c 20 --duration 100ms -m ping\n " + lines:                             {0, []string{"20 of 20"}},
		"-c 2 --messages 3 -e -f " + message + " " + lines:                      {0, []string{"20 bytes"}},
		"-c 2 --messages 3 " + plain:                                            {0, []string{"2 of 2"}},
		"-c 2 --messages 1 -m ping\n " + sha:                                    {1, []string{"ping"}},
		"-c 20 --pipeline 16 --messages 50 --http " + site:                      {0, []string{"1,000"}},
		"-c 2 --messages 2 http://" + site + "/":                                {0, nil},
		"-c 2 --messages 2 " + site:                                             {1, []string{"use a URL such as http://" + site + "/, or --http"}},
		"-c 2 --messages 2 https://" + site + "/":                               {1, []string{"TLS"}},
		"-c 2 --messages 2 ws://" + site + "/":                                  {1, []string{"WebSocket"}},
		"-c 2 --messages 3 --ssl --tls-ca " + cert + " " + secured:              {0, []string{"TLS 1.3, "}},
		"-c 2 --messages 3 --tls --tls-insecure " + plainSecured:                {0, []string{"2 of 2"}},
		"-c 2 --messages 3 --tls " + secured:                                    {1, []string{"2 × TLS handshake: "}},
		"-c 2 --messages 3 --latency-percentiles 62.5 " + lines:                 {0, []string{"latency 62.5%  "}},
		"-c 2 --messages 3 --expect connected==2 " + lines:                      {0, []string{"ok   connected==2: 2\n"}},
		"-c 2 --messages 3 --html " + dir + "/a --expect connected==3 " + lines: {1, []string{"FAIL connected==3: 2\n", "1 of 1 expectations"}},
		"-c 2 --messages 3 --html /dev/full " + lines:                           {1, []string{"cannot write /dev/full"}},
		"-c 2 --messages 3 --metrics 127.0.0.1:0 --csv " + dir + "/b " + lines:  {0, []string{"metrics on http://127.0.0.1:"}},
	} {
		invokeCommand(t, append([]string{"load"}, strings.Split(line, " ")...)...).checkOutcome(t, "load "+line, c.code, c.says...)
	}
	if page, err := os.ReadFile(dir + "/a"); err != nil || !strings.Contains(string(page), "1 of 1 expectations were not met. connected==3: 2.") {
		t.Errorf("the page does not say what was not met: %v", err)
	}
}

func lastResult(t *testing.T, stream string) *load.Result {
	t.Helper()
	var last load.Event
	for events := json.NewDecoder(strings.NewReader(stream)); events.More(); {
		last = load.Event{}
		testkit.RequireNoError(t, events.Decode(&last))
	}
	return last.Result
}

// Events go to a file or to standard output, from flags or a configuration, and expectations
// are not among them; report reads them again.
func TestLoadEvents(t *testing.T) {
	s := serveLine(t, "serve --app lines")
	dir := t.TempDir()
	file, config, out := filepath.Join(dir, "run.jsonl"), filepath.Join(dir, "config.json"), filepath.Join(dir, "out.json")
	testkit.RequireNoError(t, os.WriteFile(config, []byte(`{"connections": 3, "messages": 7, "target": "`+s.addr+`"}`), 0o600))
	for _, flag := range []string{"--out=-", "--json", "--out=" + file} {
		got := invokeLine(t, "load --config "+config+" --expect answered>21 "+flag)
		got.checkOutcome(t, flag, 1, "FAIL answered>21: 21\n")
		if flag == "--out="+file {
			text, err := os.ReadFile(file)
			testkit.RequireNoError(t, err)
			got.stdout = string(text)
		}
		if r := lastResult(t, got.stdout); r == nil || r.Answered != 21 {
			t.Errorf("%s: the last event has %+v; want 21 answers", flag, r)
		}
	}
	invokeLine(t, "report --format json --out "+out+" --expect answered==21 "+file).checkOutcome(t, "report", 0)
	text, err := os.ReadFile(out)
	var r load.Result
	if err != nil || json.Unmarshal(text, &r) != nil || r.Target != s.addr {
		t.Errorf("report: %v, %s", err, text)
	}
}

// Metrics are served while a run goes on. A run without a result leaves the events of an earlier one as they
// were, and nothing beside them.
func TestReporter(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "run.jsonl")
	testkit.RequireNoError(t, os.WriteFile(file, []byte("before"), 0o600))
	var stderr testkit.Buffer
	cmd := &cobra.Command{}
	cmd.SetErr(&stderr)
	r, err := (&outputFlags{metrics: "127.0.0.1:0", out: file, html: filepath.Join(dir, "a.html"), quiet: true}).startReporter(cmd)
	testkit.RequireNoError(t, err)
	_, url, _ := strings.Cut(strings.TrimSuffix(stderr.String(), "/metrics\n"), "metrics on ")
	for _, step := range []struct {
		event load.Event
		ready int
	}{
		{load.Event{Phase: load.Began, Plan: &load.Plan{Targets: []string{"a:1"}, Model: "epoll", Connections: 9}}, http.StatusOK},
		{load.Event{Phase: load.Progress, Interval: &load.Interval{Open: 7, Counts: load.Counts{Answered: 5}}}, http.StatusOK},
		{load.Event{Phase: load.Done, Snapshot: load.Snapshot{Open: 7}}, http.StatusServiceUnavailable},
	} {
		r.raiseGOMAXPROCSOnPlanAndNotifyObservers(step.event)
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
	testkit.RequireNoError(t, r.writeResultAndCheckExpectations(nil))
	if _, err := http.Get(url); err == nil {
		t.Error("metrics are served after the run")
	}
	got, _ := os.ReadFile(file)
	if left, _ := os.ReadDir(dir); string(got) != "before" || len(left) != 1 {
		t.Errorf("after a run without a result the file is %q, beside %v; want what was there, alone", got, left)
	}
}

// hold says how many connections it holds, verifies them, and ends when it is interrupted.
func TestHold(t *testing.T) {
	s := serveLine(t, "serve --app lines")
	for line, c := range map[string]struct {
		code int
		says string
	}{
		"--duration 100ms": {0, "held: 20 connections after "},
		"--check=3 --duration 100ms --expect checked==40": {0, "20 of 20 connections answered"},
		"--broadcast dusk --duration 100ms":               {1, "broadcast: 20 of 20 connections did not receive it"},
	} {
		invokeLine(t, "hold -n 20 "+line+" "+s.addr).checkOutcome(t, "hold "+line, c.code, c.says)
	}
	p := serveLine(t, "serve --app push --heartbeat 100ms")
	hold := testkit.Start(t, newCommandProcess(t, "hold", "-n", "5", "--heartbeat", "ping", "--heartbeat-answer", "pong",
		"--broadcast", "noon\n", "--expect", "heartbeats>=5", "--json", p.addr))
	hold.WaitForOutput(`"heartbeats":`)
	testkit.Dial(t, p.addr).ExchangeLine("!noon", "noon")
	hold.WaitForOutput(`"phase":"heard"`)
	hold.Signal(os.Interrupt)
	if code := hold.WaitExitCode(); code != 0 || !strings.Contains(hold.Output.String(), `"heard":5,"again":0`) {
		t.Errorf("%d, %s", code, hold.Output)
	}
}

// What memory a held connection takes is worked out from what was used before and then.
func TestHeldMemory(t *testing.T) {
	var out strings.Builder
	h := &heldConnsReport{printf: (&runReporter{textResult: true, stdout: &out}).printTextUnlessJSON}
	usage := func(resident int64) load.Usage { return load.Usage{Process: sample.Process{RSS: resident}} }
	interval := func(stage string, open, resident int64) load.Event {
		server := usage(2 * resident)
		return load.Event{Phase: load.Progress, Interval: &load.Interval{Stage: stage, Open: open, Generator: usage(resident), Server: &server}}
	}
	h.printMemoryPerConnOfBothSides() // nothing was held
	before := usage(1 << 20)
	h.recordOrPrintHeldConns(load.Event{Phase: load.Began, Plan: &load.Plan{Generator: &before, Server: &before}})
	h.recordOrPrintHeldConns(interval("window", 1024, 2<<20))
	h.recordOrPrintHeldConns(interval("close", 3, 3<<20))
	h.printMemoryPerConnOfBothSides()
	want := "generator  1024 bytes of user memory a connection; resident 2.0 MiB in all, 1.0 MiB before\n" +
		"server     3072 bytes of user memory a connection; resident 4.0 MiB in all, 1.0 MiB before\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

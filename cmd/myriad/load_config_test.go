package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/load"
)

// configOf is the configuration, as JSON, that a command line of load describes.
func configOf(line ...string) (string, error) {
	cmd := &cobra.Command{Use: "load"}
	var f loadFlags
	f.add(cmd, "Connections", "Traffic", "Messages", "Answers", "Encryption", "Results", "tcpkali")
	if err := cmd.ParseFlags(line); err != nil {
		return "", cmd.FlagErrorFunc()(cmd, err)
	}
	if err := f.complete(strings.NewReader(""), cmd.Flags().Args()); err != nil {
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
		"--workers 3":                `"loops":3,`,
		"--rate 1k:100k":             `"rate":"1000:100000",`,
		"-r42 --arrivals=poisson":    `"message_rate":42,"arrivals":"poisson",`,
		"-r @10ms --messages 0.001k": ``,
		"--channel-bandwidth-upstream 8kbps --channel-bandwidth-downstream 1MBps": `"send_limit":1000,"receive_limit":1000000,`,
		`-m ping\n`:                            `"message":"ping\\n",`,
		`-em ping\n`:                           `"message":"ping\n",`,
		`-em \{connection.uid%10}\n`:           `"template":"\\{connection.uid%10}\n",`,
		`-m a\\{b`:                             `"message_base64":"YVx7Yg==",`,
		`-em a\\{b`:                            `"message_base64":"YVx7Yg==",`,
		`-e -m a --answer b\\{\n`:              `"message":"a","answer_base64":"Ylx7Cg==",`,
		`-e -1 hello\r\n -m a`:                 `"message":"a","first_message":"hello\r\n",`,
		`--match delimiter:\r\n -e`:            `"match":"delimiter:\\r\\n",`,
		`--latency-marker \r -e`:               `"match":"marker:\\x0d",`,
		"--websocket=/chat -H A:b --ws-binary": `"ws":"/chat","ws_binary":true,"header":["A: b"],`,
		"--ssl --tls-insecure":                 `"tls":true,"tls_insecure":true,`,
		"--latency-connect --latency-first-byte --latency-percentiles 95,99": ``,
	} {
		got, err := configOf(append(strings.Fields(line), "127.0.0.1:9000")...)
		if strings.Contains(line, "-r @") {
			if err == nil || !strings.Contains(err.Error(), "--messages is given together with --message-rate") {
				t.Errorf("%s: %v", line, err)
			}
			continue
		}
		if want = "{" + want + `"target":"127.0.0.1:9000"}`; err != nil || got != want {
			t.Errorf("%s: %v\n got %s\nwant %s", line, err, got, want)
		}
	}
}

// A file has the configuration; flags go before it.
func TestLoadConfigFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.json")
	if err := os.WriteFile(path, []byte(`{"target": "http://127.0.0.1:9000/x", "connections": "2k", "src": ["127.0.0.1"], "duration": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := configOf("--config", path, "-c", "5", "--src", "127.0.0.2")
	if want := `{"connections":5,"src":["127.0.0.2"],"duration":"1s","message":"GET /x HTTP/1.1\r\nHost: 127.0.0.1:9000\r\n\r\n","http":true,"target":"127.0.0.1:9000"}`; err != nil || got != want {
		t.Errorf("%v\n got %s\nwant %s", err, got, want)
	}
	if err := os.WriteFile(path, []byte(`{"conections": 5}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, says := range map[string]string{
		"--config " + path:               `unknown key "conections"; expected one of connections,`,
		"--config " + path + "-none":     "--config: open ",
		"--config " + filepath.Dir(path): "is a directory",
		"--config - a:1":                 "EOF; expected an object",
		"--config /dev/zero a:1":         "which has more; expected at most 4194304 bytes",
	} {
		if _, err := configOf(strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v; want an error with %q", line, err, says)
		}
	}
	s := startServer(t, "serve", "--app", "lines")
	cmd := command(t, "load", "--config", "-", "--json")
	cmd.Stdin = strings.NewReader(`{"connections": 3, "messages": 7, "target": "` + s.addr + `"}`)
	out, err := cmd.Output()
	if list := events(t, string(out)); err != nil || len(list) == 0 || list[len(list)-1].Result.Answered != 21 {
		t.Errorf("from standard input: %v, %s", err, out)
	}
}

func TestLoadConfigErrors(t *testing.T) {
	for line, says := range map[string]string{
		"":                                    "no target is given; expected HOST:PORT or unix:PATH",
		"-c many a:1":                         `--connections is "many"; expected a whole number above 0`,
		"--rate 1 -r 1 a:1":                   "--message-rate is given together with --rate; expected one of the two",
		"-m a -f b a:1":                       "--message-file is given together with --message",
		"-m a -m b a:1":                       "--message is given 2 times; expected once",
		"--rate 1 --flood a:1":                "--flood is given together with --rate; expected one of the two",
		"--arrivals poisson a:1":              "rate of 0 messages a second; expected more than 0",
		"--ramp 0:10:1s -c 11 a:1":            "--ramp is to 10, and --connections 11; expected the same",
		"--message= a:1":                      `--message is ""; expected 1 to 1048576 bytes`,
		`-em a\q a:1`:                         `--message: "\\q"; expected one of \n`,
		`-m \{nothing} a:1`:                   `--message is "\\{nothing}"; `,
		`-e -m a --answer \{message.uid} a:1`: "--answer is \"\\\\{message.uid}\", which has an expression; expected none",
		"--answer a --match none a:1":         "expected",
		"--http --ws a:1":                     "--http is given together with --ws; expected one of the two",
		"--tls-insecure --tls-ca x a:1":       "expected one of the two",
		"--latency-percentiles 101 a:1":       `--latency-percentiles is "101"; expected percentiles above 0`,
		"--nonsense a:1":                      "--nonsense; expected a flag that",
	} {
		_, err := configOf(strings.Fields(line)...)
		if _, ok := err.(usageError); !ok || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v; want a usage error with %q", line, err, says)
		}
	}
}

func TestParsePercentiles(t *testing.T) {
	if got, err := parsePercentiles("50, 95,99.5,100"); !slices.Equal(got, []float64{50, 95, 99.5, 100}) || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	most := strings.Repeat("99,", maxPercentiles-1) + "99"
	for _, text := range []string{"", "0", "101", "p99", "99,", "nan", "1e1", most + ",99"} {
		if got, err := parsePercentiles(text); err == nil {
			t.Errorf("%.10q: got %v; want an error", text, got)
		}
	}
	if got, err := parsePercentiles(most); len(got) != maxPercentiles || err != nil {
		t.Errorf("as many as there can be: got %d, %v", len(got), err)
	}
}

// What is above the rate that a search has found, and why other rates did not keep the goal.
func TestWriteFound(t *testing.T) {
	steps := []load.Step{{Rate: 1000, Kept: true}, {Rate: 4000}, {Rate: 1050, Limited: true}, {Rate: 1050, Unsent: 7}}
	goal := load.Goal{Percentile: 99, Under: 10}
	for want, found := range map[string]load.Found{
		"5% more did not":                    {Steps: steps},
		"at 5% more the generator was late":  {Steps: steps[:3]},
		"the search went no further":         {Steps: steps[:1], Most: true},
		"found 1000/s on 2 connections, 500": {Steps: steps},
	} {
		var out strings.Builder
		found.Rate, found.Goal = 1000, goal
		if err := writeFound(&out, &load.Result{Connected: 2, Search: &found}); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%v, %q, want %q in it", err, out.String(), want)
		}
	}
	for i, want := range []string{"p99 0s, kept", "fell behind", "the generator was late", "7 never sent or answered"} {
		if got := stepLine(&steps[i], goal); !strings.Contains(got, want) {
			t.Errorf("%q, want %q in it", got, want)
		}
	}
}

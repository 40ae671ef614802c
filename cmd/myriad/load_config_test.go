package main

import (
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/load"
)

// configOf is the configuration that a command line of load describes.
func configOf(files messageTexts, line ...string) (load.Config, error) {
	cmd := &cobra.Command{Use: "load"}
	var f loadFlags
	f.add(cmd)
	if err := cmd.ParseFlags(line); err != nil {
		return load.Config{}, cmd.FlagErrorFunc()(cmd, err)
	}
	return f.config(cmd.Flags().Changed, files, cmd.Flags().Args())
}

func addrs(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func TestLoadConfig(t *testing.T) {
	type config = load.Config
	for line, want := range map[string]config{
		"":                                  {},
		"-c 10000 --connect-rate=2000":      {Connections: 10_000, ConnectRate: 2000},
		"-c10k --duration=60s":              {Connections: 10_000, Duration: time.Minute},
		"-T10 --connect-timeout 0.5":        {Duration: 10 * time.Second, ConnectTimeout: 500 * time.Millisecond},
		"--ramp 0:100k:60s":                 {Connections: 100_000, Ramp: load.Ramp{To: 100_000, Over: time.Minute}},
		"--ramp 10:100:1m -c 100":           {Connections: 100, Ramp: load.Ramp{From: 10, To: 100, Over: time.Minute}},
		"--ramp 60s -c 7":                   {Connections: 7, Ramp: load.Ramp{Over: time.Minute}},
		"--lifetime 30s --early":            {Lifetime: 30 * time.Second, Early: true},
		"--channel-lifetime=0.1":            {Lifetime: 100 * time.Millisecond},
		"--src 10.0.0.1 --src 10.0.0.3":     {Sources: addrs("10.0.0.1", "10.0.0.3")},
		"--source-ip 10.0.0.1-10.0.0.2":     {Sources: addrs("10.0.0.1", "10.0.0.2")},
		"--sndbuf 64ki --rcvbuf 1M":         {Socket: load.Socket{SendBuffer: 65_536, ReceiveBuffer: 1_000_000}},
		"--nagle on":                        {Socket: load.Socket{Delay: true}},
		"--nagle=off --close rst":           {},
		"--close fin":                       {Graceful: true},
		"--model epoll -w 2":                {Model: "epoll", Loops: 2},
		"--workers 3":                       {Loops: 3},
		"--rate 50k":                        {Rate: load.Rate{PerSecond: 50_000}},
		"--rate 1k:100k --arrivals poisson": {Rate: load.Rate{PerSecond: 1000, To: 100_000, Poisson: true}},
		"-r 10 --sine 0.5:10s":              {Rate: load.Rate{PerSecond: 10, Each: true, Swing: 0.5, Period: 10 * time.Second}},
		"-r42 --arrivals=constant":          {Rate: load.Rate{PerSecond: 42, Each: true}},
		"--message-rate @10ms":              {Rate: load.Rate{Each: true}},
		"--flood":                           {Flood: true},
		"--think 10ms --pipeline 16":        {Think: 10 * time.Millisecond, Pipeline: 16},
		"--messages 1M":                     {Messages: 1_000_000},
		"--send-limit 1M":                   {SendLimit: 1_000_000},
		"--channel-bandwidth-upstream 8kbps --channel-bandwidth-downstream 1MBps": {SendLimit: 1000, ReceiveLimit: 1_000_000},
		"--warmup 1s --hold-before 2s --hold-after 3s --drain 4s": {
			Warmup: time.Second, HoldBefore: 2 * time.Second, HoldAfter: 3 * time.Second, Drain: 4 * time.Second,
		},
		`-m ping`:                    {Message: []byte("ping")},
		`-m ping\n`:                  {Message: []byte(`ping\n`)},
		`-em ping\n`:                 {Message: []byte("ping\n")},
		`-m \{connection.uid}`:       {Template: `\{connection.uid}`},
		`-em \{connection.uid%10}\n`: {Template: "\\{connection.uid%10}\n"},
		`-m a\\{b`:                   {Message: []byte(`a\{b`)},
		`-em a\\{b`:                  {Message: []byte(`a\{b`)},
		`-e -m a --answer a\\{b`:     {Message: []byte("a"), Answer: []byte(`a\{b`)},
		`-m a --answer \{b`:          {Message: []byte("a"), Answer: []byte(`\{b`)},
		`-e -1 hello\r\n -m a`:       {First: "hello\r\n", Message: []byte("a")},
		`--first-message a`:          {First: "a"},
		`-m a --answer b\n -e`:       {Message: []byte("a"), Answer: []byte("b\n")},
		`--match delimiter:\r\n -e`:  {Match: `delimiter:\r\n`},
		`--latency-marker PONG`:      {Match: "marker:PONG"},
		`--latency-marker \r -e`:     {Match: `marker:\x0d`},
		`--latency-marker \r`:        {Match: `marker:\\r`},
		"--unprompted --size 100":    {Unprompted: true, Size: 100},
		"--http --seed 7":            {HTTP: true, Seed: 7},
		"--ws":                       {WebSocket: &load.WebSocket{Path: "/"}},
		"--websocket=/chat":          {WebSocket: &load.WebSocket{Path: "/chat"}},
		"--ws --ws-binary -H A:b":    {WebSocket: &load.WebSocket{Path: "/", Binary: true, Header: http.Header{"A": {"b"}}}},
		"--interval 100ms":           {ProgressEvery: 100 * time.Millisecond},
		"--latency-connect --latency-first-byte --latency-percentiles 95,99": {},
		"--json --ssl": {}, // TLS is set by complete
	} {
		want.Target = "127.0.0.1:9000"
		got, err := configOf(messageTexts{}, append(strings.Fields(line), want.Target)...)
		if err != nil {
			t.Errorf("%s: %v", line, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", line, got, want)
		}
	}
}

func TestLoadConfigTargets(t *testing.T) {
	for _, c := range []struct {
		line, target, also, path string
	}{
		{"a:1", "a:1", "", ""},
		{"a:1 b:2 unix:/run/c", "a:1", "b:2 unix:/run/c", ""},
		{"--ws a:1", "a:1", "", "/"},
		{"--ws a:1/chat?x=1 b:2/other", "a:1", "b:2", "/chat?x=1"},
		{"--ws=/here a:1/there", "a:1", "", "/here"},
		{"--ws unix:/run/c", "unix:/run/c", "", "/"},
	} {
		got, err := configOf(messageTexts{}, strings.Fields(c.line)...)
		path := ""
		if got.WebSocket != nil {
			path = got.WebSocket.Path
		}
		if err != nil || got.Target != c.target || strings.Join(got.Also, " ") != c.also || path != c.path {
			t.Errorf("%s: got %q, also %q, path %q, %v", c.line, got.Target, got.Also, path, err)
		}
	}
}

// A URL is an address, a protocol and a path.
func TestLoadConfigURLs(t *testing.T) {
	get := func(path, host string) []byte {
		return []byte("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
	}
	for line, want := range map[string]load.Config{
		"tcp://a:1":                     {Target: "a:1"},
		"TCP://[::1]:1/":                {Target: "[::1]:1"},
		"tcp://a:1 b:2":                 {Target: "a:1", Also: []string{"b:2"}},
		"http://a":                      {Target: "a:80", HTTP: true, Message: get("/", "a")},
		"http://a:1/x?y=z#here":         {Target: "a:1", HTTP: true, Message: get("/x?y=z", "a:1")},
		"http://a:1/x http://b/x":       {Target: "a:1", Also: []string{"b:80"}, HTTP: true, Message: get("/x", "a:1")},
		"http://[::1]/a%20b":            {Target: "[::1]:80", HTTP: true, Message: get("/a%20b", "[::1]")},
		"--match http http://a/x":       {Target: "a:80", Match: "http", Message: get("/x", "a")},
		"-m x http://a":                 {Target: "a:80", HTTP: true, Message: []byte("x")},
		"https://a/x":                   {Target: "a:443", HTTP: true, Message: get("/x", "a")},
		"ws://a":                        {Target: "a:80", WebSocket: &load.WebSocket{Path: "/"}},
		"ws://a:1/chat?x=1":             {Target: "a:1", WebSocket: &load.WebSocket{Path: "/chat?x=1"}},
		"--ws-binary -H A:b ws://a:1/c": {Target: "a:1", WebSocket: &load.WebSocket{Path: "/c", Binary: true, Header: http.Header{"A": {"b"}}}},
		"wss://a/chat":                  {Target: "a:443", WebSocket: &load.WebSocket{Path: "/chat"}},
		"--http a":                      {Target: "a:80", HTTP: true},
		"--http --tls a":                {Target: "a:443", HTTP: true},
		"--ws a/chat":                   {Target: "a:80", WebSocket: &load.WebSocket{Path: "/chat"}},
	} {
		if got, err := configOf(messageTexts{}, strings.Fields(line)...); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\n got %+v\nwant %+v", line, err, got, want)
		}
	}
}

func TestLoadConfigFiles(t *testing.T) {
	got, err := configOf(messageTexts{message: `a\{b}\n`, first: `\{message.uid}`}, "-e", "-f", "x", "a:1")
	if err != nil || string(got.Message) != `a\{b}\n` || got.Template != "" || got.First != `\{message.uid}` {
		t.Errorf("a message's file: got %q, template %q, first %q, %v; want the bytes as they are", got.Message, got.Template, got.First, err)
	}
	if _, err := configOf(messageTexts{first: `\{hello}`}, "--first-message-file", "x", "a:1"); err == nil || !strings.Contains(err.Error(), "--first-message-file: ") {
		t.Errorf("a first message's file that is no template: %v", err)
	}
	got, err = configOf(messageTexts{template: "ping\n"}, "--template-file", "x", "a:1")
	if err != nil || string(got.Message) != "ping\n" || got.Template != "" {
		t.Errorf("a template's file without expressions: got %q, template %q, %v", got.Message, got.Template, err)
	}
	got, err = configOf(messageTexts{template: `\{connection.uid}`}, "--template-file", "x", "a:1")
	if err != nil || got.Message != nil || got.Template != `\{connection.uid}` {
		t.Errorf("a template's file: got %q, template %q, %v", got.Message, got.Template, err)
	}
}

func TestLoadConfigGoal(t *testing.T) {
	for line, want := range map[string]goal{
		"--rate 10": {}, "-r @10ms": {10 * time.Millisecond, 99}, "--rate @2s,p50": {2 * time.Second, 50},
	} {
		cmd := &cobra.Command{Use: "load"}
		var f loadFlags
		f.add(cmd)
		if err := cmd.ParseFlags(strings.Fields(line)); err != nil || f.goal() != want {
			t.Errorf("%s: got %v, %v; want %v", line, f.goal(), err, want)
		}
	}
}

func TestLoadConfigErrors(t *testing.T) {
	for line, says := range map[string]string{
		"":                                         "no target is given; expected HOST:PORT or unix:PATH",
		"-c many a:1":                              `--connections is "many"; expected a whole number above 0`,
		"-c 0 a:1":                                 `--connections is "0"; expected a whole number above 0`,
		"-c -5 a:1":                                `--connections is "-5"; expected a whole number above 0`,
		"--rate 0 a:1":                             `--rate is "0"; expected messages a second above 0`,
		"-r @never a:1":                            `--message-rate is "@never"; expected messages a second`,
		"--ramp 5:1:1s a:1":                        `--ramp is "5:1:1s"; expected a time such as 60s`,
		"--ramp 0:10:1s -c 11 a:1":                 "--ramp goes to 10 and --connections is 11; expected the same",
		"--sine 2:1s --rate 1 a:1":                 `--sine is "2:1s"; expected SHARE:PERIOD`,
		"--arrivals random a:1":                    `--arrivals is "random"; expected constant or poisson`,
		"--arrivals poisson a:1":                   "--arrivals is given without --rate or --message-rate; expected both",
		"--sine 0.5:1s a:1":                        "--sine is given without --rate",
		"--rate 1 -r 1 a:1":                        "--rate and --message-rate are given; expected one of the two",
		"--rate 1 --flood a:1":                     "--rate and --flood are given",
		"--think 1s --rate 1 a:1":                  "--rate and --think are given",
		"--rate 1 --messages 1 a:1":                "--rate and --messages are given",
		"-m a -f b a:1":                            "--message and --message-file are given",
		"-m a --size 10 a:1":                       "--message and --size are given",
		"-m a -m b a:1":                            "--message is given 2 times; expected once",
		"-1 a -1 b a:1":                            "--first-message is given 2 times",
		"-1 a --first-message-file b a:1":          "--first-message and --first-message-file are given",
		"--message= a:1":                           `--message is ""; expected 1 to 1048576 bytes`,
		"-m a --answer= a:1":                       `--answer is ""; expected 1 to`,
		`-em a\q a:1`:                              `--message: "\\q"; expected one of \n`,
		`-m \{nothing} a:1`:                        "--message: \\{nothing} at byte 0: unknown expression",
		`-1 \{nothing} a:1`:                        "--first-message: \\{nothing} at byte 0: unknown expression",
		`-e -m a --answer \{message.uid} a:1`:      "--answer is \"\\\\{message.uid}\", which has an expression; expected none",
		"--answer a --match none a:1":              "--answer and --match are given",
		"--latency-marker a --match b a:1":         "--match and --latency-marker are given",
		"--http --ws a:1":                          "--http and --ws are given",
		"--ws=chat a:1":                            `--ws is "chat"; expected a path that begins with a slash`,
		"-H a:b a:1":                               "--header is given without --ws; expected both",
		"--ws -H nothing a:1":                      `--header is "nothing"; expected NAME: VALUE`,
		"--ws-binary a:1":                          "--ws-binary is given without --ws",
		"--nagle maybe a:1":                        `--nagle is "maybe"; expected on or off`,
		"--close softly a:1":                       `--close is "softly"; expected fin or rst`,
		"--src there a:1":                          `--src is "there"; expected an IP address of this machine, a range`,
		"--src ::/0 a:1":                           `--src is "::/0"; expected at most 65536 addresses`,
		"--src ::/112 --src ::1 a:1":               `--src is "::1"; expected at most 65536 addresses`,
		"--send-limit 0 a:1":                       `--send-limit is "0"; expected bytes a second`,
		"--lifetime 0 a:1":                         `--lifetime is "0"; expected a time above 0`,
		"--duration soon a:1":                      `--duration is "soon"; expected a time above 0, such as 1.5s`,
		"--seed -1 a:1":                            `--seed is "-1"; expected a whole number of 0 to`,
		"--latency-percentiles 101 a:1":            `--latency-percentiles is "101"; expected percentiles above 0`,
		"--nonsense a:1":                           "--nonsense; expected a flag that",
		"--verbose a:1":                            "--verbose is an option of tcpkali that load does not have; expected --out",
		"-vvv a:1":                                 "--verbose is an option of tcpkali",
		"-d a:1":                                   "--dump-one is an option of tcpkali",
		"-l 8080":                                  `--listen-port is an option of tcpkali that load does not have; expected a server, such as "myriad serve`,
		"--message-stop x a:1":                     "--message-stop is an option of tcpkali",
		"--statsd --statsd-host=localhost":         "expected --metrics ADDR",
		"--message-rate 1 --write-combine=off a:1": "expected --pipeline 1",
	} {
		_, err := configOf(messageTexts{}, strings.Fields(line)...)
		if _, ok := err.(usageError); !ok || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v; want a usage error with %q", line, err, says)
		}
	}
}

// No option of tcpkali is unknown: it is a flag, another name of one, or says
// what to use instead.
func TestTcpkaliOptions(t *testing.T) {
	cmd := &cobra.Command{Use: "load"}
	new(loadFlags).add(cmd)
	for _, name := range strings.Fields(`channel-lifetime channel-bandwidth-upstream channel-bandwidth-downstream
		connections connect-rate connect-timeout delay-send duration dump-one dump-one-in dump-one-out dump-all
		dump-all-in dump-all-out first-message first-message-file header latency-connect latency-first-byte
		latency-marker latency-marker-skip latency-percentiles listen-port listen-mode message message-file
		message-rate message-stop nagle rcvbuf server sndbuf source-ip ssl ssl-cert ssl-key statsd statsd-host
		statsd-port statsd-namespace unescape-message-args verbose workers write-combine message-marker websocket
		ws statsd-latency-window`) {
		if cmd.Flags().Lookup(name) == nil {
			t.Errorf("--%s is unknown", name)
		}
	}
	for _, short := range strings.Split("dce1mfrlvwTH", "") {
		if cmd.Flags().ShorthandLookup(short) == nil {
			t.Errorf("-%s is unknown", short)
		}
	}
}

// A rule's text has printable characters only.
func TestRuleText(t *testing.T) {
	for text, want := range map[string]string{"PONG": "PONG", "\r\n": `\x0d\x0a`, `a\b`: `a\\b`, "\xff\x7f~ ": `\xff\x7f~ `} {
		if got := ruleText(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

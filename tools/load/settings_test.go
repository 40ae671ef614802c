package load

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
)

// TestConfigJSON checks that each setting can be read, and that written JSON is read as the same Config.
func TestConfigJSON(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		testkit.RequireNoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for text, want := range map[string]Config{
		``: {},
		`"connections": 10000, "connect_rate": "2k", "connect_timeout": 0.5`: {Connections: 10_000, ConnectRate: 2000, ConnectTimeout: 500 * time.Millisecond},
		`"ramp": "0:100k:60s"`:                                                {Ramp: Ramp{To: 100_000, Over: time.Minute}},
		`"src": "10.0.0.1-10.0.0.2"`:                                          {Sources: parseAddrs("10.0.0.1", "10.0.0.2")},
		`"src": ["10.0.0.0/30", "10.0.0.7"]`:                                  {Sources: parseAddrs("10.0.0.1", "10.0.0.2", "10.0.0.7")},
		`"close": "fin", "nagle": "on", "sndbuf": "64ki", "rcvbuf": "1M"`:     {Graceful: true, Socket: Socket{Delay: true, SendBuffer: 65_536, ReceiveBuffer: 1_000_000}},
		`"rate": "1k:100k", "arrivals": "poisson"`:                            {Rate: Rate{PerSecond: 1000, To: 100_000, Poisson: true}},
		`"message_rate": 0.5`:                                                 {Rate: Rate{PerSecond: 0.5, Each: true}},
		`"rate": "@10ms"`:                                                     {Rate: Rate{Goal: Goal{99, 10 * time.Millisecond}}},
		`"message_rate": "@2s,p99.9"`:                                         {Rate: Rate{Each: true, Goal: Goal{99.9, 2 * time.Second}}},
		`"flood": true, "size": 100`:                                          {Flood: true, Size: 100},
		`"think": "10ms", "pipeline": 16, "early": true, "lifetime": "30s"`:   {Think: 10 * time.Millisecond, Pipeline: 16, Early: true, Lifetime: 30 * time.Second},
		`"duration": "2d", "warmup": 1, "hold_before": "2s", "hold_after": 3`: {Duration: 48 * time.Hour, Warmup: time.Second, HoldBefore: 2 * time.Second, HoldAfter: 3 * time.Second},
		`"drain": "4s", "interval": "100ms", "seed": 18446744073709551615`:    {Drain: 4 * time.Second, ProgressEvery: 100 * time.Millisecond, Seed: 1<<64 - 1},
		`"message": "10", "answer": "\\{b"`:                                   {Message: "10", Answer: `\{b`},
		`"message": "\\{connection.uid}\n", "first_message": "hello\n"`:       {Message: "\\{connection.uid}\n", First: "hello\n"},
		`"message_base64": "/wA="`:                                            {Message: "\xff\x00"},
		`"message_file": "` + write("m", `a\{b}\n`) + `"`:                     {Message: `a\\{b}\n`},
		`"template_file": "` + write("t", "ping\n") + `"`:                     {Message: "ping\n"},
		`"first_message_file": "` + write("f", `\{message.uid}`) + `"`:        {First: `\{message.uid}`},
		`"match": "delimiter:\\r\\n", "unprompted": true`:                     {Match: `delimiter:\r\n`, Unprompted: true},
		`"latency_marker": "\r\\"`:                                            {Match: `marker:\x0d\\`},
		`"http": true`:                                                        {Match: matchHTTP},
		`"ws": true, "header": ["A: b", "A: c"]`:                              {WebSocket: &WebSocket{Path: "/", Header: http.Header{"A": {"b", "c"}}}},
		`"tls": true, "tls_ca": "x", "tls_server_name": "y"`:                  {TLS: &TLS{CAFile: "x", ServerName: "y"}},
		`"hold": true, "check": true, "heartbeat": "ping"`:                    {Hold: true, Check: 1000, Heartbeat: "ping\n"},
		`"pubsub": "redis", "topics": 7, "publishers": 2, "slow": 3`:          {PubSub: &PubSub{Protocol: "redis", Topics: 7, Publishers: 2, Slow: 3}},
		`"target": "wss://a/chat"`:                                            {Target: "a:443", TLS: &TLS{}, WebSocket: &WebSocket{Path: "/chat"}},
	} {
		var got Config
		if err := json.Unmarshal([]byte("{"+text+"}"), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\n got %s\nwant %s", text, err, marshalConfig(got), marshalConfig(want))
			continue
		}
		written, err := json.Marshal(got)
		var again Config
		if err == nil {
			err = json.Unmarshal(written, &again)
		}
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%s: written as %s, %v, and again as %s", text, written, err, marshalConfig(again))
		}
	}
}

// TestConfigComplete checks that no field is omitted when a configuration is written.
func TestConfigComplete(t *testing.T) {
	full := Config{Target: "a:1", Also: []string{"b:1"}, Sources: parseAddrs("10.0.0.1")}
	fillEmptyFields(reflect.ValueOf(&full).Elem())
	full.Ramp = Ramp{From: 1, To: 7, Over: time.Second}
	full.Heartbeat, full.HeartbeatAnswer, full.Broadcast = "a\n", "b\n", "c\n"
	full.WebSocket.Path, full.WebSocket.Header, full.TLS.Config = "/x", http.Header{"A": {"b"}}, nil
	full.Rate.Goal = Goal{}
	written := testkit.Must(json.Marshal(full))(t)
	var got Config
	if err := json.Unmarshal(written, &got); err != nil || !reflect.DeepEqual(got, full) {
		t.Errorf("%s, %v, and again %s", written, err, marshalConfig(got))
	}
}

func TestSettingTags(t *testing.T) {
	names := make(map[string]bool)
	for _, s := range Settings() {
		if names[s.Name] {
			t.Errorf("two settings are called %s", s.Name)
		}
		names[s.Name] = true
	}
	for _, s := range settings {
		for _, list := range []string{s.tag.Get("not"), s.tag.Get("needs")} {
			for name := range strings.SplitSeq(list, ",") {
				if name != "" && !names[name] {
					t.Errorf("%s: there is no setting %s", s.Name, name)
				}
			}
		}
		for _, limit := range []string{"min", "max"} {
			if text := s.tag.Get(limit); text != "" && s.numberFromTag(limit, -1) < 0 {
				t.Errorf("%s: the %s is %q; expected a number", s.Name, limit, text)
			}
		}
		if standard := s.tag.Get("default"); standard != "" && s.parseListOrSingleAndSetField(new(Config), standard) != nil {
			t.Errorf("%s: the default %q can't be read", s.Name, standard)
		}
		if s.Group != "" && (s.Help == "" || s.Bare == "" && !strings.Contains(s.Help, "`")) {
			t.Errorf("%s: the help is %q; expected some that names the value", s.Name, s.Help)
		}
	}
}

var update = flag.Bool("update", false, "write the table of settings into docs/load.md anew")

func TestDocument(t *testing.T) {
	const file, begin, end = "../../docs/load.md", "<!-- settings, by go test -run Document -update -->\n", "<!-- end of settings -->\n"
	text, err := os.ReadFile(file)
	testkit.RequireNoError(t, err)
	before, rest, found := strings.Cut(string(text), begin)
	table, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no lines %q and %q", file, begin, end)
	}
	want := formatSettingsTable()
	if *update {
		err = os.WriteFile(file, []byte(before+begin+want+end+after), 0o644)
	} else if table != want {
		err = errors.New("the table of settings is not that of the tags; expected it after go test -run Document -update")
	}
	testkit.ExpectNoError(t, err)
}

func formatSettingsTable() string {
	out := "| setting | limits | combinations |\n|---|---|---|\n"
	for _, s := range settings {
		if s.Name != s.field || s.Group == "" {
			continue
		}
		var others []string
		for _, o := range settings {
			if s.excludes(&o) && !slices.Contains(others, "`"+o.field+"`") {
				others = append(others, "`"+o.Name+"`")
			}
		}
		limits, rules := "", ""
		if most := s.tag.Get("max"); most != "" {
			limits = cmp.Or(s.tag.Get("min"), "1") + " to " + most
		}
		if needs := s.tag.Get("needs"); needs != "" {
			rules = "needs `" + needs + "`; "
		}
		if others != nil {
			rules += "excludes " + strings.Join(others, ", ")
		}
		if limits+rules != "" {
			out += "| `" + s.Name + "` | " + limits + " | " + strings.TrimSuffix(rules, "; ") + " |\n"
		}
	}
	return out
}

func marshalConfig(c Config) string {
	text, err := json.Marshal(c)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func fillEmptyFields(v reflect.Value) {
	for i := range v.NumField() {
		f := v.Field(i)
		switch {
		case !f.CanSet() || !f.IsZero():
		case f.CanInt():
			f.SetInt(7)
		case f.CanUint():
			f.SetUint(7)
		case f.CanFloat():
			f.SetFloat(7)
		case f.Kind() == reflect.String:
			f.SetString("x")
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		case f.Kind() == reflect.Struct:
			fillEmptyFields(f)
		case f.Kind() == reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
			fillEmptyFields(f.Elem())
		}
	}
}

// TestSettingErrors checks that each wrong configuration is refused before anything is done, with an error that names
// the setting and what was expected. The few cases without an error are valid extremes.
func TestSettingErrors(t *testing.T) {
	large := filepath.Join(t.TempDir(), "large")
	testkit.RequireNoError(t, os.WriteFile(large, make([]byte, MaxMessage+1), 0o600))
	for text, says := range map[string]string{
		`"size": 1048576, "pipeline": 64`:                                                           "",
		`"message": "x", "answer": "y"`:                                                             "",
		`"target": "[::1]:9000", "src": "::1"`:                                                      "",
		`"target": "localhost:http", "src": "::1"`:                                                  "",
		`"pubsub": "nats", "topics": 100, "size": 48`:                                               "",
		`"hold": true, "check": 1048576, "heartbeat": "ping", "broadcast": "all", "ramp": "0:5:1s"`: "",

		`"conections": 1`:                     `unknown key "conections"; expected one of target, also, connections, connect_rate`,
		`"connections": "many"`:               `connections is "many"; expected a whole number above 0`,
		`"connections": 0`:                    `connections is "0"; expected a whole number above 0`,
		`"connections": [1]`:                  `connections is an array with an element that is not a string; expected strings only`,
		`"connections": false`:                `connections is "false"; expected a whole number`,
		`"connections": ["1", "2"]`:           `connections is given 2 times; expected once`,
		`"connections": null`:                 `connections is null or an object; expected`,
		`"rate": "1k:"`:                       `rate is "1k:"; expected messages a second`,
		`"rate": "@10ms,p100"`:                `rate is "@10ms,p100"; expected messages`,
		`"rate": 1, "message_rate": 1`:        `message_rate is given together with --rate; expected one of the two`,
		`"message": "a", "message_file": "b"`: `message_file is given together with --message`,
		`"ramp": "5:1:1s"`:                    `ramp is "5:1:1s"; expected a time such as 60s`,
		`"duration": "999d"`:                  `duration is "999d"; expected a time above 0`,
		`"arrivals": "random"`:                `arrivals is "random"; expected constant or poisson`,
		`"message": ""`:                       `message is ""; expected 1 to 1048576 bytes`,
		`"message": "\\{nothing}"`:            `unknown expression`,
		`"message_base64": "", "message": ""`: `expected base64, and no key message`,
		`"tls_ca_base64": "eA=="`:             `unknown key "tls_ca_base64"`,
		`"message_file": "/none"`:             `no such file`,
		`"message_file": "` + large + `"`:     `is too large; expected 1 to 1048576 bytes`,
		`"message_file": "/dev/null"`:         `file /dev/null is empty; expected 1 to`,
		`"ws": "chat"`:                        `ws is "chat"; expected a path that begins with a slash`,
		`"header": "nothing"`:                 `header is "nothing"; expected NAME: VALUE`,
		`"flood": "maybe"`:                    `flood is "maybe"; expected true or false`,
		`"src": "there"`:                      `src is "there"; expected an IP address of this machine`,
		`"src": ["::/112", "::1"]`:            `src is "::1"; expected at most 65536 addresses`,
		`"heartbeat": "\n"`:                   `expected a line that is not empty`,
		`"target": "", "also": ["a:1"]`:       `also is given without target`,
		`"target": "a:9000", "also": ["b"]`:   `target is "b"; expected HOST:PORT`,

		`"target": ""`:                                                `target is ""; expected host:port`,
		`"target": "unix:"`:                                           "expected unix: and a path of 1 to 107 bytes",
		`"target": "unix:/x", "src": "::1"`:                           `--src is given for the unix socket "/x"; expected no`,
		`"src": "::1"`:                                                "expected both to be IPv4 or both IPv6",
		`"target": ":9000", "src": "::1"`:                             "expected both to be IPv4 or both IPv6",
		`"connections": 1073741824`:                                   "--connections is 1073741824; expected 1 to 67108864",
		`"size": 1`:                                                   "--size is 1; expected 2 to 1048576",
		`"drain": "31d"`:                                              "--drain is 744h0m0s; expected 0s to 720h0m0s",
		`"model": "magic"`:                                            `unknown I/O model "magic"; expected one of auto`,
		`"tls": true, "tls_ca": "/none"`:                              "--tls-ca: open /none",
		`"ws": "/", "header": "A: b\u0001"`:                           "expected no control characters",
		`"http": true, "size": 7`:                                     "--size is 7 together with a message; expected either a size or a message",
		`"message": "x", "size": 7`:                                   "--size is given together with --message; expected one of the two",
		`"rate": 1, "flood": true`:                                    "--flood is given together with --rate",
		`"hold": true, "check": 1, "lifetime": "1s"`:                  "--check is given together with --lifetime",
		`"check": 1`:                                                  "--check is given without hold; expected both",
		`"answer": "y"`:                                               "--answer is given without --message; expected both",
		`"rate": "1:1G"`:                                              "--rate is 1e+09 messages a second at the end; expected more than 0",
		`"ahead": 64`:                                                 "--ahead is 64 bytes of messages of 64 bytes; expected less",
		`"ahead": 1, "message": "\\{connection.uid}"`:                 "expected constant messages",
		`"size": 1048576, "pipeline": 65`:                             "expected at most 67108864 bytes in flight on a connection",
		`"connections": 1000000, "pipeline": 1000`:                    "expected at most 268435456 messages in flight",
		`"connections": 10, "ramp": "11:20:1s"`:                       "--ramp ends at 20 and --connections is 10; expected the same",
		`"early": true, "hold_after": "1s"`:                           "--hold-before or --hold-after; expected flags from only one",
		`"http": true, "message": "x", "answer": "y"`:                 "--match is given together with --answer",
		`"http": true, "ws": "/"`:                                     "none or frames with --ws",
		`"flood": true, "match": "bytes:1"`:                           "expected none with --flood",
		`"flood": true, "message": "\\{connection.uid}"`:              "expected a message without expressions",
		`"match": "none"`:                                             "a closed loop waits for answers",
		`"match": "frames"`:                                           "expected --ws with it",
		`"match": "unheard"`:                                          `rule "unheard"; expected delimiter:TEXT`,
		`"pubsub": "x"`:                                               `--pubsub is "x"; expected redis or nats or ws`,
		`"pubsub": "nats", "topics": 101`:                             "--topics is 101; expected 1 to 100, the number of --connections",
		`"pubsub": "nats", "publishers": 1000, "connections": 300000`: "--publishers is 1000 with 300000 subscribers; expected at most",
		`"pubsub": "nats", "size": 47`:                                "--size is 47; expected 48 to 1048576 with --pubsub",
		`"hold": true, "broadcast": "a\nb"`:                           `--broadcast is "a\nb\n"; expected a line of 2 to 4096 bytes`,
		`"hold": true, "broadcast": "` + strings.Repeat("x", MaxLine) + `"`: "expected a line of 2 to 4096 bytes",
		`"hold": true, "heartbeat": "x", "broadcast": "x"`:                  "expected different lines",
		`"rate": "@1s", "duration": "50ms"`:                                 "--duration is 50ms for each rate of a search; expected 100ms to",
		`"rate": "@1s", "duration": "9s"`:                                   "expected 10s or more, to detect a growing queue",
		`"rate": "@1s", "warmup": "1s"`:                                     "--warmup, --early, --ramp or --lifetime is given with a search",
		`"rate": "@1s", "match": "none"`:                                    "a search for a rate requires answers",
	} {
		c := Config{Target: "127.0.0.1:9000"}
		if strings.HasPrefix(text, `"target"`) {
			c.Target = ""
		}
		err := json.Unmarshal([]byte("{"+text+"}"), &c)
		switch {
		case err == nil && says == "":
			err = c.Validate()
		case err == nil:
			_, err = Run(t.Context(), c)
		}
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v; want an error with %q", text, err, says)
		}
	}
	testkit.ExpectError(t, "an array", json.Unmarshal([]byte("[]"), new(Config)), "expected a JSON object")
	// Configurations that no file or flag can express.
	for says, c := range map[string]Config{
		"--connections is -1; expected 1 to":     {Connections: -1},
		"--message-rate is 0 messages":           {Rate: Rate{Each: true}},
		"--ramp is 101 connections at the start": {Ramp: Ramp{From: 101, Over: 1}},
		"the zero netip.Addr":                    {Sources: []netip.Addr{{}}},
		"--answer is 1048577 bytes":              {Message: "x", Answer: strings.Repeat("x", MaxMessage+1)},
		"--heartbeat is \"ping\"; expected":      {Hold: true, Heartbeat: "ping"},
		"goal is -1s":                            {Rate: Rate{Goal: Goal{Under: -time.Second}}},
		"percentile is 100":                      {Rate: Rate{Goal: Goal{Percentile: 100, Under: time.Second}}},
		"with a search":                          {Rate: Rate{PerSecond: 1, Goal: Goal{Under: time.Second}}},
		"port of target":                         {Target: "127.0.0.1:nosuchport"},
		"RLIMIT_NOFILE":                          {Connections: 64 << 20},
	} {
		if c.Connections == 64<<20 && sock.CheckDescriptorLimit(c.Connections) == nil {
			continue // any number is allowed here
		}
		c.Target = cmp.Or(c.Target, "127.0.0.1:9000")
		if r, err := Run(t.Context(), c); r != nil || err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error with %q", err, says)
		}
	}
}

// TestSetTargets parses URLs: an address, a protocol and a path.
func TestSetTargets(t *testing.T) {
	get := func(path, host string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
	}
	ws := func(path string) *WebSocket { return &WebSocket{Path: path} }
	for _, test := range []struct {
		before  Config
		targets string
		want    Config
	}{
		{Config{}, "a:1 b:2 unix:/run/c", Config{Target: "a:1", Also: []string{"b:2", "unix:/run/c"}}},
		{Config{}, "TCP://[::1]:1/ b:2", Config{Target: "[::1]:1", Also: []string{"b:2"}}},
		{Config{}, "http://a:1/x?y=z#here http://b/x?y=z", Config{Target: "a:1", Also: []string{"b:80"}, Match: matchHTTP, Message: get("/x?y=z", "a:1")}},
		{Config{}, "http://[::1]/a%20b", Config{Target: "[::1]:80", Match: matchHTTP, Message: get("/a%20b", "[::1]")}},
		{Config{Match: "http"}, "http://a/x", Config{Target: "a:80", Match: "http", Message: get("/x", "a")}},
		{Config{Message: "x"}, "http://a", Config{Target: "a:80", Match: matchHTTP, Message: "x"}},
		{Config{}, "https://a/x", Config{Target: "a:443", TLS: &TLS{}, Match: matchHTTP, Message: get("/x", "a")}},
		{Config{WebSocket: &WebSocket{Header: http.Header{"A": {"b"}}}}, "ws://a:1/c", Config{Target: "a:1", WebSocket: &WebSocket{Path: "/c", Header: http.Header{"A": {"b"}}}}},
		{Config{Match: matchHTTP, TLS: &TLS{}}, "a", Config{Target: "a:443", TLS: &TLS{}, Match: matchHTTP}},
		{Config{WebSocket: ws("/")}, "a/chat b/other", Config{Target: "a:80", Also: []string{"b:80"}, WebSocket: ws("/chat")}},
		{Config{WebSocket: ws("/here")}, "a:1/there", Config{Target: "a:1", WebSocket: ws("/here")}},
		{Config{WebSocket: ws("/")}, "unix:/run/c", Config{Target: "unix:/run/c", WebSocket: ws("/")}},
	} {
		got := test.before
		if err := got.SetTargets(strings.Fields(test.targets)...); err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %v\n got %s\nwant %s", test.targets, err, marshalConfig(got), marshalConfig(test.want))
		}
	}
}

// TestDefaults checks defaults: a given setting excludes the defaults of those that it excludes.
func TestDefaults(t *testing.T) {
	const all = `"connections":100,"connect_timeout":"10s","model":"goroutine","loops":1,`
	for name, test := range map[string]struct {
		cfg  Config
		want string
	}{
		"none":       {Config{}, all + `"duration":"10s","pipeline":1,"drain":"5s","size":64,"interval":"1s"`},
		"messages":   {Config{Messages: 3}, all + `"messages":3,"pipeline":1,"drain":"5s","size":64,"interval":"1s"`},
		"message":    {Config{Message: "x"}, all + `"duration":"10s","pipeline":1,"drain":"5s","message":"x","interval":"1s"`},
		"HTTP":       {Config{Match: "http"}, all + `"duration":"10s","pipeline":1,"drain":"5s","message":"GET / HTTP/1.1\r\nHost: \r\n\r\n","match":"http","interval":"1s"`},
		"WebSocket":  {Config{WebSocket: &WebSocket{}}, all + `"duration":"10s","pipeline":1,"drain":"5s","size":64,"ws":"/","interval":"1s"`},
		"heartbeats": {Config{Hold: true, Heartbeat: "a\n"}, all + `"duration":"10s","pipeline":1,"drain":"5s","size":64,"hold":true,"heartbeat":"a\n","heartbeat_answer":"pong\n","interval":"1s"`},
		"PubSub":     {Config{PubSub: &PubSub{Protocol: "ws"}, Rate: Rate{PerSecond: 1}}, all + `"duration":"10s","rate":1,"pipeline":64,"drain":"5s","size":64,"ws":"/ws","pubsub":"ws","topics":1,"publishers":1,"all_publishers":1,"interval":"1s"`},
	} {
		test.cfg.Model = "goroutine"
		before := marshalConfig(test.cfg)
		if got, want := marshalConfig(test.cfg.withDefaultsAndImplied()), "{"+test.want+"}"; got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
		if marshalConfig(test.cfg) != before {
			t.Errorf("%s: filling it in changed it", name)
		}
	}
}

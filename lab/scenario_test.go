package lab

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPlan(t *testing.T) {
	s := Scenario{
		Rounds:    3,
		Subjects:  []Subject{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d", Apps: []string{HTTP}}},
		Workloads: []Workload{{Name: "x", App: Echo}, {Name: "y", App: Lines}, {Name: "z", App: HTTP}},
	}
	for only, want := range map[string]string{
		"[xy]":   "x1a x1b x1c x2b x2c x2a x3c x3a x3b y1a y1b y1c y2b y2c y2a y3c y3a y3b",
		"/d":     "z1d z2d z3d",
		"y/[ac]": "y1a y1c y2c y2a y3a y3c",
		"^x/b$":  "x1b x2b x3b",
	} {
		steps, err := s.plan(regexp.MustCompile(only))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, step := range steps {
			got = append(got, fmt.Sprint(step.workload.Name, step.round, step.subject.Name))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: got %s, want %s", only, strings.Join(got, " "), want)
		}
	}
}

func TestParseSubject(t *testing.T) {
	for text, want := range map[string]Subject{
		"mine=/bin/server {port}":          {Name: "mine", Apps: nil, Command: []string{"/bin/server", "{port}"}},
		"m=server  --addr={addr}\t-x y ":   {Name: "m", Apps: nil, Command: []string{"server", "--addr={addr}", "-x", "y"}},
		`q="/a b/c" '{port} x' d"e f"g ""`: {Name: "q", Apps: nil, Command: []string{"/a b/c", "{port} x", "de fg", ""}},
		`n=s '"' "it's" {port} a=b`:        {Name: "n", Apps: nil, Command: []string{"s", `"`, "it's", "{port}", "a=b"}},
		"h:http=h {port}":                  {Name: "h", Apps: []string{HTTP}, Command: []string{"h", "{port}"}},
		"h:echo,lines=h {port}":            {Name: "h", Apps: []string{Echo, Lines}, Command: []string{"h", "{port}"}},
		`w=C:\server\s.exe {port}`:         {Name: "w", Apps: nil, Command: []string{`C:\server\s.exe`, "{port}"}},
	} {
		got, err := ParseSubject(text)
		if err != nil || got.Name != want.Name || !slices.Equal(got.Apps, want.Apps) || !slices.Equal(got.Command, want.Command) {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"/bin/server {port}":                  "has no name; expected NAME=COMMAND",
		"=server {port}":                      `subject name ""`,
		"a b=server {port}":                   `subject name "a b"`,
		"a/b=server {port}":                   `subject name "a/b"`,
		"a:=server {port}":                    `app ""; expected echo, lines, sink, http, wait, pow or sha`,
		"a:http,ftp=server {port}":            `app "ftp"`,
		strings.Repeat("x", 41) + "=s {port}": "expected 1 to 40 bytes",
		"a=":                                  "has no command",
		"a='' {port}":                         "has no command",
		"a=server 'x {port}":                  "open '",
		"a=server 9000":                       "expected {addr} or {port}",
	} {
		var wrong ScenarioError
		if _, err := ParseSubject(text); !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a ScenarioError with %q", text, err, want)
		}
	}
}

func TestFill(t *testing.T) {
	s := Subject{Command: []string{"{self}", "--on={addr}", "{port}{port}", "{app}", "{other}", "{cert}:{key}", "{heartbeat}"}}
	got := s.fill(place{self: "/bin/me", addr: "127.0.0.1:81", app: Lines, cert: &certificate{cert: "/c", key: "/k"}, heartbeat: time.Minute})
	if want := []string{"/bin/me", "--on=127.0.0.1:81", "8181", "lines", "{other}", "/c:/k", "1m0s"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestPeers checks that the scenario is sound, that foreign servers have a place
// in every part of it, and that net-raw is asked for lines alone.
func TestPeers(t *testing.T) {
	o := Options{Subjects: []Subject{{Name: "foreign", Command: []string{"x", "{port}"}}}}
	s, err := o.apply(builtIn(t, "peers"))
	if err != nil {
		t.Fatal(err)
	}
	steps, err := s.plan(nil)
	if err != nil {
		t.Fatal(err)
	}
	runs := map[string]int{}
	for _, step := range steps {
		runs[step.subject.Name] += 1
		if step.subject.Name == "net-raw" && step.workload.App != Lines {
			t.Errorf("%s is run with %s", step.workload.Name, step.subject.Name)
		}
	}
	all := len(s.Workloads) * s.Rounds
	for name, want := range map[string]int{"net": all, "goroutine": all, "foreign": all, "net-raw": s.Rounds} {
		if runs[name] != want {
			t.Errorf("%s: %d runs, want %d", name, runs[name], want)
		}
	}
}

func TestLoadFlags(t *testing.T) {
	for want, w := range map[string]Workload{
		"--connections 7 --size 16 --pipeline 4 --warmup 300ms --duration 1.5s host:1": {
			Kind: Throughput, Connections: 7, Size: 16, Pipeline: 4, WarmUp: 300 * time.Millisecond, Duration: 1500 * time.Millisecond,
		},
		"--connections 7 --size 16 --messages 1 --hold-before 2s --hold-after 2s host:1": {
			Kind: Idle, Connections: 7, Size: 16, Pipeline: 1, Hold: 2 * time.Second,
		},
		"--connections 7 --message myriad 125\n --answer myriad 125 0000000000001078\n --pipeline 1 --warmup 0s --duration 1s host:1": {
			Kind: Throughput, App: Pow, Connections: 7, Pipeline: 1, Duration: time.Second, Drain: time.Second,
		},
		"--connections 7 --http --pipeline 4 --warmup 0s --duration 1s host:1": {
			Kind: Throughput, App: HTTP, Connections: 7, Pipeline: 4, Duration: time.Second,
		},
	} {
		if got := strings.Join(w.loadFlags("host:1"), " "); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestScenarioCheck(t *testing.T) {
	for want, change := range map[string]func(*Scenario){
		"0 rounds":                func(s *Scenario) { s.Rounds = 0 },
		"1001 rounds":             func(s *Scenario) { s.Rounds = 1001 },
		"0 subjects":              func(s *Scenario) { s.Subjects = nil },
		"0 workloads":             func(s *Scenario) { s.Workloads = nil },
		"two workloads are named": func(s *Scenario) { s.Workloads[1].Name = s.Workloads[0].Name },
		"two subjects are named":  func(s *Scenario) { s.Subjects[1].Name = s.Subjects[0].Name },
		"workload name":           func(s *Scenario) { s.Workloads[0].Name = "" },
		`app "x"`:                 func(s *Scenario) { s.Workloads[0].App = "x" },
		"0 connections":           func(s *Scenario) { s.Workloads[0].Connections = 0 },
		"messages of 1 bytes":     func(s *Scenario) { s.Workloads[0].Size = 1 },
		"pipeline of 0":           func(s *Scenario) { s.Workloads[0].Pipeline = 0 },
		"expected 0 for http":     func(s *Scenario) { s.Workloads[0].App = HTTP },
		"expected 0 for pow":      func(s *Scenario) { s.Workloads[0].App = Pow },
		"duration 1ms":            func(s *Scenario) { s.Workloads[0].Duration = time.Millisecond },
		"warm-up -1ns":            func(s *Scenario) { s.Workloads[0].WarmUp = -1 },
		"app sink with":           func(s *Scenario) { s.Workloads[0].App, s.Workloads[0].Size = Sink, 0 },
		"at most -1 connections":  func(s *Scenario) { s.Subjects[0].MaxConns = -1 },
		"interval 1ms":            func(s *Scenario) { s.Workloads[0] = beatsWorkload(); s.Workloads[0].Interval = time.Millisecond },
		"duration 1.1s":           func(s *Scenario) { s.Workloads[0] = beatsWorkload(); s.Workloads[0].Duration = 1100 * time.Millisecond },
		`kind ""`:                 func(s *Scenario) { s.Workloads[0].Kind = "" },
		"hold 0s":                 func(s *Scenario) { s.Workloads[0].Kind = Idle },
	} {
		s := testScenario()
		change(&s)
		var wrong ScenarioError
		if err := s.check(); !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a ScenarioError with %q", err, want)
		}
	}
}

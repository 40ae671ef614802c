package scenario

import (
	"errors"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

var reader = Reader{Figures: func(name string) (better, ok bool) { return name != "in-flight", name != "none" }}

const whole = `
name = "mine"
question = "Which is faster?"
[[subject]]
name = "net"
command = "{self} plain --addr {addr} 'two words'"
[[subject]]
name = "{model}"
models = ["goroutine", "auto"]
command = "{self} serve --addr {addr} --model {model}"
[[workload]]
name = "few"
app = "echo"
connections = 100
size = 64
phases = [{ do = "load", warm_up = "1s", for = "2s" }]
[[workload]]
name = "many"
app = "echo"
connections = 1_000
size = 64
phases = [{ do = "load", warm_up = "1s", for = "2s" }]
[scale.small]
connections = 100
duration = "500ms"
`

func TestRead(t *testing.T) {
	s := testkit.Must(reader.ReadScenario(strings.NewReader(whole)))(t)
	want := Words{"{self}", "plain", "--addr", "{addr}", "two words"}
	if s.Rounds != 3 || s.Baseline != "net" || !slices.Equal(s.Subjects[0].Command, want) || s.Workloads[0].Phases[0].WarmUp.Std() != time.Second {
		t.Errorf("got %+v", s)
	}
	for change, says := range map[string]string{
		"":                                     "expected TOML",
		`name = "mine" -> names = 1`:           `line 2: unknown key "names"`,
		`"few" -> "a b"`:                       `workload name "a b"`,
		`"many" -> "few"`:                      `two workloads are named "few"`,
		`size = 64 -> size = 1`:                "line 11: workload few: messages of 1 bytes; expected 2 to",
		`"2s" -> "1ms"`:                        "load for 1ms; expected 100ms to",
		`do = "load" -> do = "lode"`:           `phase "lode"; expected one of connect, hold, load`,
		`app = "echo" -> app = "ftp"`:          `app "ftp"; expected echo, lines`,
		`app = "echo" -> app = "sink"`:         "app is sink; expected sink with a phase such as",
		`connections = 100 -> connections = 0`: "0 connections; expected 1 to",
		`--addr {addr} -> x`:                   "expected {addr} or {port} in it",
		`'two words' -> 'two`:                  "has an unclosed quote; expected a closing '",
		`"goroutine", -> "threads",`:           `model "threads"; expected`,
		`name = "{model}" -> name = "x"`:       `two subjects are named "x"`,
		"connections = 100\nduration -> connections = -1\nduration":                                      "line 23: scale small: negative number or duration",
		"[scale.small] -> [scale.Small]":                                                                 `scale name is "Small"; expected`,
		"[scale.small] -> [[claim]]\ntext = 'x'\nfigure = 'tps'\n[scale.small]":                          "expected a figure with one of at_most and at_least",
		"[scale.small] -> [[claim]]\ntext = 'x'\nfigure = 'none'\nat_most = 1\n[scale.small]":            `line 23: figure "none"; expected one such as "tps"`,
		"[scale.small] -> [[answer]]\ntext = 'x'\nworkload = 'few'\nfigure = 'in-flight'\n[scale.small]": `figure "in-flight"`,
		"[scale.small] -> [[published]]\ntitle = 'x'\nsource = 'y'\nmachine = 'z'\ncolumn = [{ name = 'a' }]\nrows = [{ name = 'r', cells = [], workload = 'few' }]\n[scale.small]": "0 cells; expected one for each of 1 columns",
	} {
		old, now, _ := strings.Cut(change, " -> ")
		text := strings.ReplaceAll(whole, old, now)
		if change == "" {
			text = "name = "
		}
		_, err := reader.ReadScenario(strings.NewReader(text))
		testkit.ExpectError(t, change, err, says)
	}
	_, err := reader.ReadScenario(strings.NewReader(strings.Repeat("#", maxFileBytes+1)))
	testkit.ExpectError(t, "a file that is too long", err, "longer than")
}

// The built-in scenarios are right at each of their scales, and say an answer.
func TestBuiltIns(t *testing.T) {
	for _, name := range BuiltInNames() {
		s := testkit.Must(reader.ReadBuiltIn(name))(t)
		if s.Name != name || len(s.Answer) == 0 {
			t.Errorf("%s: it is named %q and has %d clauses of an answer", name, s.Name, len(s.Answer))
		}
		for _, scale := range []string{"", "small"} {
			small, err := Options{Scale: scale}.ApplyForThisMachine(s)
			if notes := strings.Join(small.Notes, "\n"); scale == "" && strings.Contains(notes, "changed") {
				t.Errorf("%s as it is written has notes %q", name, notes)
			}
			if err != nil || small.EstimateDuration() <= 0 {
				t.Errorf("%s at scale %q: %v, takes %v", name, scale, err, small.EstimateDuration())
			}
		}
	}
}

func TestPhases(t *testing.T) {
	exchange := []Phase{{Do: Connect, Connections: 10}, {Do: Verify}, {Do: Connect, Rate: 5}, {Do: Hold, For: Duration(time.Second)}, {Do: Verify}, {Do: Hold, For: Duration(time.Second)}}
	w := Workload{Name: "w", App: "echo", Connections: 100, Size: 8, Phases: exchange}
	stages, err := w.SplitStagesAtConnects()
	if err != nil || len(stages) != 2 || stages[0].Connections != 10 || stages[1].Connections != 100 || stages[1].Rate != 5 || stages[1].Held {
		t.Errorf("got %+v, %v, want 10 connections and then 100", stages, err)
	}
	hold, second := Phase{Do: Hold, For: Duration(time.Second)}, Duration(time.Second)
	beats := Phase{Do: Hold, For: second, Heartbeat: Duration(500 * time.Millisecond)}
	for _, c := range []struct {
		w    Workload
		says string
	}{
		{Workload{App: "echo", Connections: 1, Message: "hello", Phases: exchange}, "message is set for app echo; expected app http"},
		{Workload{App: "sha", Connections: 1, Phases: []Phase{{Do: Verify}, hold, {Do: Broadcast}, beats, {Do: Verify}, hold}}, `app is "sha" with the phase verify; expected lines or ws`},
		{Workload{App: "pubsub", Connections: 5, Size: 47, Phases: []Phase{{Do: Publish, For: second}}}, "messages of 47 bytes; expected 48 to"},
		{Workload{App: "pubsub", Connections: 5, Size: 48, Phases: []Phase{{Do: Publish, For: second, Topics: 6}}}, "6 topics; expected 1 to 5"},
		{Workload{App: "pubsub", Connections: 5, Size: 48, Phases: []Phase{{Do: Publish, For: second, Publishers: 1025}}}, "1025 publishers; expected 1 to 1024"},
		{Workload{App: "pubsub", Connections: 5, Size: 48, Phases: []Phase{{Do: Publish, For: second, Slow: -1}}}, "-1 subscribers that do not read; expected 0 to"},
		{Workload{App: "echo", Connections: 5, Size: 48, Phases: []Phase{{Do: Publish, For: second}}}, "app is echo; expected pubsub with a phase such as"},
		{Workload{App: "echo", Connections: 1, Size: 8}, "no phases"},
		{Workload{App: "echo", Connections: 1, Size: 8, Phases: []Phase{hold}}, `phases "hold" after a connect; expected one of load, flood, verify and publish`},
		{Workload{App: "echo", Connections: 1, Size: 8, Phases: []Phase{{Do: Load, For: second}, {Do: Load, For: second}}}, `phases "load load"`},
		{Workload{App: "echo", Connections: 1, Size: 8, Phases: []Phase{{Do: Flood, For: second}}}, `app is "echo" with the phase flood`},
		{Workload{App: "lines", Connections: 1, Size: 8, Phases: []Phase{{Do: Flood, For: second}}}, "messages of 8 bytes; expected 0"},
		{Workload{App: "echo", Connections: 1, Size: 8, Phases: []Phase{{Do: Park}, hold}}, "phase park is combined with other phases"},
		{Workload{Phases: []Phase{{Do: Jobs, Shape: "io", Times: 1, For: second}}}, `job shape "io"; expected published, cpu, short-cpu, mixed, steps and limited`},
		{Workload{Phases: []Phase{{Do: Jobs, Shape: "cpu", For: second}}}, "rate is 0 and times is 0; expected exactly one"},
		{Workload{Phases: []Phase{{Do: Jobs, Shape: "cpu", Times: 1, For: second, Memory: 1}}}, "memory of 1 bytes"},
		{Workload{Phases: []Phase{{Do: Attack, For: 4 * second, Storm: StormHello}}}, "storm is \"hello\" and elsewhere false; expected connect, hello with tls"},
		{Workload{Phases: []Phase{{Do: Attack, For: second}}}, "attack for 1s; expected 4s to"},
		{Workload{App: "sink", Connections: 1, Phases: []Phase{{Do: Load, Heartbeat: second, For: second}}}, "load for 1s; expected 1.125s to"},
		{Workload{App: "echo", Connections: 1, Size: 8, Pipeline: 5000, Phases: exchange}, "pipeline of 5000"},
	} {
		c.w.Name = "w"
		err := c.w.validateWorkload()
		testkit.ExpectError(t, c.w.Phases, err, c.says)
	}
}

func TestOptions(t *testing.T) {
	s := testkit.Must(reader.ReadScenario(strings.NewReader(whole)))(t)
	small, err := Options{Scale: "small", Rounds: 2, Subjects: []Subject{{Name: "x", Command: Words{"x", "{port}"}}}}.ApplyForThisMachine(s)
	testkit.RequireNoError(t, err)
	if len(small.Workloads) != 1 || small.Workloads[0].Phases[0].For.Std() != 500*time.Millisecond || len(small.Subjects) != 4 || small.Rounds != 2 {
		t.Errorf("got %+v", small)
	}
	said := strings.Join(small.Notes, "\n")
	for _, word := range []string{"Rounds: 2 instead of 3.", "Left out: many (scale small).", "Times are changed of few (scale small)."} {
		if !strings.Contains(said, word) {
			t.Errorf("the notes do not say %q:\n%s", word, said)
		}
	}
	if len(s.Workloads) != 2 || s.Workloads[0].Phases[0].For.Std() != 2*time.Second {
		t.Errorf("the scenario itself was changed: %+v", s)
	}
	steps := testkit.Must(small.PlanSteps(regexp.MustCompile("few/(net|auto)$")))(t)
	var names []string
	for _, st := range steps {
		names = append(names, st.WorkloadAndSubject())
	}
	if want := []string{"few/net", "few/auto", "few/auto", "few/net"}; !slices.Equal(names, want) {
		t.Errorf("planned %q, want %q: subjects in turn, another one first in each round", names, want)
	}
	for _, o := range []Options{{Scale: "tiny"}, {Scale: "0.5"}, {Rounds: -1}, {Connections: -1}, {Rounds: 1001}, {Duration: time.Millisecond}} {
		if _, err := o.ApplyForThisMachine(s); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
	optional := s
	optional.Subjects = []Subject{{Name: "a", Optional: true, Command: Words{"there", "{port}"}}, {Name: "b", Optional: true, Command: Words{"nowhere", "{port}"}}}
	optional = optional.selectRunnableSubjectsPerModel(hostLimits{modelError: anyHost.modelError, programError: func(program string) error {
		if program == "nowhere" {
			return errors.New("not found")
		}
		return nil
	}})
	if len(optional.Subjects) != 1 || len(optional.Notes) != 1 || optional.Notes[0] != "b is left out, as its program is not installed: not found." {
		t.Errorf("with a program that is not installed: %+v, %q", optional.Subjects, optional.Notes)
	}
	bounded := s.selectRunnableSubjectsPerModel(hostLimits{modelError: anyHost.modelError, maxTableConns: 50, tableLimit: "x"})
	bounded.Subjects[0].OneTable = true
	if x := bounded.selectRunnableSubjectsPerModel(hostLimits{modelError: anyHost.modelError, maxTableConns: 50, tableLimit: "x"}).Subjects[0]; x.MaxConns != 50 || s.Workloads[0].WithMaxConns(x.MaxConns).Connections != 50 {
		t.Errorf("with one table of 50: %+v", x)
	}
}

func TestParseSubject(t *testing.T) {
	s, err := ParseSubject(`mine:echo,lines=server --port {port} "a b"`, false)
	if err != nil || s.Name != "mine" || !slices.Equal(s.Apps, []string{"echo", "lines"}) || s.Command[3] != "a b" {
		t.Errorf("got %+v, %v", s, err)
	}
	if got := (Subject{Config: "listen {addr}; {other}"}).ConfigWithValues(PlaceholderValues{Addr: "127.0.0.1:80"}); got != "listen 127.0.0.1:80; {other}" {
		t.Errorf("the configuration is %q", got)
	}
	got := Subject{Command: Words{"{self}", "{port}", "{n}", "{room}", "{heartbeat}"}}.CommandWithValues(PlaceholderValues{Self: "me", Addr: "127.0.0.1:80", Connections: 10, Heartbeat: time.Minute})
	if !slices.Equal(got, []string{"me", "80", "10", "1010", "1m0s"}) {
		t.Errorf("filled in: %q", got)
	}
	for _, p := range []PlaceholderValues{{Connections: 10}, {Connections: 10, Processes: 3}} {
		if got := p.MaxLoadConns(p.connLimitForServer()); got != p.Connections {
			t.Errorf("%d connections fit into the room of %d", got, p.Connections)
		}
	}
	for text, says := range map[string]string{
		"x": "has no name", "a/b=x {port}": "subject name", "x=": "no command", "x=y": "expected {addr} or {port}", "x:ftp=y {port}": `app "ftp"`,
	} {
		_, err := ParseSubject(text, false)
		testkit.ExpectError(t, text, err, says)
	}
	if s, err := ParseSubject("x=y", true); err != nil || !s.Contender.FixedWorkers {
		t.Errorf("a side: %+v, %v", s, err)
	}
}

func TestPublishedValue(t *testing.T) {
	for cell, want := range map[string]float64{"202,830": 202830, "994k": 994e3, "4.9 MiB": 4.9 * (1 << 20), "29.40 Mbps": 29.4e6} {
		if got, ok := (Column{}).ParsePublishedCell(cell); !ok || got != want {
			t.Errorf("%q: got %v, %v, want %v", cell, got, ok, want)
		}
	}
	if got, ok := (Column{Unit: "KiB"}).ParsePublishedCell("2"); !ok || got != 2048 {
		t.Errorf("2 under KiB: %v", got)
	}
	if _, ok := (Column{}).ParsePublishedCell("31 million"); ok {
		t.Error("31 million is read as a number")
	}
}

// Every key of a file is in the documentation.
func TestDocumented(t *testing.T) {
	text := testkit.Must(os.ReadFile("../../../../docs/scenarios.md"))(t)
	for _, v := range []any{Scenario{}, Subject{}, Contender{}, Workload{}, Phase{}, Scale{}, ReferenceTable{}, Column{}, ReferenceRow{}, Claim{}, Clause{}} {
		of := reflect.TypeOf(v)
		for i := range of.NumField() {
			if key := of.Field(i).Tag.Get("toml"); key != "-" && key != "" && !strings.Contains(string(text), "`"+key+"`") && !strings.Contains(string(text), "[["+key) && !strings.Contains(string(text), "["+key) {
				t.Errorf("docs/scenarios.md does not explain `%s`, a key of %s", key, of.Name())
			}
		}
	}
}

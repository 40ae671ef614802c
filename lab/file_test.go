package lab

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// builtIn reads a scenario that has to be there.
func builtIn(t *testing.T, name string) Scenario {
	t.Helper()
	s, err := BuiltIn(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// smallBudget is how long each scenario may take at the scale small, and allBudget all of
// them, which leaves room for runs that are made again.
var smallBudget = map[string]time.Duration{
	"quick": 90 * time.Second, "peers": 4 * time.Minute, "tls": 70 * time.Second, "heartbeat": 90 * time.Second,
	"idle": 150 * time.Second, "tenk": 435 * time.Second, "models": 450 * time.Second, "overload": 5 * time.Minute,
	"million": 90 * time.Second, "soak": time.Minute,
}

const allBudget = 29 * time.Minute

// TestBuiltIns reads every scenario, and has it as short as it promises, with every model.
func TestBuiltIns(t *testing.T) {
	names := BuiltIns()
	if len(names) < 5 || names[0] != "quick" {
		t.Fatalf("got %q, want quick and others", names)
	}
	var all time.Duration
	for _, name := range names {
		s := builtIn(t, name)
		if s.Name != name || s.Question == "" {
			t.Errorf("%s: name %q, question %q", name, s.Name, s.Question)
		}
		full := s.expanded(ideal)
		if len(full.notes) > 0 || len(full.Subjects) < len(s.Subjects) {
			t.Errorf("%s: notes %q, want none where everything can run", name, full.notes)
		}
		small, changes, err := full.at("small")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		small = small.resized(changes)
		budget, ok := smallBudget[name]
		if took := small.Takes(); !ok || took > budget {
			t.Errorf("%s: it takes %v at the scale small, want %v at most", name, took, budget)
		}
		all += small.Takes()
		if took := full.Takes(); took > 2*time.Hour {
			t.Errorf("%s: it takes %v, want two hours at most", name, took)
		}
		for _, options := range []Options{{}, {Scale: "small"}, {Scale: "full"}, {Scale: "0.01"}, {Scale: "3"}, {Connections: 7}, {Rounds: 1}} {
			if _, err := s.With(options); err != nil {
				t.Errorf("%s with %+v: %v", name, options, err)
			}
		}
	}
	if all > allBudget {
		t.Errorf("all take %v at the scale small, want %v at most", all, allBudget)
	}
	quick := builtIn(t, "quick").expanded(ideal)
	if took := quick.Takes(); took > 2*time.Minute {
		t.Errorf("quick takes %v, want two minutes at most", took)
	}
}

func TestBuiltInRefuses(t *testing.T) {
	for _, name := range []string{"quik", "", "../quick", "quick.toml"} {
		var wrong ScenarioError
		if _, err := BuiltIn(name); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "expected one of quick, ") {
			t.Errorf("%q: got %v", name, err)
		}
	}
}

// ownFile is a scenario that uses every kind of value that there is.
const ownFile = `
name = "own"
baseline = 'a'
question = "What?"
about = """
[[workload]]
nothing = 1
"""

[[subject]]
name = "a"
command = "server '{addr}' --x \"y z\""
apps = ["echo", "lines"]

[[subject]]
name = "m-{model}"
models = ["epoll", "auto"]
command = ["{self}", "serve", "--addr={addr}", "{model}"]
max_conns = 1_000
wall = "it is small"

[[workload]]
name = "busy"
kind = "throughput"
app = "echo"
connections = 2_000
size = 64
duration = "1.5s"
unpinned = true

[[workload]]
name = "still"
kind = "idle"
app = "echo"
connections = 10
size = 64
hold = "2s"

[[published]]
title = "Theirs"
source = "a book"
machine = "another"
faults = ["one", "two"]
column = [
  { name = "TPS", figure = "tps" },
  { name = "RSS", relative = "a" },
]
rows = [ { name = "r", cells = ["1", "2"], workload = "busy", design = "a", ours = ["m-auto"], about = ["tps"] } ]

[scale.small]
connections = 100
`

func TestReadScenario(t *testing.T) {
	s, err := ReadScenario(strings.NewReader(ownFile))
	if err != nil {
		t.Fatal(err)
	}
	want := Scenario{
		Name: "own", Question: "What?", Baseline: "a", About: "[[workload]]\nnothing = 1\n", Rounds: 3,
		Subjects: []Subject{
			{Name: "a", Command: Words{"server", "{addr}", "--x", "y z"}, Apps: []string{"echo", "lines"}},
			{Name: "m-{model}", Models: []string{"epoll", "auto"}, Command: Words{"{self}", "serve", "--addr={addr}", "{model}"}, MaxConns: 1000, Wall: "it is small"},
		},
		Workloads: []Workload{
			{Name: "busy", Kind: Throughput, App: Echo, Connections: 2000, Size: 64, Pipeline: 1, Duration: 1500 * time.Millisecond, Unpinned: true},
			{Name: "still", Kind: Idle, App: Echo, Connections: 10, Size: 64, Pipeline: 1, Hold: 2 * time.Second},
		},
		Published: []Published{{
			Title: "Theirs", Source: "a book", Machine: "another", Faults: []string{"one", "two"},
			Columns: []PublishedColumn{{Name: "TPS", Figure: "tps"}, {Name: "RSS", Relative: "a"}},
			Rows:    []PublishedRow{{Name: "r", Cells: []string{"1", "2"}, Workload: "busy", Design: "a", Ours: []string{"m-auto"}, About: []string{"tps"}}},
		}},
		Scales: map[string]Scale{"small": {Connections: 100}},
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
	ready, err := s.With(Options{})
	if err != nil {
		t.Fatal(err)
	}
	last := ready.Subjects[len(ready.Subjects)-1]
	if last.Name != "m-auto" || !slices.Equal(last.Command, []string{"{self}", "serve", "--addr={addr}", "auto"}) {
		t.Errorf("got %+v, want auto's", last)
	}
	if text := strings.Join(ready.notes, "\n"); !strings.Contains(text, "m-auto has 1,000 connections under busy, which have more: it is small.") {
		t.Errorf("got notes %q", text)
	}
}

// TestReadScenarioRefuses changes a line of a file that is right.
func TestReadScenarioRefuses(t *testing.T) {
	for _, test := range []struct{ old, new, want string }{
		{`baseline = 'a'`, `baselin = 'a'`, `line 3: "baselin" is no key of a scenario; expected baseline, perhaps`},
		{`baseline = 'a'`, `x = 1`, `line 3: "x" is no key of a scenario; expected one of about, auto, baseline, `},
		{`baseline = 'a'`, `baseline = "b"`, `line 3: baseline is "b"; expected one of the subjects: a, m-auto, m-epoll`},
		{`baseline = 'a'`, `auto = "b"`, `line 3: auto is "b"; expected one of the subjects`},
		{`baseline = 'a'`, `rounds = "many"`, `line 3: rounds is "many"; expected a whole number`},
		{`baseline = 'a'`, `rounds = 0`, `line 3: rounds is 0; expected 1 or more, or no rounds at all`},
		{`baseline = 'a'`, "[[workloads]]\nname = 'x'", `line 3: "workloads" is no key of a scenario; expected workload, perhaps`},
		{`baseline = 'a'`, `rounds = 99999999999999999999`, `line 3: `},
		{`baseline = 'a'`, `workload = 1`, `Key 'workload' was already created`},
		{`question = "What?"`, `question = 1`, `line 4: question is 1; expected a text in quotes`},
		{`baseline = 'a'`, `baseline = a`, `line 3: `},
		{`question = "What?"`, ``, `question is missing; expected a sentence`},
		{`baseline = 'a'`, `question = 1`, `line 4: `},
		{`name = "own"`, ``, `scenario name ""; expected 1 to 40 bytes`},
		{`name = "own"`, `name = "a b"`, `line 2: scenario name "a b"; expected 1 to 40 bytes`},
		{`connections = 10`, `rounds = 0`, `line 35: rounds is 0; expected 1 or more`},
		{`name = "still"`, `name = "busy"`, `line 31: two workloads are named "busy"; expected a name for each`},
		{`connections = 10`, `conections = 10`, `line 35: "conections" is no key of a workload; expected connections, perhaps`},
		{`connections = 10`, `connections = 10.5`, `line 35: connections is 10.5; expected a whole number`},
		{`connections = 10`, `connections = 1979-05-27`, `line 35: connections is a date`},
		{`connections = 10`, `connections = [10]`, `line 35: connections is a list`},
		{`connections = 10`, ``, `line 31: workload still: 0 connections; expected at least 1`},
		{`hold = "2s"`, `hold = 2`, `line 37: hold is 2; expected a time in quotes such as "1.5s"`},
		{`hold = "2s"`, `hold = "2 s"`, `line 37: hold is "2 s"; expected a time`},
		{`hold = "2s"`, `hold = "2s"` + "\ntls = \"yes\"", `line 38: tls is "yes"; expected true or false`},
		{`name = "still"`, `name = "busy"`, `two workloads are named "busy"`},
		{`name = "still"`, ``, `line 31: workload name ""`},
		{`kind = "idle"`, `kind = "idel"`, `line 31: workload still: kind "idel"; expected one of throughput, idle, heartbeats, parking, flood, overload, million, soak`},
		{`size = 64` + "\nhold", `pipeline = 0` + "\nhold", `line 31: workload still: `},
		{`command = ["{self}", "serve", "--addr={addr}", "{model}"]`, ``, `line 15: subject m-{model} has no command`},
		{`command = ["{self}", "serve", "--addr={addr}", "{model}"]`, `command = [1]`, `line 18: command[0] is 1; expected a text`},
		{`command = ["{self}", "serve", "--addr={addr}", "{model}"]`, `command = 1`, `line 18: command is 1; expected a command line`},
		{`command = ["{self}", "serve", "--addr={addr}", "{model}"]`, `command = "x '{addr}"`, `line 18: command "x '{addr}" has an open '`},
		{`models = ["epoll", "auto"]`, ``, `line 15: subject m-{model}: {model} without models; expected models = `},
		{`models = ["epoll", "auto"]`, `models = ["epol"]`, `line 15: subject m-{model}: model "epol"; expected goroutine, epoll, uring or auto`},
		{`models = ["epoll", "auto"]`, `models = "epoll"`, `line 17: models is "epoll"; expected a list`},
		{`name = "m-{model}"`, `name = "m"`, `two subjects are named "m"`},
		{`max_conns = 1_000`, `max_conns = 1_000` + "\none_table = true", `line 15: subject m-{model}: one_table beside`},
		{`apps = ["echo", "lines"]`, `workloads = ["x"]`, `line 13: subject a: workload "x"; expected some of busy, still`},
		{`apps = ["echo", "lines"]`, `apps = ["ftp"]`, `line 10: subject a: app "ftp"; expected echo, `},
		{`cells = ["1", "2"]`, `cells = ["1"]`, `published row "r" has 1 cells; expected one for each of 2 columns`},
		{`workload = "busy"`, `workload = "bsy"`, `line 48: published row "r": workload "bsy"; expected one of busy, still`},
		{`ours = ["m-auto"]`, `ours = ["auto"]`, `line 48: published row "r": subject "auto"; expected one of a, m-auto, m-epoll`},
		{`{ name = "RSS"`, `{ nam = "RSS"`, `line 44: "nam" is no key of a column; expected name, perhaps`},
		{`relative = "a"`, `relative = "b"`, `published column "RSS": relative to "b"; expected one of a, `},
		{`figure = "tps"`, `figure = "fast"`, `line 39: published column "TPS": figure "fast"; expected one such as `},
		{`design = "a"`, `else = ["x"]`, `line 48: published row "r": workload "x"; expected one of busy, still`},
		{`[scale.small]`, `[scale.full]`, `line 50: scale name "full"; expected`},
		{`[scale.small]`, `[scale.2x]`, `line 50: scale name "2x"; expected`},
		{"connections = 100\n", "conns = 100\n", `line 51: "conns" is no key of small; expected one of connections, `},
		{"connections = 100\n", "connections = -100\n", `line 50: scale small has a number or a time below 0`},
		{"connections = 100\n", "without = ['x']\n", `line 51: scale small is without "x"; expected workloads (busy, still) or subjects (a, m-auto, m-epoll)`},
		{"connections = 100\n", "rounds = 0\n", `line 51: rounds is 0; expected 1 or more, or no rounds at all`},
		{"connections = 100\n", "rounds = 2000\n", `line 50: scale small: 2000 rounds; expected 1 to 1000`},
		{"connections = 100\n", "hold = '1ms'\n", `line 50: scale small: workload still: hold 1ms; expected 1s`},
	} {
		text := strings.Replace(ownFile, test.old, test.new, 1)
		var wrong ScenarioError
		if _, err := ReadScenario(strings.NewReader(text)); !errors.As(err, &wrong) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got  %v\nwant a ScenarioError with %s", test.new, err, test.want)
		}
	}
}

// TestDecodeKinds has what kinds with settings of their own may have: numbers of every
// type, tables in tables, and none.
func TestDecodeKinds(t *testing.T) {
	type inner struct {
		Share float64       `toml:"share"`
		Long  int64         `toml:"long"`
		Small int8          `toml:"small" default:"7"`
		Every time.Duration `toml:"every"`
		Kept  string        `toml:"-"`
	}
	var got struct {
		One, Two *inner
		Of       *inner           `toml:"of"`
		None     *inner           `toml:"none"`
		Each     map[string]inner `toml:"each"`
	}
	raw := map[string]any{
		"of":   map[string]any{"share": int64(2), "long": int64(1) << 40, "every": "1m"},
		"each": map[string]any{"a": map[string]any{"share": 0.5, "small": int64(3)}},
	}
	d := decoder{lines: map[string]int{"each.a": 9}}
	if err := d.set(reflect.ValueOf(&got).Elem(), raw, ""); err != nil {
		t.Fatal(err)
	}
	if want := (inner{Share: 2, Long: 1 << 40, Small: 7, Every: time.Minute}); got.Of == nil || *got.Of != want || got.None != nil || got.Each["a"] != (inner{Share: 0.5, Small: 3}) {
		t.Errorf("got %+v, %+v", got, got.Of)
	}
	for want, value := range map[string]any{
		"line 9: small is 128; expected a whole number": map[string]any{"small": int64(128)},
		`line 9: share is "x"; expected a number`:       map[string]any{"share": "x"},
		"line 9: a is a list; expected a table":         []any{1},
	} {
		err := d.set(reflect.ValueOf(&got).Elem(), map[string]any{"each": map[string]any{"a": value}}, "")
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestRunFile runs a user's file at its scale, beside one of the options' subjects.
func TestRunFile(t *testing.T) {
	o := children(t)
	o.Scale, o.Dir, o.Subjects = "small", filepath.Join(t.TempDir(), "out"), []Subject{acting("other", "plain")}
	name := filepath.Join(t.TempDir(), "mine.toml")
	err := os.WriteFile(name, []byte(`
name = "mine"
question = "Does it run?"
[[subject]]
name = "mine"
command = "{self} plain {addr} {app}"
one_table = true
[[workload]]
name = "busy"
kind = "throughput"
app = "lines"
connections = 5_000
size = 16
duration = "1s"
[scale.small]
rounds = 1
connections = 5
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	s, err := OpenScenario(name)
	if err != nil {
		t.Fatal(err)
	}
	book, err := RunAll(t.Context(), []Scenario{s}, o)
	if err != nil {
		t.Fatal(err)
	}
	r := book.Reports[0]
	if len(r.Runs) != 2 || book.Failed() > 0 || r.Scenario.Baseline != "mine" {
		t.Fatalf("got %d runs, %d failed, baseline %q", len(r.Runs), book.Failed(), r.Scenario.Baseline)
	}
	for _, run := range r.Runs {
		if run.Throughput == nil || run.Throughput.Expected != 5 {
			t.Errorf("%s: got %+v, want 5 connections", run.Subject, run.Throughput)
		}
	}
	if !slices.Contains(r.Notes, "busy has 5 connections instead of 5,000 (scale small).") {
		t.Errorf("got notes %q", r.Notes)
	}
}

// TestReadScenarioBound has a file as large as it may be, and one that is larger.
func TestReadScenarioBound(t *testing.T) {
	fits := ownFile + "#" + strings.Repeat("x", maxFile-len(ownFile)-1)
	if _, err := ReadScenario(strings.NewReader(fits)); err != nil {
		t.Errorf("%d bytes: %v", len(fits), err)
	}
	if _, err := ReadScenario(strings.NewReader(fits + "x")); err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("one more: got %v", err)
	}
}

func TestOpenScenario(t *testing.T) {
	name := filepath.Join(t.TempDir(), "own.toml")
	if err := os.WriteFile(name, []byte("x = 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenScenario(name); err == nil || !strings.HasPrefix(err.Error(), name+": line 1: ") {
		t.Errorf("got %v, want the file's name and the line", err)
	}
	if _, err := OpenScenario(name + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want none there", err)
	}
}

func TestNearest(t *testing.T) {
	names := []string{"app", "apps", "connections", "size", "tls"}
	for misspelt, want := range map[string]string{
		"conections": "connections", "connection": "connections", "cnnectoins": "", "sise": "size", "x": "", "tsl": "", "ap": "app", strings.Repeat("x", 200): "",
	} {
		if got := nearest(misspelt, names); got != want {
			t.Errorf("%.20q: got %q, want %q", misspelt, got, want)
		}
	}
}

// FuzzScenario has the reader take what is sound, and say of the rest what is wrong.
func FuzzScenario(f *testing.F) {
	f.Add([]byte(ownFile))
	for _, name := range BuiltIns() {
		text, err := BuiltInFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, text := range []string{"", "[[subject]]\n[[subject.x]]", "[scale]\nx = {}", "workload = [1]", "subject = [{name='a', command=''}]", "a.b.c = 1\n[a]", "\"a.b\" = '''\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ReadScenario(strings.NewReader(string(text)))
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without a word")
			}
			return
		}
		whole := s.expanded(ideal)
		if err := whole.check(); err != nil {
			t.Errorf("what was read can't be run: %v", err)
		}
		if _, err := whole.plan(nil); err != nil && !strings.Contains(err.Error(), "matches no run") {
			t.Errorf("what was read can't be planned: %v", err)
		}
		if _, err := json.Marshal(s); err != nil {
			t.Errorf("what was read can't be written: %v", err)
		}
	})
}

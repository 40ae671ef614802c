package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/internal/lab/probe"
	"github.com/myriad-go/myriad/internal/lab/result"
	"github.com/myriad-go/myriad/internal/lab/scenario"
)

// Every subject of a scenario that this program serves is a command line that it
// understands, with every app.
func TestSubjectsParse(t *testing.T) {
	for _, name := range scenario.BuiltIns() {
		s, err := probe.Scenarios.BuiltIn(name)
		if err != nil {
			t.Fatal(err)
		}
		if s, err = (scenario.Options{}).Apply(s); err != nil {
			t.Fatal(err)
		}
		for _, w := range s.Workloads {
			for _, subject := range s.Subjects {
				if subject.Apps != nil || subject.Command[0] != "{self}" {
					continue
				}
				args := fillIn(subject.Command[1:], w.App)
				cmd, flags, err := newRoot().Find(args)
				if err != nil {
					t.Fatalf("%s/%s: %v", s.Name, subject.Name, err)
				}
				if err := cmd.ParseFlags(flags); err != nil {
					t.Errorf("%s/%s: %q: %v", s.Name, subject.Name, args, err)
				}
			}
		}
	}
}

// fillIn fills in a subject's placeholders.
func fillIn(words []string, app string) (filled []string) {
	placeholders := strings.NewReplacer("{addr}", "127.0.0.1:0", "{port}", "0", "{app}", app,
		"{cert}", "cert.pem", "{key}", "key.pem", "{heartbeat}", "1m0s",
		"{admin}", "127.0.0.1:0", "{n}", "1000", "{room}", "1100", "{processes}", "2")
	for _, word := range words {
		filled = append(filled, placeholders.Replace(word))
	}
	return filled
}

// The answers of handlers that wait and that compute are checked, processes
// serve, and the report says how auto does.
func TestBenchModels(t *testing.T) {
	const only = "^compute-100/(prefork-2|auto)$|^wait-100/auto$"
	got := invoke(t, "bench", "models", "--rounds", "1", "--duration", "100ms", "--only", only, "--out", filepath.Join(t.TempDir(), "out"))
	if got.code != 0 {
		t.Fatalf("bench models: exit code %d, stderr %s\n%s", got.code, got.stderr, got.stdout)
	}
	for _, word := range []string{"none: not asked for", "prefork-2  ", "of the best of the others (prefork-2)"} {
		if !strings.Contains(got.stdout, word) {
			t.Errorf("the report does not say %q:\n%s", word, got.stdout)
		}
	}
	for _, wrong := range []string{"mismatch", "FAILED"} {
		if strings.Contains(got.stdout, wrong) {
			t.Errorf("the report says %q:\n%s", wrong, got.stdout)
		}
	}
}

// Every server takes the lab's certificate, and every answer is right.
func TestBenchTLS(t *testing.T) {
	got := invoke(t, "bench", "tls", "--rounds", "1", "--duration", "100ms", "--only", "^echo-100/", "--out", filepath.Join(t.TempDir(), "out"))
	if got.code != 0 {
		t.Fatalf("bench tls: exit code %d, stderr %s\n%s", got.code, got.stderr, got.stdout)
	}
	for _, name := range append(myriad.Models(), "net") {
		if !strings.Contains(got.stdout, "  "+name+"  ") {
			t.Errorf("the report does not say %q:\n%s", name, got.stdout)
		}
	}
	for _, wrong := range []string{"mismatch", "FAILED", "connect", "lost"} {
		if strings.Contains(strings.ReplaceAll(got.stdout, "connections", ""), wrong) {
			t.Errorf("the report says %q:\n%s", wrong, got.stdout)
		}
	}
}

// Servers beat, and clients that answer stay: also under plain. Those that a busy machine
// keeps from it for two heartbeats are gone, so these are not the shortest.
func TestHeartbeats(t *testing.T) {
	serves := [][]string{{"plain", "--app", "sink", "--heartbeat", "500ms"}}
	for _, model := range myriad.Models() {
		serves = append(serves, []string{"serve", "--app", "sink", "--model", model, "--heartbeat", "500ms", "--heartbeat-message", "ping\n"})
	}
	for _, args := range serves {
		s := startServer(t, args...)
		got := invoke(t, "load", "--unprompted", "-m", "pong\n", "--answer", "ping\n", "-c", "5", "--duration", "1500ms", s.addr)
		if got.code != 0 || !strings.Contains(got.stdout, "5 of 5") || strings.Contains(got.stdout, "answered    0,") {
			t.Errorf("%q: exit code %d, stdout %s, stderr %s", args, got.code, got.stdout, got.stderr)
		}
	}
}

func TestBenchList(t *testing.T) {
	for scale, says := range map[string]string{"full": "quick      2 minutes", "small": "heartbeat  a minute", "": "\nLeft out unless --with asks for it:\noverload: ants, pond, "} {
		if got := invoke(t, "bench", "list", "--scale", scale); got.code != 0 || !strings.Contains(got.stdout, says) {
			t.Errorf("%s: exit code %d, stderr %q, does not say %q:\n%s", scale, got.code, got.stderr, says, got.stdout)
		}
	}
}

// What is shown is a file that can be run.
func TestBenchShow(t *testing.T) {
	got := invoke(t, "bench", "show", "quick")
	if got.code != 0 {
		t.Fatalf("exit code %d, stderr %q", got.code, got.stderr)
	}
	s, err := probe.Scenarios.Read(strings.NewReader(got.stdout))
	if err != nil || s.Name != "quick" {
		t.Errorf("got %q, %v", s.Name, err)
	}
}

func TestBenchRefuses(t *testing.T) {
	wrong := filepath.Join(t.TempDir(), "wrong.toml")
	if err := os.WriteFile(wrong, []byte("name = 'x'\nrouns = 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"":                                  "no scenario given; expected one of quick, ",
		"quik":                              `no scenario "quik" is built in; expected one of quick, `,
		"show quik":                         `no scenario "quik" is built in`,
		"show":                              "accepts 1 arg",
		"list x":                            `unexpected argument "x"`,
		"list --scale tiny":                 `has no scale "tiny"; expected one of small, full`,
		"quick quick":                       `two scenarios are named "quick"; expected each once`,
		"quick all":                         `two scenarios are named "quick"`,
		"./none.toml":                       "no such file",
		wrong:                               wrong + `: line 2: "rouns" is no key of a scenario; expected those of docs/scenarios.md`,
		"quick --out x.json":                `--out is "x.json"; expected a directory`,
		"quick --scale tiny":                `quick has no scale "tiny"`,
		"quick --rounds 0":                  "--rounds is 0; expected at least 1",
		"quick --duration 0s":               "--duration is 0s; expected more than 0",
		"quick --duration 1ms":              "load for 1ms; expected 100ms to",
		"quick --connections-max 0":         "--connections-max is 0; expected at least 1",
		"quick --connections-max x":         "--connections-max",
		"quick --only (":                    "expected a regular expression",
		"quick --with (":                    "--with is \"(\": error parsing regexp: missing closing ): `(`; expected a regular expression",
		"quick --with net,":                 "--with has an empty name",
		"quick --with=":                     "--with has an empty name",
		"quick --with nest":                 `"nest" is asked for; expected nothing to be, as nothing is optional here`,
		"quick overload --with none":        `"none" matches no workload and no subject; expected to match some of those that are optional: ants, `,
		"quick --only nothing":              "matches no run",
		"quick --subject mine":              "--subject: subject \"mine\" has no name",
		"quick --resume x":                  "--resume with quick; expected it alone",
		"quick --out " + wrong:              wrong + " is a file, or below one; expected an empty directory",
		"--resume " + wrong:                 wrong + " is a file, or below one; expected the directory of a report",
		"--resume " + filepath.Dir(wrong):   "has no journal.jsonl; expected the directory of a report",
		"heartbeat --connections-max 10 -n": "-n",
	} {
		got := invoke(t, append([]string{"bench"}, strings.Fields(args)...)...)
		if got.code != 2 || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: exit code %d, stderr %q, want 2 and %q", args, got.code, got.stderr, want)
		}
		if said := got.stdout + got.stderr; strings.Contains(said, "report in ") {
			t.Errorf("%s: it says where a report is that there is not: %q", args, said)
		}
	}
}

// A scenario of a user's own runs beside another one.
func TestBenchFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		text := strings.ReplaceAll(`
name = "NAME"
question = "Which is faster?"
rounds = 1
[[subject]]
name = "mine"
command = "{self} plain --addr {addr} --app {app}"
[[workload]]
name = "busy-NAME"
app = "echo"
connections = 50
size = 16
phases = [{ do = "load", for = "100ms" }]
[scale.small]
connections = 5
`, "NAME", name)
		if err := os.WriteFile(filepath.Join(dir, name+".toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := invoke(t, "bench", filepath.Join(dir, "one.toml"), filepath.Join(dir, "two.toml"), "--scale", "small",
		"--subject", "other={self} plain --addr {addr} --app {app}", "--out", filepath.Join(dir, "out"))
	if got.code != 0 {
		t.Fatalf("exit code %d, stderr %s\n%s", got.code, got.stderr, got.stdout)
	}
	for _, word := range []string{"\nbusy-one\n  App echo, 5 connections: load.", "busy-two", "  mine  ", "  other  ", "busy-two has 5 connections instead of 50 (scale small).", "ratio to mine", "report in " + dir} {
		if !strings.Contains(got.stdout, word) {
			t.Errorf("the report does not say %q:\n%s", word, got.stdout)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "out", "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var book result.Set
	if err := json.Unmarshal(text, &book); err != nil || len(book.Reports) != 2 || book.Scale != "small" {
		t.Errorf("got %d reports at scale %q, %v, want both", len(book.Reports), book.Scale, err)
	}
	again := invoke(t, "bench", "--resume", filepath.Join(dir, "out"))
	if again.code != 0 || !strings.Contains(again.stderr, "nothing is left to do") || !strings.Contains(again.stdout, "\nbusy-two\n") {
		t.Errorf("resumed: exit code %d, stderr %q\n%s", again.code, again.stderr, again.stdout)
	}
}

// A soak of a few seconds finds nothing wrong, and says what it saw.
func TestBenchSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	got := invoke(t, "bench", "soak", "--duration", "4s", "--model", "epoll", "--honest", "20")
	if got.code != 0 {
		t.Fatalf("bench soak: exit code %d, stderr %s\n%s", got.code, got.stderr, got.stdout)
	}
	for _, word := range []string{"20 honest clients", "errors 0", "reset ", "too_long ", "first to last quarter", "epoll: sound"} {
		if !strings.Contains(got.stdout, word) {
			t.Errorf("the report does not say %q:\n%s", word, got.stdout)
		}
	}
	if got := invoke(t, "bench", "soak", "--duration", "1s"); got.code != 2 || !strings.Contains(got.stderr, "expected 4s to") {
		t.Errorf("too short: exit code %d, stderr %q", got.code, got.stderr)
	}
	if got := invoke(t, "bench", "soak", "--model", "threads"); got.code != 2 || !strings.Contains(got.stderr, `subject "threads"; expected some of [goroutine`) {
		t.Errorf("wrong model: exit code %d, stderr %q", got.code, got.stderr)
	}
}

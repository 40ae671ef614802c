package main

import (
	"strings"
	"testing"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/lab"
)

// Every subject of a scenario that this program serves is a command line that it
// understands, with every app.
func TestSubjectsParse(t *testing.T) {
	models := myriad.Models()
	for _, s := range []lab.Scenario{lab.Quick(), lab.Peers(models), lab.Models(models)} {
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
	placeholders := strings.NewReplacer("{addr}", "127.0.0.1:0", "{port}", "0", "{app}", app)
	for _, word := range words {
		filled = append(filled, placeholders.Replace(word))
	}
	return filled
}

// The answers of handlers that wait and that compute are checked, processes
// serve, and the report says how auto does.
func TestBenchModels(t *testing.T) {
	const only = "^compute-100/(prefork-2|auto)$|^wait-100/auto$"
	got := invoke(t, "bench", "models", "--rounds", "1", "--duration", "100ms", "--only", only, "--out", "")
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

func TestBenchHelp(t *testing.T) {
	for scenario, says := range map[string]string{"quick": "about 2 minutes", "models": "auto"} {
		if got := invoke(t, "bench", scenario, "--help"); got.code != 0 || !strings.Contains(got.stdout, says) {
			t.Errorf("bench %s --help: exit code %d, does not say %q:\n%s", scenario, got.code, says, got.stdout)
		}
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// Every subject of a scenario that this program serves is a command line that it
// understands, with every app.
func TestSubjectsParse(t *testing.T) {
	for _, name := range scenario.BuiltInNames() {
		s, err := probe.ScenarioReader.ReadBuiltIn(name)
		testkit.RequireNoError(t, err)
		if s, err = (scenario.Options{}).ApplyForThisMachine(s); err != nil {
			t.Fatal(err)
		}
		for _, w := range s.Workloads {
			fill := strings.NewReplacer("{addr}", "127.0.0.1:0", "{port}", "0", "{app}", w.App,
				"{cert}", "cert.pem", "{key}", "key.pem", "{heartbeat}", "1m0s",
				"{admin}", "127.0.0.1:0", "{n}", "1000", "{room}", "1100", "{processes}", "2")
			for _, subject := range s.Subjects {
				if subject.Apps != nil || subject.Command[0] != "{self}" {
					continue
				}
				var args []string
				for _, word := range subject.Command[1:] {
					args = append(args, fill.Replace(word))
				}
				cmd, flags, err := newRootCommandWithNamedSubcommand().Find(args)
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

func readReport(t *testing.T, dir string) *result.Set {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "report.json"))
	testkit.RequireNoError(t, err)
	defer f.Close()
	set, err := result.ReadSet(f)
	testkit.RequireNoError(t, err)
	return set
}

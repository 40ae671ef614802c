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
		testkit.NoError(t, err)
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
				cmd, flags, err := newRootCommandForArgs().Find(args)
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

// small is a scenario of each kind of phase, NAME being its name.
const small = `
name = "NAME"
question = "Does each phase do what it has to?"
rounds = 1

[[subject]]
name = "net"
workloads = ["echo", "idle"]
command = "{self} plain --addr {addr} --app {app} --admin {admin}"
[[subject]]
name = "{model}"
models = ["goroutine", "auto"]
workloads = ["echo"]
command = "{self} serve --addr {addr} --app {app} --model {model} --tls-cert {cert} --tls-key {key}"
[[subject]]
name = "prefork"
workloads = ["held"]
per_cpu = true
command = "{self} serve --app push --model epoll --addr {addr} --admin {admin} --max-conns {room} --first-byte-timeout never --heartbeat {heartbeat} --processes {processes}"
[[subject]]
name = "under-attack"
workloads = ["attack"]
command = "{self} serve --addr {addr} --app {app} --admin {admin} --first-byte-timeout 2s --message-timeout 3s --idle-timeout 4s --write-timeout 3s --max-message 32768 --max-unsent 65536 --drain 3s"
[[subject]]
name = "pool"
workloads = ["jobs"]
command = "{self} offer --pool ours"
side = { measures = true }
[[subject]]
name = "goroutines"
workloads = ["park"]
command = "{self} park -n {n}"
parks = true

[[workload]]
name = "echo"
app = "echo"
connections = 20
size = 16
phases = [{ do = "load", for = "100ms" }]
[[workload]]
name = "idle"
app = "echo"
connections = 100
size = 16
phases = [{ do = "connect" }, { do = "load", for = "100ms" }, { do = "hold", for = "1s" }]
[[workload]]
name = "park"
connections = 1000
phases = [{ do = "park" }]
[[workload]]
name = "held"
app = "lines"
unpinned = true
connections = 2000
phases = [
  { do = "connect" },
  { do = "verify", in_flight = 100 },
  { do = "hold", for = "100ms" },
  { do = "broadcast" },
  { do = "hold", for = "500ms", heartbeat = "300ms" },
  { do = "verify" },
  { do = "hold", for = "100ms" },
]
[[workload]]
name = "attack"
app = "lines"
unpinned = true
phases = [{ do = "attack", for = "4s", honest = 10 }]
[[workload]]
name = "jobs"
phases = [{ do = "jobs", shape = "cpu", times = 1, warm_up = "50ms", for = "100ms" }]

[scale.small]
connections = 1500
`

// writeScenario writes a scenario to a file.
func writeScenario(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name+".toml")
	testkit.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(text, "NAME", name)), 0o600))
	return path
}

// readReport reads the report of a directory.
func readReport(t *testing.T, dir string) *result.Set {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "report.json"))
	testkit.NoError(t, err)
	defer f.Close()
	set, err := result.ReadSet(f)
	testkit.NoError(t, err)
	return set
}

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
	scenarios := []lab.Scenario{lab.Quick(), lab.Peers(models), lab.Models(models), lab.TLSCosts(models), lab.HeartbeatCosts(models, 1000), lab.IdleCosts(models, 1000, 1000)}
	for _, s := range scenarios {
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

// Every server takes the lab's certificate, and every answer is right.
func TestBenchTLS(t *testing.T) {
	got := invoke(t, "bench", "tls", "--rounds", "1", "--duration", "100ms", "--only", "^echo-100/", "--out", "")
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

func TestBenchHeartbeatConnections(t *testing.T) {
	got := invoke(t, "bench", "heartbeat", "-n", "0", "--out", "")
	if got.code != 2 || !strings.Contains(got.stderr, "0 connections; expected at least 1") {
		t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
	}
}

// Servers beat, and clients that answer stay: also under plain.
func TestHeartbeats(t *testing.T) {
	serves := [][]string{{"plain", "--app", "sink", "--heartbeat", "100ms"}}
	for _, model := range myriad.Models() {
		serves = append(serves, []string{"serve", "--app", "sink", "--model", model, "--heartbeat", "100ms", "--heartbeat-message", "ping\n"})
	}
	for _, args := range serves {
		s := startServer(t, args...)
		got := invoke(t, "load", "--unprompted", "-m", "pong\n", "--answer", "ping\n", "-c", "5", "--duration", "1500ms", s.addr)
		if got.code != 0 || !strings.Contains(got.stdout, "5 of 5") || strings.Contains(got.stdout, "answered    0,") {
			t.Errorf("%q: exit code %d, stdout %s, stderr %s", args, got.code, got.stdout, got.stderr)
		}
	}
}

func TestBenchHelp(t *testing.T) {
	for scenario, says := range map[string]string{"quick": "about 2 minutes", "models": "auto", "idle": "--to N"} {
		if got := invoke(t, "bench", scenario, "--help"); got.code != 0 || !strings.Contains(got.stdout, says) {
			t.Errorf("bench %s --help: exit code %d, does not say %q:\n%s", scenario, got.code, says, got.stdout)
		}
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
	if got := invoke(t, "bench", "soak", "--model", "threads"); got.code != 2 || !strings.Contains(got.stderr, "expected one of goroutine") {
		t.Errorf("wrong model: exit code %d, stderr %q", got.code, got.stderr)
	}
}

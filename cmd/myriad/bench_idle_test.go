package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/lab"
)

// Goroutines are parked, and a server is counted and asked for its memory.
func TestBenchIdle(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.json")
	got := invoke(t, "bench", "idle", "--to", "200", "--goroutines", "1000", "--only", "parked|epoll", "--out", out)
	if got.code != 0 {
		t.Fatalf("bench idle: exit code %d, stderr %s\n%s", got.code, got.stderr, got.stdout)
	}
	for _, word := range []string{"epoll", "1,000", "idle-200", "was not measured here"} {
		if !strings.Contains(got.stdout, "  "+word) && !strings.Contains(got.stdout, word+":") && !strings.Contains(got.stdout, word+",") {
			t.Errorf("the report does not say %q:\n%s", word, got.stdout)
		}
	}
	for _, wrong := range []string{"FAILED", "count 1/1", "mismatch", "not run"} {
		if strings.Contains(got.stdout, wrong) {
			t.Errorf("the report says %q:\n%s", wrong, got.stdout)
		}
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var report lab.Report
	if err := json.Unmarshal(b, &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Runs) < 2 {
		t.Errorf("%d runs, want goroutines and a server at least", len(report.Runs))
	}
	for _, r := range report.Runs {
		if runtime.GOOS == "linux" && r.Parked == nil && (r.Idle == nil || r.Idle.Full == nil || r.Idle.Memory.Connections != 200) {
			t.Errorf("%s/%s: got %+v, want 200 connections by the server's count", r.Workload, r.Subject, r.Idle)
		}
	}
}

func TestBenchIdleRefuses(t *testing.T) {
	for flag, want := range map[string]string{
		"--to=0": "0 connections; expected at least 1", "--goroutines=0": "0 goroutines; expected 1 to", "--to=x": "--to",
	} {
		if got := invoke(t, "bench", "idle", flag, "--out", ""); got.code != 2 || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: exit code %d, stderr %q, want %q", flag, got.code, got.stderr, want)
		}
	}
	if got := invoke(t, "park", "-n", "0"); got.code != 2 || !strings.Contains(got.stderr, "-n is 0 goroutines; expected 1 to") {
		t.Errorf("park: exit code %d, stderr %q", got.code, got.stderr)
	}
	got := invoke(t, "plain", "--app", "http", "--admin", "127.0.0.1:0")
	if got.code != 2 || !strings.Contains(got.stderr, "an address for metrics with http") {
		t.Errorf("plain: exit code %d, stderr %q", got.code, got.stderr)
	}
}

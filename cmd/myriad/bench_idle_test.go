package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/lab/result"
)

// Goroutines are parked, and a server is counted and asked for its memory: sizes that
// come to the same are run once.
func TestBenchIdle(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	got := invoke(t, "bench", "idle", "--connections-max", "200", "--only", "parked|net|epoll", "--out", out)
	if got.code != 0 {
		t.Fatalf("bench idle: exit code %d, stderr %s\n%s", got.code, got.stderr, got.stdout)
	}
	for _, word := range []string{"  epoll  ", "parked-10000", "\nidle-10000\n", "200 connections that are silent", "Left out: parked-50000"} {
		if !strings.Contains(got.stdout, word) {
			t.Errorf("the report does not say %q:\n%s", word, got.stdout)
		}
	}
	for _, wrong := range []string{"FAILED", "count 1/1", "mismatch", "not run"} {
		if strings.Contains(got.stdout, wrong) {
			t.Errorf("the report says %q:\n%s", wrong, got.stdout)
		}
	}
	b, err := os.ReadFile(filepath.Join(out, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var set result.Set
	if err := json.Unmarshal(b, &set); err != nil || len(set.Reports) != 1 {
		t.Fatalf("%d reports, %v, want one", len(set.Reports), err)
	}
	report := set.Reports[0]
	if len(report.Runs) < 2 {
		t.Errorf("%d runs, want goroutines and a server at least", len(report.Runs))
	}
	for _, r := range report.Runs {
		if idle := r.Sample("idle"); runtime.GOOS == "linux" && r.Subject != "goroutines" && (idle == nil || idle.Counts == nil || idle.Counts.Open != 200) {
			t.Errorf("%s/%s: got %+v, want 200 connections by the server's count", r.Workload, r.Subject, idle)
		}
	}
}

func TestParkRefuses(t *testing.T) {
	if got := invoke(t, "park", "-n", "0"); got.code != 2 || !strings.Contains(got.stderr, "-n is 0; expected 1 to") {
		t.Errorf("park: exit code %d, stderr %q", got.code, got.stderr)
	}
	got := invoke(t, "plain", "--app", "http", "--admin", "127.0.0.1:0")
	if got.code != 2 || !strings.Contains(got.stderr, "an address for metrics with http") {
		t.Errorf("plain: exit code %d, stderr %q", got.code, got.stderr)
	}
}

package lab

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
)

// parkTest is how many goroutines are parked in tests: the race detector allows
// about 8,000.
const parkTest = 5000

// TestPark leaves it to goleak to see that all have ended.
func TestPark(t *testing.T) {
	samples, err := Park(t.Context(), parkTest)
	if err != nil {
		t.Fatal(err)
	}
	if len(samples) != 2 || samples[0].Moment != Ready || samples[1].Moment != Parked {
		t.Fatalf("got %+v, want a sample before and one after", samples)
	}
	// A stack is 2 KiB at least, and all of them were there at the same time;
	// some may have been there before, unused.
	if after := samples[1].Go; after.StackInuse < parkTest*2048 || after.Sys < after.StackInuse {
		t.Errorf("got %+v, want stacks of %d goroutines", after, parkTest)
	}
	if runtime.GOOS == "linux" && (samples[1].RSS < parkTest*2048 || samples[1].Anonymous > samples[1].RSS || samples[1].Anonymous == 0) {
		t.Errorf("got %+v, want the memory of the process", samples[1])
	}
}

func TestParkRefuses(t *testing.T) {
	var wrong ScenarioError
	for _, n := range []int{-1, 0, MaxParked + 1} {
		if _, err := Park(t.Context(), n); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "expected 1 to 67108864") {
			t.Errorf("%d goroutines: got %v, want a ScenarioError", n, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := Park(ctx, 10); err == nil || err.Error() != "enough" {
		t.Errorf("got %v, want the cause of the end", err)
	}
}

func parkScenario(command ...string) Scenario {
	return Scenario{
		Name: "park", Question: "?", Baseline: "a", Rounds: 1,
		Subjects:  []Subject{{Name: "goroutines", Parks: true, Command: append([]string{"{self}"}, command...)}, acting("a", "plain")},
		Workloads: []Workload{{Name: "parked", Kind: Parking, Connections: parkTest}},
	}
}

// TestRunParking parks in a process of its own; a server is not run under it.
func TestRunParking(t *testing.T) {
	report, err := Run(t.Context(), parkScenario("park", "{n}"), children(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Runs) != 1 {
		t.Fatalf("%d runs, want 1", len(report.Runs))
	}
	f := report.Runs[0].Parked
	// With the race detector they need 4 KiB, of what was seen 4,096 to 5,177; and Go begins
	// with as much as the mean of those that a collection saw, rounded up to a power of two.
	if f == nil || f.Goroutines != parkTest || f.Stack < 2000 || f.Stack > 3*4096 {
		t.Fatalf("got error %q, %+v, want some 2 KiB of stack each", report.Runs[0].Error, f)
	}
	var text strings.Builder
	if err := report.WriteText(&text); err != nil || !strings.Contains(text.String(), "\n  5,000  ") {
		t.Errorf("got %v, want a row of 5,000:\n%s", err, text.String())
	}
}

func TestRunParkingFails(t *testing.T) {
	for want, command := range map[string][]string{
		"this server fails":           {"fail", "{n}"},
		"expected a sample":           {"babble", "{n}"},
		"0 goroutines; expected 1 to": {"park", "0", "{n}"},
	} {
		report, err := Run(t.Context(), parkScenario(command...), children(t))
		if err != nil {
			t.Fatal(err)
		}
		if got := report.Runs[0]; !strings.Contains(got.Error, want) || got.Parked != nil {
			t.Errorf("%q: got error %q, want %q", command, got.Error, want)
		}
	}
}

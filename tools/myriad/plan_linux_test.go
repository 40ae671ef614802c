package main

import (
	"math"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/lab/capacity"
)

// sizes has the two sizes of `myriad bench capacity`, smaller. A goroutine for each connection
// takes enough memory that a prediction which counts it wrongly is far off.
const sizes = `
name = "sizes"
question = "Does a run with 1,000 connections tell what 5,000 take?"
rounds = 1

[[subject]]
name = "{model}"
models = ["goroutine", "epoll"]
command = "{self} serve --addr {addr} --app {app} --model {model} --loops 2 --admin {admin} --first-byte-timeout never --write-timeout never --max-conns {room}"

[[workload]]
name = "few"
app = "echo"
connections = 1_000
size = 64
phases = [{ do = "connect", connections = 100 }, { do = "verify" }, { do = "connect" }, { do = "hold", for = "1s" }, { do = "load", warm_up = "300ms", for = "500ms", rate = 2_000 }]

[[workload]]
name = "many"
app = "echo"
connections = 5_000
size = 64
phases = [{ do = "connect", connections = 100 }, { do = "verify" }, { do = "connect" }, { do = "hold", for = "1s" }, { do = "load", warm_up = "500ms", for = "500ms", rate = 2_000 }]
`

// hasRaceDetector reports whether this program was built with the race detector.
func hasRaceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// measureBenchSizes measures both sizes, and returns the directory of the report and what of it can be
// planned from: not all where the machine is so busy that a run fails, or has no message in its
// window.
func measureBenchSizes(t *testing.T) (out string, all []capacity.MeasuredCosts) {
	t.Helper()
	out = filepath.Join(t.TempDir(), "out")
	if got := invokeCommand(t, "bench", writeScenario(t, "sizes", sizes), "--out", out); got.code != 0 {
		t.Logf("exit code %d: %s", got.code, got.output())
	}
	all, err := capacity.MeasurementsFromBench(readReport(t, out))
	if err != nil {
		t.Log(err)
	}
	return out, all
}

// What 5,000 connections take of a server's memory is predicted from 1,000. The kernel's is of
// the whole machine, on which other tests run: it is only printed here, as is the CPU.
func TestPlanPredicts(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	testkit.ReserveDescriptors(t, 6_000)
	out, all := measureBenchSizes(t)
	for tries := 1; len(all) < 4 && tries < 3; tries++ {
		out, all = measureBenchSizes(t)
	}
	predicted := capacity.PredictEachFromSmallest(all, nil)
	if len(predicted) != 2 {
		t.Fatalf("%d predictions of %+v, want one of each subject", len(predicted), all)
	}
	for _, p := range predicted {
		if p.From.Connections != 1000 || p.To.Connections != 5000 || p.Figures[0].What != "the process, idle" {
			t.Errorf("%s: predicted %d from %d connections: %s, want 5,000 from 1,000", p.To.Subject, p.To.Connections, p.From.Connections, p.Figures[0].What)
		}
		for _, c := range p.Figures {
			t.Logf("%s: %s: %s, measured %s, %+.1f %%", p.To.Subject, c.What, c.Format(c.Predicted), c.Format(c.Measured), c.RelativeError()*100)
		}
		const most = 0.1 // the race detector changes memory use
		if off := p.Figures[0].RelativeError(); math.Abs(off) > most && !hasRaceDetector() {
			t.Errorf("%s: the memory of the process is off by %+.1f %%, want at most %.0f %%", p.To.Subject, off*100, most*100)
		}
	}
	got := invokeCommand(t, "plan", "--from", out, "--subject", "epoll", "-n", "10M", "--memory", "64Gi", "--cores", "16")
	for _, words := range []string{"Measured: 1,000 connections, epoll, echo, 2 loops", "10,000,000", "LimitNOFILE", "myriad doctor -n "} {
		if got.code != 0 || !strings.Contains(got.stdout, words) {
			t.Errorf("plan: exit code %d, want %q: %s", got.code, words, got.output())
		}
	}
	if got := invokeCommand(t, "plan", "--from", out, "--check", "--within", "0.0001%"); got.code != 1 || !strings.Contains(got.stderr, "further off than") {
		t.Errorf("--check --within a millionth: exit code %d, want 1: %s", got.code, got.output())
	}
}

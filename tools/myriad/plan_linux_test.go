package main

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/lab/capacity"
)

// What 5,000 connections take of a server's memory is predicted from 1,000. The kernel's is of
// the whole machine, on which other tests run: it is only printed here, as is the CPU.
func TestPlanPredicts(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	testkit.AcquireDescriptorsOrSkip(t, 6_000)
	var out string
	var all []capacity.MeasuredCosts
	for tries := 0; len(all) < 2 && tries < 3; tries++ { // on a busy machine a run may fail, or have no message in its window
		out = filepath.Join(t.TempDir(), "out")
		got := invokeCommand(t, "bench", "testdata/sizes.toml", "--out", out)
		var err error
		if all, err = capacity.MeasurementsFromBench(readReport(t, out)); err != nil {
			t.Log(err, got.output())
		}
	}
	predicted := capacity.PredictFromSmallestOfSameSetup(all, nil)
	if len(predicted) != 1 {
		t.Fatalf("%d predictions of %+v, want one", len(predicted), all)
	}
	for _, p := range predicted {
		if p.From.Connections != 1000 || p.To.Connections != 5000 || p.Figures[0].What != "the process, idle" {
			t.Errorf("%s: predicted %d from %d connections: %s, want 5,000 from 1,000", p.To.Subject, p.To.Connections, p.From.Connections, p.Figures[0].What)
		}
		for _, c := range p.Figures {
			t.Logf("%s: %s: %s, measured %s, %+.1f %%", p.To.Subject, c.What, c.Format(c.Predicted), c.Format(c.Measured), c.RelativeError()*100)
		}
		// The race detector changes memory use.
		if off := p.Figures[0].RelativeError(); math.Abs(off) > 0.1 && !testkit.RaceEnabled {
			t.Errorf("%s: the memory of the process is off by %+.1f %%, want at most 10 %%", p.To.Subject, off*100)
		}
	}
	invokeCommand(t, "plan", "--from", out, "--subject", "goroutine", "-n", "10M", "--memory", "64Gi", "--cores", "16").checkOutcome(t, "plan",
		0, "Measured: 1,000 connections, goroutine, echo, 2 loops", "10,000,000", "LimitNOFILE", "myriad doctor -n ")
	invokeCommand(t, "plan", "--from", out, "--check", "--within", "0.0001%").checkOutcome(t, "plan --check", 1, "off by more than")
}

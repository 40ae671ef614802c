package run

import (
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// What a server does at rest is told apart from nothing, in pieces, and is of the last sample.
func TestRest(t *testing.T) {
	for name, c := range map[string]struct {
		command string
		busy    bool
	}{"a server that sleeps": {"exec sleep 60", false}, "one that computes": {"while :; do :; done", true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLauncher()
			defer l.close()
			p, err := l.startPinnedProcess(t.Context(), command{args: []string{"sh", "-c", c.command}, killDelay: stopKillDelay}, nil)
			testkit.RequireNoError(t, err)
			defer p.terminateAndWait()
			m := &serverMeasurement{server: &serverProcess{p, ""}, record: &result.Run{Samples: make([]result.Sample, 2)}}
			testkit.RequireNoError(t, m.measureIdleCPUIntoLastSample(t.Context()))
			rested := m.record.Samples[1].Resting
			if len(rested) != idlePeriods || m.record.Samples[0].Resting != nil {
				t.Fatalf("pieces %v, want %d of the last sample only", m.record.Samples, idlePeriods)
			}
			for _, cpus := range rested {
				if c.busy != (cpus > 0) {
					t.Errorf("%v CPUs, want some only of one that is busy", rested)
				}
			}
		})
	}
}

// It takes a hold before a load, and one that is long enough for memory to be sampled in it as well.
func TestRests(t *testing.T) {
	hold := func(d time.Duration) scenario.Phase {
		return scenario.Phase{Do: scenario.Hold, For: scenario.Duration(d)}
	}
	for _, c := range []struct {
		phases []scenario.Phase
		want   bool
	}{
		{[]scenario.Phase{hold(2 * idleMeasureTime), {Do: scenario.Load}}, true},
		{[]scenario.Phase{hold(2*idleMeasureTime - time.Second), {Do: scenario.Load}}, false},
		{[]scenario.Phase{hold(2 * idleMeasureTime), {Do: scenario.Verify}}, false},
		{[]scenario.Phase{{Do: scenario.Load}, hold(2 * idleMeasureTime)}, false},
	} {
		m := &serverMeasurement{runner: &runner{sampled: true}, workload: &scenario.Workload{Phases: c.phases}}
		if got := m.shouldMeasureIdleCPU(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.phases, got, c.want)
		}
	}
}

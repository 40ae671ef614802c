package run

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// A side that does not end is ended, and has the row of what it has counted by then; one that
// has counted nothing has failed.
func TestSideThatStays(t *testing.T) {
	l := startLauncher(t)
	stay := func(mode string, slack time.Duration) (*result.Jobs, error) {
		j := &jobsRun{runner: &runner{launcher: l}, phase: scenario.Phase{Memory: 1 << 40}, overtime: slack - jobsDrainTimeout}
		side := scenario.Subject{Name: "x", Command: []string{os.Args[0], mode}, Contender: &scenario.Contender{}}
		rec := &result.Run{Started: time.Now(), Jobs: &result.Jobs{}}
		err := j.runContenderWithMemoryAndTimeLimits(t.Context(), rec, side, jobSettings{rate: 1})
		return rec.Jobs, err
	}
	// A machine can be too busy for the side to start, or to say anything, within a short time.
	for mode, as := range map[string]func(*result.Jobs, error) bool{
		"hang": func(got *result.Jobs, err error) bool {
			return err != nil && got.Result == nil && strings.Contains(err.Error(), "the job generator took longer than")
		},
		"progress": func(got *result.Jobs, err error) bool {
			return err == nil && got.Result != nil && got.Result.Finished == 7 && strings.Contains(got.Result.Overran, "its counts are of the first 0.8 s of its window")
		},
	} {
		slack := 250 * time.Millisecond
		got, err := stay(mode, slack)
		for !as(got, err) && slack < 10*time.Second {
			slack *= 2
			got, err = stay(mode, slack)
		}
		if !as(got, err) {
			t.Errorf("%s: got %+v, %v", mode, got.Result, err)
		}
	}
}

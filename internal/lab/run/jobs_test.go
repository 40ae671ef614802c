package run

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/lab/result"
	"github.com/myriad-go/myriad/internal/lab/scenario"
)

// A side that does not end is ended, and has the row of what it has counted by then; one that
// has counted nothing has failed.
func TestSideThatStays(t *testing.T) {
	l := startLauncher(t)
	stay := func(mode string, slack time.Duration) (*result.Jobs, error) {
		j := &jobs{runner: &runner{launcher: l}, phase: scenario.Phase{Memory: 1 << 40}, slack: slack - jobsDrain}
		side := scenario.Subject{Name: "x", Command: []string{os.Args[0], mode}, Side: &scenario.Side{}}
		rec := &result.Run{Started: time.Now(), Jobs: &result.Jobs{}}
		err := j.offer(t.Context(), rec, side, offering{rate: 1})
		return rec.Jobs, err
	}
	if got, err := stay("hang", time.Millisecond); err == nil || got.Result != nil || !strings.Contains(err.Error(), "longer than 1ms") {
		t.Errorf("got %+v, %v; want that it took longer", got.Result, err)
	}
	slack := 250 * time.Millisecond
	got, err := stay("progress", slack)
	for got.Result == nil && slack < time.Minute { // the machine was too busy for it to say anything
		slack *= 2
		got, err = stay("progress", slack)
	}
	if err != nil || got.Result == nil || got.Result.Finished != 7 || !strings.Contains(got.Result.Overran, "its counts are of the first 0.8 s of its window") {
		t.Errorf("got %+v, %v; want what it has counted", got.Result, err)
	}
}

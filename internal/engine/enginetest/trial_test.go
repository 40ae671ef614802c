package enginetest

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// A case that fails is tried again where this process was held up, and only there.
func TestTrials(t *testing.T) {
	const long = heldUp + 1
	for name, c := range map[string]struct {
		held   []time.Duration // in each trial
		fails  int             // so many trials
		trials int
		wrong  bool
	}{
		"right":                     {[]time.Duration{long}, 0, 1, false},
		"wrong":                     {[]time.Duration{heldUp}, 5, 1, true},
		"held up":                   {[]time.Duration{long, long, 0}, 2, 3, false},
		"held up, and wrong":        {[]time.Duration{long, 0}, 5, 2, true},
		"held up as often as it is": {slices.Repeat([]time.Duration{long}, mostTrials), mostTrials, mostTrials, true},
	} {
		trials, cleaned := 0, 0
		watch := func() func() time.Duration {
			held := c.held[trials]
			return func() time.Duration { return held }
		}
		wrong := tryTimes(t, watch, func(tb testing.TB) {
			trials++
			tb.Cleanup(func() { cleaned++ })
			if trials <= c.fails {
				tb.Fatalf("%s", "as it was to")
				t.Errorf("%s: it goes on after Fatalf", name)
			}
		})
		if trials != c.trials || cleaned != trials || (wrong != "") != c.wrong {
			t.Errorf("%s: %d trials, %d cleaned up, %q; want %d", name, trials, cleaned, wrong, c.trials)
		}
		if c.wrong && !(strings.Contains(wrong, "trial_test.go:") && strings.HasSuffix(wrong, "as it was to")) {
			t.Errorf("%s: it says %q; want where and what", name, wrong)
		}
	}
}

// The watch says how late a look was, not how late all were together.
func TestWatchClock(t *testing.T) {
	looks := 0
	longest := watchClock(func() time.Time { // only the second look is late
		looks++
		return time.Time{}.Add(time.Duration(looks) * lookEvery).Add(time.Duration(min(looks, 2)) * time.Hour)
	})
	for range 5 {
		time.Sleep(lookEvery)
	}
	if late := longest(); late != time.Hour {
		t.Errorf("late by %v, want an hour", late)
	}
}

package pool

import (
	"sync/atomic"
	"time"
)

// trust says whether all jobs of a pool have been quick lately: so many in a row that
// the next will hardly be another. It is lost with one that was not. Each time the
// next is harder to get, up to a bound, and a little easier after it was deserved
// for a while.
type trust struct {
	streak atomic.Int64 // quick jobs in a row, counted while there are too few
	needs  atomic.Int64 // how many it takes
}

const (
	// quickJob is how long a job takes that is quick.
	quickJob = 20 * time.Microsecond
	// It takes trustFrom to trustMost jobs, and fewer after trustMore batches.
	trustFrom, trustMost, trustMore = 64, 1 << 16, 256
)

// quick says whether the next job can be trusted to be quick.
func (t *trust) quick() bool { return t.streak.Load() >= t.needs.Load() }

// judge counts jobs that were quick, or not. good is the caller's, and counts batches
// since trust was made easier to get.
func (t *trust) judge(quick bool, jobs int, good *int) {
	needs := t.needs.Load()
	trusted := t.streak.Load() >= needs
	switch {
	case !quick:
		if trusted {
			t.needs.Store(min(2*needs, trustMost))
		}
		if t.streak.Load() != 0 {
			t.streak.Store(0)
		}
	case !trusted:
		t.streak.Add(int64(jobs))
	case needs > trustFrom:
		if *good++; *good >= trustMore {
			*good = 0
			t.needs.Store(max(needs/2, trustFrom))
		}
	}
}

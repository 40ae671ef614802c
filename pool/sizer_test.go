package pool

import (
	"testing"
	"time"
)

// The limit follows waiting jobs and goroutines that wait for a processor.
func TestSizer(t *testing.T) {
	const procs = 4
	for _, test := range []struct {
		what    string
		workers int
		ticks   int // of a millisecond
		load    loadSample
		ends    bool // a job ends in each tick
		want    int
	}{
		{"nothing waits", 100, 50, loadSample{}, true, 100},
		{"work waits and processors are idle: a quarter more", 100, 1, loadSample{waiting: 1000, runnable: procs}, true, 125},
		{"no more than jobs wait", 100, 1, loadSample{waiting: 3}, true, 103},
		{"at least one more", 2 * procs, 1, loadSample{waiting: 1}, true, 2*procs + 1},
		{"at most Max", 1900, 5, loadSample{waiting: 1 << 20}, true, 2000},
		{"work waits and processors are full", 100, 1000, loadSample{waiting: 1000, runnable: procs + 1}, true, 100},
		{"goroutines queue for processors, but not for long", 320, 19, loadSample{runnable: 8*procs + 1}, true, 320},
		{"goroutines queue for processors: a 32nd less", 320, 21, loadSample{runnable: 8*procs + 1}, true, 310},
		{"and so on", 320, 41, loadSample{runnable: 8*procs + 1}, true, 301},
		{"never less than two for each processor", 9, 500, loadSample{runnable: 1000}, true, 2 * procs},
		{"work waits and no job ends: one more", 100, 51, loadSample{waiting: 1, runnable: 8 * procs}, false, 101},
		{"one each 50 ms", 100, 501, loadSample{waiting: 1, runnable: 8 * procs}, false, 110},
	} {
		s := newWorkerSizer(0, 2000, procs)
		s.limit = test.workers
		l := test.load
		for i := range test.ticks {
			if l.workers = s.limit; test.ends {
				l.finished++
			}
			s.updateWorkerLimit(int64(i+1)*int64(time.Millisecond), l)
		}
		if s.limit != test.want {
			t.Errorf("%s: %d workers become %d, want %d", test.what, test.workers, s.limit, test.want)
		}
	}
	s := newWorkerSizer(0, 2000, procs)
	s.ceiling = 50
	if n := s.updateWorkerLimit(1, loadSample{waiting: 1000, workers: 200}); n != 50 {
		t.Errorf("the limit is %d above the memory budget's 50", n)
	}
	if s := newWorkerSizer(3, 3, procs); s.updateWorkerLimit(1, loadSample{waiting: 9, workers: 3}) != 3 {
		t.Errorf("the limit of a fixed pool of 3 is %d", s.limit)
	}
}

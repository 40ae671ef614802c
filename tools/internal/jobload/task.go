package jobload

import (
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/tools/internal/pacer"
)

// Shapes (kinds) of jobs.
const (
	// Published jobs wait for 20 ms and hold 500 KB of memory, as in the experiment of go-adaptive-pool.
	Published = "published"
	// CPU jobs compute for a millisecond.
	CPU = "cpu"
	// Mixed jobs are of three kinds. Of a hundred jobs, 80 compute for 0.2 ms, 19 wait for 5 ms and compute for 0.1 ms,
	// and one waits for 50 ms and holds 100 KB of memory.
	Mixed = "mixed"
	// ShortCPU jobs compute for 20 µs.
	ShortCPU = "short-cpu"
	// Steps jobs wait for 2 ms, but for 200 ms in the middle third of the window.
	Steps = "steps"
	// Limited jobs wait for 20 ms. Servers run at most 100 of them at the same time.
	Limited = "limited"
)

type jobTask struct {
	wait, compute time.Duration
	waitInMiddle  time.Duration // replaces wait in the middle third of the window, unless it is 0
	bytes         int
}

// shapes lists the tasks of each shape, with the percentage of jobs that perform the task.
var shapes = map[string][]struct {
	percent uint64
	jobTask
}{
	Published: {{100, jobTask{wait: 20 * time.Millisecond, bytes: 500_000}}},
	CPU:       {{100, jobTask{compute: time.Millisecond}}},
	ShortCPU:  {{100, jobTask{compute: 20 * time.Microsecond}}},
	Limited:   {{100, jobTask{wait: 20 * time.Millisecond}}},
	Steps:     {{100, jobTask{wait: 2 * time.Millisecond, waitInMiddle: 200 * time.Millisecond}}},
	Mixed: {
		{80, jobTask{compute: 200 * time.Microsecond}},
		{19, jobTask{wait: 5 * time.Millisecond, compute: 100 * time.Microsecond}},
		{1, jobTask{wait: 50 * time.Millisecond, bytes: 100_000}},
	},
}

func pickTaskForJob(shape string, number uint64) jobTask {
	n := pacer.RandomAt(1, number) % 100
	for _, s := range shapes[shape] {
		if n < s.percent {
			return s.jobTask
		}
		n -= s.percent
	}
	return jobTask{}
}

// allocateComputeAndWait performs the task. inMiddleOfWindow must be true for tasks that begin in the middle third of
// the measured window, because their wait can have another length.
func (t jobTask) allocateComputeAndWait(iterationsPerMillisecond uint64, inMiddleOfWindow bool) {
	if inMiddleOfWindow && t.waitInMiddle > 0 {
		t.wait = t.waitInMiddle
	}
	hold := make([]byte, t.bytes)
	for i := 0; i < len(hold); i += pageSize {
		hold[i] = 1
	}
	if t.compute > 0 {
		spinCPU(max(uint64(float64(iterationsPerMillisecond)*float64(t.compute)/float64(time.Millisecond)), 1))
	}
	if t.wait > 0 {
		time.Sleep(t.wait)
	}
	runtime.KeepAlive(hold)
}

var pageSize = os.Getpagesize()

// MeasureSpinsPerMillisecond measures how many iterations of a loop take a millisecond. It takes about 30 ms, in which
// the machine should be idle.
func MeasureSpinsPerMillisecond() uint64 {
	const try = 1 << 16 // short enough that some tries are not interrupted on a busy machine
	best := time.Hour
	for range 192 {
		begin := time.Now()
		spinCPU(try)
		best = min(best, time.Since(begin))
	}
	return uint64(try * float64(time.Millisecond) / float64(max(best, 1)))
}

// computed keeps the compiler from removing the loop in spinCPU.
var computed atomic.Bool

func spinCPU(iterations uint64) {
	x := iterations
	for range iterations {
		x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	}
	if x == 0x5bd1e9955bd1e995 {
		computed.Store(true)
	}
}

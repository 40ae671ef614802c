package jobload

import (
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/tools/internal/pacer"
)

// The shapes of jobs.
const (
	// Published jobs wait for 20 ms and hold 500 KB: those of the experiment of go-adaptive-pool.
	Published = "published"
	// CPU jobs compute for a millisecond.
	CPU = "cpu"
	// Of a hundred Mixed jobs, 80 compute for 0.2 ms, 19 wait for 5 ms and compute for 0.1 ms, and
	// one waits for 50 ms and holds 100 KB.
	Mixed = "mixed"
)

// jobTask is the work of a job.
type jobTask struct {
	wait, compute time.Duration
	bytes         int
}

// shapes are the tasks of a hundred jobs by shape, with the number of each.
var shapes = map[string][]struct {
	percent uint64
	jobTask
}{
	Published: {{100, jobTask{wait: 20 * time.Millisecond, bytes: 500_000}}},
	CPU:       {{100, jobTask{compute: time.Millisecond}}},
	Mixed: {
		{80, jobTask{compute: 200 * time.Microsecond}},
		{19, jobTask{wait: 5 * time.Millisecond, compute: 100 * time.Microsecond}},
		{1, jobTask{wait: 50 * time.Millisecond, bytes: 100_000}},
	},
}

// pickTaskForJob returns the task of the job with a number. All contenders get the same tasks in the
// same order.
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

// allocateComputeAndWait does the task; iterationsPerMillisecond are a millisecond of computing.
func (t jobTask) allocateComputeAndWait(iterationsPerMillisecond uint64) {
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

// MeasureSpinsPerMillisecond measures how many iterations are a millisecond of computing while nothing else
// runs. It takes some 30 ms.
func MeasureSpinsPerMillisecond() uint64 {
	const try = 1 << 16 // so short that some are not interrupted on a busy machine
	best := time.Hour
	for range 192 {
		begin := time.Now()
		spinCPU(try)
		best = min(best, time.Since(begin))
	}
	return uint64(try * float64(time.Millisecond) / float64(max(best, 1)))
}

// computed makes the compiler keep the computation. It is hardly ever written.
var computed atomic.Bool

// spinCPU computes for a number of iterations, each of which depends on the previous one.
func spinCPU(iterations uint64) {
	x := iterations
	for range iterations {
		x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	}
	if x == 0x5bd1e9955bd1e995 {
		computed.Store(true)
	}
}

package offer

import (
	"math/bits"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

// The shapes of jobs.
const (
	// Published jobs wait for 20 ms and hold 500 KB meanwhile: those of the
	// experiment of go-adaptive-pool.
	Published = "published"
	// CPU jobs compute for a millisecond.
	CPU = "cpu"
	// Mixed jobs are, of a hundred, 80 that compute for 0.2 ms, 19 that wait
	// for 5 ms and compute for 0.1 ms, and one that waits for 50 ms and holds
	// 100 KB.
	Mixed = "mixed"
)

// Shapes lists the shapes of jobs.
func Shapes() []string { return []string{Published, CPU, Mixed} }

// task is what a job does.
type task struct {
	wait   time.Duration
	rounds uint64 // of spin
	bytes  int
}

// do does it. What it returns is to be kept, so that it is not left out.
func (t task) do() (result uint64) {
	hold := make([]byte, t.bytes)
	for i := 0; i < len(hold); i += page {
		hold[i] = 1
	}
	if t.rounds > 0 {
		result = spin(t.rounds)
	}
	if t.wait > 0 {
		time.Sleep(t.wait)
	}
	runtime.KeepAlive(hold)
	return result
}

var page = os.Getpagesize()

// tasks is what each job of a plan does, by its number.
type tasks struct {
	all   task
	mixed [3]task // of 80, 19 and 1 in a hundred
	mix   bool
	seed  uint64
}

// tasks makes them, with so many rounds for a millisecond of computing.
func (p *Plan) tasks(iterations uint64) *tasks {
	rounds := func(d time.Duration) uint64 {
		hi, lo := bits.Mul64(iterations, uint64(d))
		rounds, _ := bits.Div64(hi, lo, uint64(time.Millisecond))
		return max(rounds, 1)
	}
	t := &tasks{mix: p.Work == Mixed, seed: p.Seed}
	switch p.Work {
	case Published:
		t.all = task{wait: 20 * time.Millisecond, bytes: 500_000}
	case CPU:
		t.all = task{rounds: rounds(time.Millisecond)}
	case Mixed:
		t.mixed = [3]task{
			{rounds: rounds(200 * time.Microsecond)},
			{wait: 5 * time.Millisecond, rounds: rounds(100 * time.Microsecond)},
			{wait: 50 * time.Millisecond, bytes: 100_000},
		}
	}
	if p.Wait >= 0 {
		t.all.wait = p.Wait
	}
	if p.CPU == 0 {
		t.all.rounds = 0
	} else if p.CPU > 0 {
		t.all.rounds = rounds(p.CPU)
	}
	if p.Bytes >= 0 {
		t.all.bytes = p.Bytes
	}
	return t
}

// of is what the job of a number does.
func (t *tasks) of(number uint64) task {
	if !t.mix {
		return t.all
	}
	switch n := scatter(t.seed^number*0x9e3779b97f4a7c15) % 100; {
	case n < 80:
		return t.mixed[0]
	case n < 99:
		return t.mixed[1]
	}
	return t.mixed[2]
}

// scatter makes a number that looks random of one: the finalizer of SplitMix64
// (G. Steele, D. Lea and C. Flood, OOPSLA 2014).
func scatter(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// spin computes for so many rounds, each of which needs the one before.
func spin(rounds uint64) uint64 {
	x := rounds
	for range rounds {
		x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	}
	return x
}

// Iterations measures how many rounds are a millisecond of computing while nothing
// else runs. It takes some 30 ms.
func Iterations() uint64 {
	const try = 1 << 16 // so short that some are not interrupted on a busy machine
	best := time.Hour
	for range 192 {
		begin := time.Now()
		keep(spin(try))
		best = min(best, time.Since(begin))
	}
	return uint64(try * float64(time.Millisecond) / float64(max(best, 1)))
}

// needed stands for a use of what was computed.
var needed atomic.Bool

// keep has a result be needed, so that computing it is not left out. It hardly ever
// writes.
func keep(result uint64) {
	if result == 0x5bd1e9955bd1e995 {
		needed.Store(true)
	}
}

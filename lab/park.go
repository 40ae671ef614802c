package lab

import (
	"context"
	"os"
	"runtime"
	"sync"
	"time"
)

// MaxParked is the most goroutines that Park parks.
const MaxParked = 64 << 20

// Park parks n goroutines, 1 to MaxParked, each waiting for the same channel and
// doing nothing else, and returns two samples of this process: Ready, before the
// first of them, and Parked, when all wait. So what a goroutine takes is seen
// without a connection, as in "Tuning a Go TCP server toward 1M idle connections
// on a laptop". It looks at the whole process, so it wants one of its own.
//
// All of them have ended when it returns. When ctx ends it returns its cause. A
// number out of bounds is a ScenarioError. Where /proc is not available the
// samples have Go's figures only.
func Park(ctx context.Context, n int) ([]Sample, error) {
	if n < 1 || n > MaxParked {
		return nil, wrong("%d goroutines; expected 1 to %d", n, MaxParked)
	}
	runtime.GC()
	samples := []Sample{takeOwn(Ready)}
	p := parking{release: make(chan struct{})}
	defer p.end()
	for range n {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		p.park()
	}
	p.begun.Wait()
	return append(samples, takeOwn(Parked)), nil
}

// parking is where goroutines are parked. They end when release is closed.
type parking struct {
	release      chan struct{}
	begun, ended sync.WaitGroup
}

func (p *parking) park() {
	p.begun.Add(1)
	p.ended.Add(1)
	go p.wait()
}

func (p *parking) wait() {
	defer p.ended.Done()
	p.begun.Done()
	<-p.release
}

// end lets all go, and waits for them.
func (p *parking) end() {
	close(p.release)
	p.ended.Wait()
}

// takeOwn samples the memory of this process.
func takeOwn(moment Moment) Sample {
	s := Sample{Moment: moment, At: time.Now(), Go: readGoMemory()}
	// Without /proc there is what Go says.
	_ = s.readServerMemory([]int{os.Getpid()})
	return s
}

// parkEach is about how long it takes to park a goroutine.
const parkEach = 3 * time.Microsecond

package offer

import (
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

const (
	// sampling is how often the process is looked at, report how often a Line
	// is written: often enough that a process that is ended within a second
	// has said what it had counted.
	sampling = 50 * time.Millisecond
	report   = 250 * time.Millisecond
)

// peaks are the most goroutines and workers that were seen. The lanes look, too,
// since the sampler may not run for long when there are very many.
type peaks struct{ goroutines, workers atomic.Int64 }

// look looks how many there are. It makes no system call and stops nobody.
func (p *peaks) look(s Side) {
	raise(&p.goroutines, int64(runtime.NumGoroutine()))
	raise(&p.workers, int64(s.Workers()))
}

// raise makes a value at least as great as n.
func raise(v *atomic.Int64, n int64) {
	for {
		if old := v.Load(); n <= old || v.CompareAndSwap(old, n) {
			return
		}
	}
}

// opening is what there was when the window began.
type opening struct {
	cpu     procfs.Stat
	workers int
}

// begin notes that the window begins. Who sees it first does so.
func (g *generator) begin() {
	stat, _ := procfs.ReadStat(os.Getpid()) // not on every system
	g.opening.CompareAndSwap(nil, &opening{cpu: stat, workers: g.side.Workers()})
}

// sampler looks at the process, and reports how the run is going. Its goroutine
// ends with stop.
type sampler struct {
	run   *run
	g     *generator
	out   io.Writer
	ended chan struct{}
	done  sync.WaitGroup
	err   error // of writing
}

func startSampler(r *run, g *generator, out io.Writer) *sampler {
	s := &sampler{run: r, g: g, out: out, ended: make(chan struct{})}
	if r.opens == 0 {
		g.begin()
	}
	s.done.Go(s.sample)
	return s
}

// stop ends it. The error is that of writing lines.
func (s *sampler) stop() error {
	close(s.ended)
	s.done.Wait()
	return s.err
}

func (s *sampler) sample() {
	next := s.next(0)
	timer := time.NewTimer(time.Duration(next) + sampling)
	defer timer.Stop()
	generated := s.g.done
	for {
		select {
		case <-s.ended:
			return
		case <-generated:
			generated = nil
		case <-s.g.sample:
		case <-timer.C:
		}
		s.g.peaks.look(s.g.side)
		at := s.run.now()
		if at >= s.run.opens && s.g.opening.Load() == nil {
			s.g.begin()
		}
		if at >= next {
			next = s.next(at)
			if s.err == nil {
				s.err = s.line(at).Write(s.out)
			}
		}
		if generated == nil {
			timer.Reset(sampling)
		} else { // the generator ticks; in case it can't
			timer.Reset(time.Duration(next-at) + sampling)
		}
	}
}

// next is when the next line is due after a time: at each multiple of report, and as
// soon as the window begins. Both are in ns after the start.
func (s *sampler) next(at int64) int64 {
	next := at - at%int64(report) + int64(report)
	if at < s.run.opens {
		next = min(next, s.run.opens)
	}
	return next
}

// line is that of a time.
func (s *sampler) line(at int64) Line {
	if at < s.run.opens {
		return Line{Warming: s.result(&s.run.warming)}
	}
	return Line{Progress: s.result(&s.run.window)}
}

// result is the Result of a book so far. What the system does not tell stays 0.
func (s *sampler) result(b *book) *Result {
	r := s.run.result(s.g, b)
	r.PeakGoroutines = int(s.g.peaks.goroutines.Load())
	r.PeakWorkers = int(s.g.peaks.workers.Load())
	if m, err := procfs.ReadResident(os.Getpid()); err == nil {
		r.PeakRSS = m.Peak // the kernel keeps it
	}
	began := s.g.opening.Load()
	if began == nil {
		return r
	}
	if stat, err := procfs.ReadStat(os.Getpid()); err == nil {
		r.CPUUser, r.CPUSystem = stat.User-began.cpu.User, stat.System-began.cpu.System
	}
	if s.run.opens > 0 {
		r.WarmWorkers = began.workers
	}
	return r
}

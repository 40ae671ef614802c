package enginetest

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// The cases of times have limits of some hundred milliseconds, and clients that keep to
// them, which they can't where a busy machine holds this process up for as long. So a
// case that has failed while it was held up is tried again. What fails while it was not
// has failed.
const (
	mostTrials = 5
	// heldUp is much less than what any client has to spare.
	heldUp = short / 8
	// lookEvery is the time between two looks at the clock.
	lookEvery = 5 * time.Millisecond
)

// tryTimes runs a case in trials, and says what was wrong in the last one. watch begins
// to measure for how long this process is held up, until longest is called.
func tryTimes(t testing.TB, watch func() (longest func() time.Duration), run func(t testing.TB)) (wrong string) {
	for n := 1; ; n++ {
		longest := watch()
		tr := &trial{TB: t}
		tr.run(run)
		held := longest()
		said := tr.all()
		if said == "" {
			return ""
		}
		wrong = fmt.Sprintf("trial %d, in which this process was held up for at most %v:\n%s", n, held, said)
		if n == mostTrials || held <= heldUp {
			return wrong
		}
		t.Log(wrong)
	}
}

// watchDelays measures how late this process looks at the clock.
func watchDelays() (longest func() time.Duration) { return watchClock(time.Now) }

func watchClock(look func() time.Time) (longest func() time.Duration) {
	end, most := make(chan struct{}), make(chan time.Duration)
	go func() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		var late time.Duration
		for last, ended := look(), false; !ended; {
			select {
			case <-tick.C:
			case <-end:
				ended = true
			}
			now := look()
			late, last = max(late, now.Sub(last)-lookEvery), now
		}
		most <- late
	}()
	return func() time.Duration { close(end); return <-most }
}

// trial is a test that keeps its failures to itself. It is safe for concurrent use.
type trial struct {
	testing.TB
	mu       sync.Mutex
	said     []string
	cleanups []func()
}

// run runs a case, which may end its goroutine, and then what it has to clean up.
func (t *trial) run(f func(t testing.TB)) {
	t.alone(func() { f(t) })
	for len(t.cleanups) > 0 {
		last := len(t.cleanups) - 1
		f := t.cleanups[last]
		t.cleanups = t.cleanups[:last]
		t.alone(f)
	}
}

func (t *trial) alone(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (t *trial) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

// fail notes what was said, and the calls that have led there.
func (t *trial) fail(what string) {
	var way []string
	pcs := make([]uintptr, 16)
	for frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)]); ; {
		f, more := frames.Next()
		if !more || strings.HasSuffix(f.File, "trial.go") {
			break
		}
		way = append(way, fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.said = append(t.said, strings.Join(way, " < ")+": "+what)
}

func (t *trial) Fail()    { t.fail("failed") }
func (t *trial) FailNow() { t.fail("failed"); runtime.Goexit() }

func (t *trial) Error(args ...any)                 { t.fail(fmt.Sprint(args...)) }
func (t *trial) Errorf(format string, args ...any) { t.fail(fmt.Sprintf(format, args...)) }
func (t *trial) Fatal(args ...any)                 { t.fail(fmt.Sprint(args...)); runtime.Goexit() }
func (t *trial) Fatalf(format string, args ...any) {
	t.fail(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

func (t *trial) Failed() bool { return t.all() != "" }

// all is what was said so far, "" if nothing has failed.
func (t *trial) all() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.said, "\n")
}

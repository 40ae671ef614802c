package jobload

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "offer" { // this process is the server of a serverContender
		var p Plan
		f := flag.NewFlagSet("offer", flag.ExitOnError)
		p.AddFlags(f, BuiltInContenders())
		_ = f.Parse(os.Args[2:]) // exits on an error
		if err := Run(context.Background(), p, BuiltInContenders(), os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testkit.Main(m)
}

// fakePool is a side that accepts a job if it returns true.
type fakePool func(j *Job) bool

func (f fakePool) TrySubmit(j *Job) bool { return f(j) }
func (f fakePool) Workers() int          { return 0 }
func (f fakePool) Close()                {}

func reject(*Job) bool { return false }
func accept(*Job) bool { return true }

// job is how long a published job waits.
const job = 20 * time.Millisecond

func newTestPlan(rate float64, duration time.Duration) Plan {
	return Plan{
		Pool: "fake", Work: Published, Rate: rate, Duration: duration, Drain: 5 * time.Second, Deadline: time.Second,
		Workers: 1, Iterations: 1,
	}
}

// run runs a plan and returns its lines, the last of which has a result. Of pools that aren't ours it takes the fake.
func runPlan(t *testing.T, ctx context.Context, p Plan, try fakePool) (lines []OutputLine, r *Result) {
	t.Helper()
	sides := BuiltInContenders()
	sides["fake"] = func(Plan) (Contender, error) { return try, nil }
	var out bytes.Buffer
	testkit.RequireNoError(t, Run(ctx, p, sides, &out))
	for text := range bytes.Lines(out.Bytes()) {
		l := testkit.Must(ParseOutputLine(text))(t)
		r := cmp.Or(l.Result, l.Progress, l.Warming)
		if r.Offered != r.Accepted+r.Rejected || r.Accepted != r.Finished+r.Expired+r.Shed+r.Unfinished || r.Good > r.Finished {
			t.Errorf("the sums are wrong: %+v", r)
		}
		lines = append(lines, l)
	}
	if n := len(lines); n == 0 || lines[n-1].Result == nil {
		t.Fatalf("%q ends without a result", out.String())
	}
	return lines, lines[len(lines)-1].Result
}

// TestSchedule has every job submitted when it is due. While the pool holds up a submission, others take over.
func TestSchedule(t *testing.T) {
	const hold = 100 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Duration
		start := time.Now()
		_, r := runPlan(t, t.Context(), newTestPlan(1000, time.Second), func(j *Job) bool {
			mu.Lock()
			n := len(at)
			at = append(at, time.Since(start))
			mu.Unlock()
			if n == 500 {
				time.Sleep(hold)
			}
			return false
		})
		if len(at) != 1000 || r.Offered != 1000 || r.Rejected != 1000 || r.Missed != 0 || r.Late != 0 {
			t.Fatalf("%d jobs submitted, %+v; want 1,000, none late", len(at), r)
		}
		for i, got := range at {
			due, most := time.Duration(i)*time.Millisecond, 2*workPause
			if i > 500 && due < 500*time.Millisecond+hold {
				most = 2 * reserveDelay
			}
			if got < due || got > due+most {
				t.Fatalf("job %d was submitted after %v, want %v to %v later", i, got, due, most)
			}
		}
	})
}

// TestBurst checks that the rate is higher in the first tenth of each second.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPlan(100, 2*time.Second)
		p.Burst = 5
		start := time.Now()
		var counts [20]int // per tenth of a second
		runPlan(t, t.Context(), p, func(*Job) bool {
			counts[time.Since(start)/(100*time.Millisecond)]++
			return false
		})
		for i, n := range counts {
			if want := map[bool]int{true: 50, false: 10}[i%10 == 0]; n != want {
				t.Errorf("%d jobs in tenth %d; want %d", n, i, want)
			}
		}
	})
}

// TestSteps checks that jobs wait longer in the middle third of the window.
func TestSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPlan(100, 3*time.Second)
		p.Pool, p.Work, p.Workers = "naive", Steps, 100
		_, r := runPlan(t, t.Context(), p, nil)
		if r.Finished != 300 || r.P50 > 3*time.Millisecond || r.P99 < 200*time.Millisecond || r.Mean < 67*time.Millisecond || r.Mean > 70*time.Millisecond {
			t.Errorf("got %+v; want 100 of 300 jobs to wait for 200 ms, the others for 2 ms", r)
		}
	})
}

// TestPublishedPoolGrows checks that the published pool starts with 100 workers, and adds a quarter each second while
// its queue is full.
func TestPublishedPoolGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPlan(8_000, 2200*time.Millisecond)
		p.Pool, p.Workers, p.Queue = "published", 140, 500
		_, r := runPlan(t, t.Context(), p, nil)
		if r.PeakWorkers != 140 || r.Rejected == 0 { // 100, 125, then the limit
			t.Errorf("%d workers, %d rejected; want 140, and rejections", r.PeakWorkers, r.Rejected)
		}
	})
}

// TestLate has the pool hold up every submission: what is due is submitted late, or missed.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPlan(100, 2*time.Second)
		p.Drain = 500 * time.Millisecond
		_, r := runPlan(t, t.Context(), p, func(*Job) bool {
			time.Sleep(500 * time.Millisecond)
			return false
		})
		const lanes = 1 + reserveSubmitters
		if r.LateP99 < time.Second || r.LateP99 > 2500*time.Millisecond {
			t.Errorf("late by %v; want seconds", r.LateP99)
		}
		if r.Offered+r.Missed != 200 || r.Offered < 4*lanes || r.Offered > 6*lanes || r.Late < 3*lanes || r.Late > r.Offered {
			t.Errorf("%d offered, %d late, %d missed; want 4 to 6 by each of %d lanes, most late, and 200 in all", r.Offered, r.Late, r.Missed, lanes)
		}
	})
}

// TestLatency follows each job through one worker and a queue of two. They are due each
// 12.5 ms and take 20 ms.
func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPlan(80, 100*time.Millisecond)
		p.Pool, p.Queue, p.Deadline = "channel", 2, 45*time.Millisecond
		_, r := runPlan(t, t.Context(), p, nil)
		near := func(name string, got, want time.Duration) {
			t.Helper()
			if off := got - want; off < 0 || off > want/100 {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		// Those that end do so 20, 40, 60, 80, 100, 120 and 140 ms after the start: 20, 27.5, 35,
		// 42.5, 50, 57.5 and 52.5 ms after they were submitted.
		near("elapsed", r.Elapsed, 140*time.Millisecond)
		near("p50", r.P50, 42500*time.Microsecond)
		near("p99", r.P99, 57500*time.Microsecond)
		near("max", r.Max, 57500*time.Microsecond)
		near("mean", r.Mean, 285*time.Millisecond/7)
		got := []uint64{r.Offered, r.Accepted, r.Rejected, r.Finished, r.Good, r.Steady, r.Missed, r.Late}
		if want := []uint64{8, 7, 1, 7, 4, 4, 0, 0}; !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v: %+v", got, want, r)
		}
		if r.GCShare < 0 || r.GCShare > 1 {
			t.Errorf("the collector's share is %v", r.GCShare)
		}
		if r.PeakWorkers != 1 || r.PeakGoroutines < 2 {
			t.Errorf("%d workers, %d goroutines", r.PeakWorkers, r.PeakGoroutines)
		}
	})
}

// TestOwn runs the sides with few jobs and no room for all of them.
func TestOwn(t *testing.T) {
	for name := range BuiltInContenders() {
		if strings.HasPrefix(name, managedServer) {
			continue // see TestServerContenders
		}
		for work := range shapes {
			t.Run(name+" "+work, func(t *testing.T) {
				p := newTestPlan(2000, 50*time.Millisecond)
				p.Pool, p.Work, p.Workers, p.Queue, p.Iterations = name, work, 2, 3, 1000
				p.Deadline = time.Minute // also on a machine that is busy
				_, r := runPlan(t, t.Context(), p, nil)
				if r.Offered != 100 || r.Finished == 0 || r.Unfinished != 0 || r.Overran != "" {
					t.Errorf("got %+v", r)
				}
				if name == "naive" && r.Finished != 100 {
					t.Errorf("%d finished of 100", r.Finished)
				}
			})
		}
	}
}

// TestEnds has jobs end in each way, and some not at all: those are waited for as long as the plan says, and no longer.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		var kept []*Job
		_, r := runPlan(t, t.Context(), newTestPlan(100, time.Second), func(j *Job) bool {
			n++
			switch n % 10 {
			case 0, 1:
				return false
			case 2:
				j.Dropped(fmt.Errorf("%w, really", pool.ErrExpired))
			case 3, 4:
				time.AfterFunc(30*time.Millisecond, func() { j.Dropped(pool.ErrShed) })
			case 5:
				j.Dropped(pool.ErrClosed)
			case 6:
				kept = append(kept, j)
			default:
				go j.Run(t.Context())
			}
			return true
		})
		got := []uint64{r.Offered, r.Rejected, r.Expired, r.Shed, r.Unfinished, r.Finished}
		if want := []uint64{100, 20, 10, 20, 20, 30}; !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if r.ShedP50.Round(time.Millisecond) != 30*time.Millisecond || r.ShedP99 != r.ShedP50 {
			t.Errorf("shed after %v and %v, want 30ms", r.ShedP50, r.ShedP99)
		}
		if r.Elapsed != 6*time.Second || r.Overran != "" {
			t.Errorf("ended after %v (%q), want 6s", r.Elapsed, r.Overran)
		}
		before := time.Now()
		for _, j := range kept {
			j.Execute()
		}
		if took := time.Since(before); took > 0 {
			t.Errorf("jobs took %v after the end; want them to do nothing", took)
		}
		kept[0].CountAsShed()
		defer func() {
			if recover() == nil {
				t.Error("a job that ended twice did not panic")
			}
		}()
		kept[0].CountAsExpired()
	})
}

// TestHang has a pool that does not answer.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lanes = 1 + reserveSubmitters
		answer := make(chan bool)
		begin := time.Now()
		_, r := runPlan(t, t.Context(), newTestPlan(100, time.Second), func(*Job) bool { return <-answer })
		if r.Offered != lanes || r.Unfinished != lanes || r.Missed != 100-lanes || !strings.Contains(r.Overran, "had not returned") {
			t.Errorf("got %+v; want a job of each of %d lanes, and why", r, lanes)
		}
		if took, want := time.Since(begin), 6*time.Second+submitTimeout; took != want {
			t.Errorf("it took %v, want %v", took, want)
		}
		for range lanes {
			answer <- false
		}
	})
}

// TestEndsEarly ends a run by its context: in the warm-up, while jobs are offered, and while
// the last ones are waited for.
func TestEndsEarly(t *testing.T) {
	for after, want := range map[time.Duration]uint64{305 * time.Millisecond: 0, 1005 * time.Millisecond: 51, 3 * time.Second: 100} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(after, func() { cancel(errors.New("for a reason")) })
			p := newTestPlan(100, time.Second)
			p.Warmup = 500 * time.Millisecond
			lines, r := runPlan(t, ctx, p, accept)
			if r.Elapsed != max(0, after-p.Warmup) || r.Offered != want || r.Overran != "ended from outside: for a reason" {
				t.Errorf("ended after %v with %d offered: %q, want %v, %d and the reason", r.Elapsed, r.Offered, r.Overran, after-p.Warmup, want)
			}
			if lines[0].Warming == nil {
				t.Errorf("got %+v, want a line of the warm-up first", lines[0])
			}
		})
	}
}

// TestProgress has a line each quarter of a second, and an error of writing returned.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPlan(100, 875*time.Millisecond)
		p.Drain = 0
		lines, _ := runPlan(t, t.Context(), p, accept)
		if len(lines) != 4 {
			t.Fatalf("%d lines, want 3 of progress and a result", len(lines))
		}
		for i, l := range lines[:3] {
			if want := time.Duration(i+1) * 250 * time.Millisecond; l.Progress == nil || l.Progress.Elapsed != want || l.Progress.Offered < uint64(i+1)*25 {
				t.Errorf("line %d is %+v, want progress after %v", i, l, want)
			}
		}
		gone := failingWriter{errors.New("gone")}
		if err := Run(t.Context(), p, Contenders{"fake": func(Plan) (Contender, error) { return fakePool(reject), nil }}, gone); !errors.Is(err, gone.error) {
			t.Errorf("got %v, want %v", err, gone)
		}
		if err := Run(t.Context(), p, Contenders{"fake": func(Plan) (Contender, error) { return nil, gone }}, nil); !errors.Is(err, gone) {
			t.Errorf("got %v, want %v", err, gone)
		}
	})
}

// TestProgressOfJobs has the goroutine that has done a job write the line that is due, without the one that is there
// for it: each line once, none behind a later one or the last, and nobody waits for who writes.
func TestProgressOfJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r := newJobLoadRun(newTestPlan(0, time.Second), fakePool(accept), &out)
		do := func() {
			j := &Job{generator: r, inWindow: true, submitted: r.now()}
			r.shardOf(0).counts[nOffered]++
			r.slots <- struct{}{}
			j.Execute()
		}
		finished := func() (all []uint64) {
			for text := range bytes.Lines(out.Bytes()) {
				l := testkit.Must(ParseOutputLine(text))(t)
				all = append(all, cmp.Or(l.Progress, l.Result).Finished)
			}
			return all
		}
		do()
		time.Sleep(reportInterval)
		do()
		do()
		r.lines.mu.Lock()
		time.Sleep(reportInterval)
		do()
		r.lines.mu.Unlock()
		r.lines.writeLineUnlessBusyOrOutdated(OutputLine{Progress: r.buildResultSoFar(0)}, 0)
		time.Sleep(reportInterval)
		do()
		if got, want := finished(), []uint64{2, 5}; !reflect.DeepEqual(got, want) {
			t.Errorf("lines with %v jobs, want %v", got, want)
		}
		testkit.RequireNoError(t, r.lines.writeFinalLine(OutputLine{Result: r.buildResultSoFar(r.now())}))
		time.Sleep(reportInterval)
		do()
		if got, want := finished(), []uint64{2, 5, 5}; !reflect.DeepEqual(got, want) {
			t.Errorf("lines with %v jobs, want %v", got, want)
		}
	})
}

type failingWriter struct{ error }

func (f failingWriter) Write([]byte) (int, error) { return 0, f.error }

// TestWarmup counts no job of the warm-up, whenever it ends, but in Steady.
func TestWarmup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPlan(100, time.Second)
		p.Warmup, p.Deadline = 500*time.Millisecond, 30*time.Millisecond
		n := 0
		_, r := runPlan(t, t.Context(), p, func(j *Job) bool {
			n++
			switch {
			case n > 50:
				go j.Execute()
			case n%5 == 0:
				return false
			case n%5 == 1:
				j.CountAsExpired()
			case n%5 == 2:
				j.CountAsShed()
			case n%5 == 3:
				go j.Execute()
			default:
				time.AfterFunc(job, j.Execute) // ends late
			}
			return true
		})
		got := []uint64{r.Offered, r.Accepted, r.Finished, r.Good, r.Rejected, r.Expired, r.Shed, r.Unfinished, r.Missed}
		if want := []uint64{100, 100, 100, 100, 0, 0, 0, 0, 0}; !reflect.DeepEqual(got, want) || r.Max != job || r.Mean != job {
			t.Errorf("got %v, want %v: those of the window, %v each; %+v", got, want, job, r)
		}
		// The last two jobs of the window end when it is over.
		if r.Steady != 98 {
			t.Errorf("%d ended in the window, want 98", r.Steady)
		}
	})
}

// TestClosedLoop has as many jobs in flight as it is to, always, and does not spin at a pool that rejects.
func TestClosedLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPlan(0, time.Second)
		p.Pool, p.Workers, p.Queue, p.Inflight, p.Warmup = "channel", 4, 8, 8, 500*time.Millisecond
		_, r := runPlan(t, t.Context(), p, nil)
		// Each of the workers does one in 20 ms.
		if r.Finished < 200 || r.Finished > 208 || r.Steady < 200 || r.Steady > 208 || r.Unfinished != 0 || r.Rejected != 0 || r.Max != 2*job {
			t.Errorf("got %+v; want some 200 finished, 40 ms each", r)
		}
		_, r = runPlan(t, t.Context(), newTestPlan(0, time.Second), reject)
		if want := uint64(time.Second / retryDelay); r.Offered < want || r.Offered > want+1 || r.Rejected != r.Offered {
			t.Errorf("%d offered, %d rejected; want %d, and perhaps one at the end", r.Offered, r.Rejected, want)
		}
	})
}

// TestContext ends a job's context at its deadline, for who asks, waits, or derives one.
func TestContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPlan(10, time.Second)
		p.Deadline = 300 * time.Millisecond
		runPlan(t, t.Context(), p, func(j *Job) bool {
			if j.Err() != nil {
				t.Error("the context has ended at once")
			}
			derived, cancel := context.WithCancel(j)
			begin := time.Now()
			go func() {
				defer cancel()
				<-derived.Done()
				<-j.Done()
				if took := time.Since(begin); took != p.Deadline || !errors.Is(j.Err(), context.DeadlineExceeded) {
					t.Errorf("the context has ended after %v, %v; want %v", took, j.Err(), p.Deadline)
				}
				j.CountAsExpired()
			}()
			return true
		})
	})
}

// TestPlanErrors reaches every bound: each says what was wrong and what was expected.
func TestPlanErrors(t *testing.T) {
	for says, change := range map[string]func(p *Plan){
		`--pool is "nix"; expected one of channel, naive, ours, published, server, server-nethttp, server-off`: func(p *Plan) { p.Pool = "nix" },
		`--work is "nix"; expected one of cpu, limited, mixed, published, short-cpu, steps`:                    func(p *Plan) { p.Work = "nix" },
		"--rate is -1; expected 0 (a closed loop) to 100000000":                                                func(p *Plan) { p.Rate = -1 },
		"--rate is NaN":                                                            func(p *Plan) { p.Rate = math.NaN() },
		"at least one job":                                                         func(p *Plan) { p.Rate = 0.5 },
		"--burst is -1; expected 0 to 1000":                                        func(p *Plan) { p.Burst = -1 },
		"--burst is 5 with a --rate of 0":                                          func(p *Plan) { p.Burst, p.Rate = 5, 0 },
		"--inflight is 1 with a --rate of 10":                                      func(p *Plan) { p.Inflight = 1 },
		"--warmup is -1ns; expected 0s to 1h":                                      func(p *Plan) { p.Warmup = -1 },
		"--duration is 0s; expected 1ms to 1h":                                     func(p *Plan) { p.Duration = 0 },
		"--drain is -1ns; expected 0s to 1h":                                       func(p *Plan) { p.Drain = -1 },
		"--deadline is 0s; expected 1ns to 1h":                                     func(p *Plan) { p.Deadline = 0 },
		"--connections is 20000; expected 0 to 16000":                              func(p *Plan) { p.Connections = 20_000 },
		"--sources is 10; expected 0 to 9":                                         func(p *Plan) { p.Connections, p.Sources = 100, 10 },
		"--workers is 0; expected 1 to 1000000":                                    func(p *Plan) { p.Workers = 0 },
		"--queue is -1; expected 0 to 16777216":                                    func(p *Plan) { p.Queue = -1 },
		"--memory is 1; expected 0 (no limit), or 16777216 to":                     func(p *Plan) { p.Memory = 1 },
		"--iterations is 1125899906842624; expected 0 (measured) to 1099511627776": func(p *Plan) { p.Iterations = 1 << 50 },
	} {
		p := newTestPlan(10, time.Second)
		p.Pool = "naive"
		if err := p.Validate(BuiltInContenders()); err != nil {
			t.Fatalf("the plan that is changed is wrong already: %v", err)
		}
		change(&p)
		err := Run(t.Context(), p, BuiltInContenders(), io.Discard)
		if _, ok := errors.AsType[PlanError](err); !ok || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want a PlanError with %q", err, says)
		}
	}
}

func TestFlags(t *testing.T) {
	var p Plan
	f := flag.NewFlagSet("", flag.ContinueOnError)
	p.AddFlags(f, BuiltInContenders())
	testkit.RequireNoError(t, f.Parse(strings.Fields("--pool ours --rate 5 --memory 20000000")))
	want := Plan{
		Pool: "ours", Work: Published, Rate: 5, Burst: 1, Duration: 10 * time.Second, Drain: 5 * time.Second, Deadline: time.Second,
		Workers: 5000, Queue: 100_000, Memory: 20_000_000, Connections: 2000,
	}
	if err := p.Validate(BuiltInContenders()); err != nil || p != want {
		t.Errorf("got %+v, %v; want %+v", p, err, want)
	}
}

func TestParseLine(t *testing.T) {
	for text, ok := range map[string]bool{
		`{"result":{"offered":1}}`:     true,
		`{"warming":{}}`:               true,
		`{}`:                           false,
		`{"result":{},"progress":{}}`:  false,
		`{"result":{},"other":1}`:      false,
		`{"result":{}} {"result":{}}`:  false,
		`{"result":{"offered":"one"}}`: false,
	} {
		if _, err := ParseOutputLine([]byte(text)); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestIterations(t *testing.T) {
	if n := MeasureSpinsPerMillisecond(); n < 1000 {
		t.Errorf("%d iterations are a millisecond", n)
	}
}

func TestServerContenders(t *testing.T) {
	for _, name := range []string{managedServer, plainServer, netHTTPServer} {
		t.Run(name, func(t *testing.T) {
			p := newTestPlan(200, 500*time.Millisecond)
			p.Pool, p.Work, p.Connections, p.Sources = name, Limited, 22, 2
			_, r := runPlan(t, t.Context(), p, nil)
			s := r.Server
			if r.Finished == 0 || r.Finished+r.Rejected != r.Offered || s == nil || s.CPU == 0 || s.Recovery > maxRecovery/2 {
				t.Errorf("%+v, server %+v; expected all jobs to finish or to find no connection, and a recovery", r, s)
			} else if s.FinishedOfOthers == 0 || s.FinishedOfOthers > s.Finished {
				t.Errorf("server %+v; expected jobs of two further sources", s)
			}
		})
	}
}

func TestReadAnswer(t *testing.T) {
	for _, c := range []struct {
		in, rest, err string
		isOK          bool
	}{
		{"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndonerest", "rest", "", true},
		{"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\nA: b\r\n\r\nno", "", "", false},
		{"HTTP/1.1 500 Internal Server Error\r\n\r\n", "\r\n", "expected status 200 or 503", false},
		{"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "\r\n", "invalid syntax", false},
		{"HTTP/1.1 200 OK\r\nContent", "", "EOF", true},
	} {
		in := bufio.NewReader(strings.NewReader(c.in))
		isOK, err := readResponse200Or503(in)
		rest, _ := io.ReadAll(in)
		if err == nil && (c.err != "" || isOK != c.isOK) || err != nil && (c.err == "" || !strings.Contains(err.Error(), c.err)) || string(rest) != c.rest {
			t.Errorf("%q: %v, %v, then %q; expected %v, %q, %q", c.in, isOK, err, rest, c.isOK, c.err, c.rest)
		}
	}
}

// TestMixed has the tasks of mixed jobs in their proportions.
func TestMixed(t *testing.T) {
	const jobs = 100_000
	found := map[jobTask]int{}
	for i := range uint64(jobs) {
		found[pickTaskForJob(Mixed, i)]++
	}
	for _, s := range shapes[Mixed] {
		if n, want := found[s.jobTask], jobs/100*int(s.percent); n < want*9/10 || n > want*11/10 {
			t.Errorf("%d of %d jobs are %+v, want some %d", n, jobs, s.jobTask, want)
		}
	}
}

package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// script describes one run of a fake process. The zero value never serves and runs until it is
// killed.
type script struct {
	startErr        error // spawnWorker fails
	serves          bool  // immediately
	hangsAfterDrain bool  // stops serving when drained, but does not end
	ignoresDrain    bool
	lifetime        time.Duration // 0: forever
	exitErr         error
}

type fakeProcess struct {
	script
	serve, leave, end chan struct{}
	drained, killed   context.Context
	drain, endNow     context.CancelFunc // of these
	cause             error
	frames            chan []byte // received
}

func (a *fakeProcess) enqueueFrameIfServing(frame []byte) error {
	select {
	case a.frames <- frame:
		return nil
	default:
		return engine.ErrFull
	}
}

func (a *fakeProcess) pid() int                            { return 1 }
func (a *fakeProcess) serving() <-chan struct{}            { return a.serve }
func (a *fakeProcess) stopped() <-chan struct{}            { return a.leave }
func (a *fakeProcess) ended() <-chan struct{}              { return a.end }
func (a *fakeProcess) err() error                          { return a.cause }
func (a *fakeProcess) requestDrainAndSIGTERMIfNotServing() { a.drain() }
func (a *fakeProcess) kill()                               { a.endNow() }

func (a *fakeProcess) runScript() {
	defer close(a.end)
	if a.serves {
		close(a.serve)
	}
	var over <-chan time.Time
	if a.lifetime > 0 {
		over = time.After(a.lifetime)
	}
	drained := a.drained.Done()
	for {
		select {
		case <-over:
			a.cause = a.exitErr
			return
		case <-drained:
			drained = nil
			if a.hangsAfterDrain {
				close(a.leave)
			} else if !a.ignoresDrain {
				return
			}
		case <-a.killed.Done():
			a.cause = errors.New("signal: killed")
			return
		}
	}
}

type fakeSpawner struct {
	counters sharedCounters
	scripts  [][]script

	mu              sync.Mutex  // guards these; tests read spawns only when no more follow
	spawns          []time.Time // of worker 0
	processes       []*fakeProcess
	runs            []int
	listenersClosed bool
	countersFreed   bool

	logged strings.Builder
}

func (n *fakeSpawner) spawnWorker(workerIndex int, _ func([]byte)) (process, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if workerIndex == 0 {
		n.spawns = append(n.spawns, time.Now())
	}
	scripts := n.scripts[workerIndex]
	s := scripts[min(n.runs[workerIndex], len(scripts)-1)]
	n.runs[workerIndex]++
	if s.startErr != nil {
		return nil, s.startErr
	}
	a := &fakeProcess{
		script: s, serve: make(chan struct{}), leave: make(chan struct{}), end: make(chan struct{}),
		frames: make(chan []byte, fakeProcessQueue),
	}
	a.drained, a.drain = context.WithCancel(context.Background())
	a.killed, a.endNow = context.WithCancel(context.Background())
	n.processes = append(n.processes, a)
	go a.runScript()
	return a, nil
}

func (n *fakeSpawner) allProcesses() []*fakeProcess {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.processes)
}

func (n *fakeSpawner) closeListenersAndStopSpawning() { n.listenersClosed = true }
func (n *fakeSpawner) freeSharedMemory()              { n.countersFreed = true }

func startWithScripts(serving func(net.Addr), scripts ...[]script) (*Supervisor, *fakeSpawner) {
	n := &fakeSpawner{scripts: scripts, runs: make([]int, len(scripts))}
	n.counters = make(sharedCounters, len(scripts)*blockStride)
	cfg := Config{Processes: len(scripts), OnServing: serving, Log: slog.New(slog.NewTextHandler(&n.logged, nil))}
	return startSupervisor(cfg, defaultTiming, []net.Addr{&net.TCPAddr{Port: 1}}, n.counters, n), n
}

func (n *fakeSpawner) startIntervals() (waits []time.Duration) {
	for i := 1; i < len(n.spawns); i++ {
		waits = append(waits, n.spawns[i].Sub(n.spawns[i-1]))
	}
	return waits
}

// TestRestarts checks when worker 0 is started again, when OnServing is called, and whether the supervisor
// gives up.
func TestRestarts(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	short, long, good := script{serves: true, lifetime: s}, script{serves: true, lifetime: 10 * s}, script{serves: true}
	bad := script{lifetime: ms, exitErr: errors.New("exit status 7")}
	nine := slices.Repeat([]script{bad}, 9)
	for name, c := range map[string]struct {
		scripts   [][]script
		intervals []time.Duration // from start to start; nil: not checked
		starts    int
		serving   time.Duration // 0: OnServing is not called
		givesUp   bool
	}{
		"the back-off doubles up to 10 s, and a run of 10 s resets it": {
			scripts: [][]script{append(slices.Repeat([]script{short}, 9), long, short, good)},
			intervals: []time.Duration{1*s + 100*ms, 1*s + 200*ms, 1*s + 400*ms, 1*s + 800*ms, 1*s + 1600*ms,
				1*s + 3200*ms, 1*s + 6400*ms, 11 * s, 11 * s, 10*s + 100*ms, 1*s + 200*ms},
			starts: 12, serving: 1},
		"none serves":            {scripts: [][]script{{bad}, {bad}, {{startErr: errors.New("no memory")}}}, starts: 10, givesUp: true},
		"another one serves":     {scripts: [][]script{{bad}, {good}}, starts: 366},
		"serving ends the count": {scripts: [][]script{slices.Concat(nine, []script{short}, nine, []script{good})}, starts: 20, serving: 1},
		"all serve":              {scripts: [][]script{{good}, {{lifetime: s}, short, good}}, starts: 1, serving: 1100 * ms},
		"neither serves nor ends": {scripts: [][]script{{{}, good}}, starts: 2, serving: 1,
			intervals: []time.Duration{defaultTiming.startTimeout + defaultTiming.backoff}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var at []time.Duration
				began := time.Now()
				sup, n := startWithScripts(func(net.Addr) { at = append(at, time.Since(began)) }, c.scripts...)
				time.Sleep(time.Hour)
				synctest.Wait()
				if c.givesUp {
					sup.Wait()
				}
				if got := n.startIntervals(); c.intervals != nil && !slices.Equal(got, c.intervals) {
					t.Errorf("from start to start %v, want %v", got, c.intervals)
				}
				if len(n.spawns) != c.starts || len(c.scripts) == 1 && sup.Restarts() != int64(c.starts-1) {
					t.Errorf("%d starts of worker 0, %d restarts; want %d starts", len(n.spawns), sup.Restarts(), c.starts)
				}
				if (c.serving != 0) != (len(at) == 1) || c.serving > 1 && at[0] != c.serving {
					t.Errorf("announced at %v, want %v", at, c.serving)
				}
				err := sup.Err()
				if c.givesUp && (!errors.Is(err, ErrGaveUp) || !strings.Contains(err.Error(), "10 times in a row")) || !c.givesUp && err != nil {
					t.Errorf("%v; want ErrGaveUp: %v", err, c.givesUp)
				}
				if processes := sup.Processes(); c.givesUp && processes != 0 || !c.givesUp && processes == 0 {
					t.Errorf("%d processes", processes)
				}
				if err := sup.Stop(t.Context()); !c.givesUp && err != nil || !n.listenersClosed || !n.countersFreed {
					t.Errorf("stop: %v, listeners closed %v, counters freed %v", err, n.listenersClosed, n.countersFreed)
				}
			})
		})
	}
}

func TestKillAfterDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sup, _ := startWithScripts(nil, []script{{serves: true, hangsAfterDrain: true}})
		synctest.Wait()
		began := time.Now()
		if err := sup.Stop(t.Context()); err != nil || time.Since(began) != defaultTiming.exitTimeout {
			t.Errorf("a worker that had left was waited for %v, with %v; want %v", time.Since(began), err, defaultTiming.exitTimeout)
		}
	})
}

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sup, n := startWithScripts(nil, []script{{serves: true, ignoresDrain: true}}, []script{{serves: true}})
		synctest.Wait()
		n.counters.workerBlock(0).counts.Set(engine.Open, 3)
		n.counters.workerBlock(0).counts.Set(engine.Accepted, 5)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		err := sup.Stop(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "3 connections were closed before they had finished; 1 worker processes were killed") {
			t.Errorf("%v; want an error that wraps DeadlineExceeded and says how many", err)
		}
		if time.Since(began) != time.Minute {
			t.Errorf("it took %v, want a minute", time.Since(began))
		}
		if c := sup.Counters(); c[engine.Open] != 0 || c[engine.Accepted] != 5 {
			t.Errorf("after the end: %+v, want none open and 5 accepted", c)
		}
	})
}

// TestEndsJustBeforeStop has a worker end before the supervisor learns of a signal to the process
// group. That is logged only if the worker failed.
func TestEndsJustBeforeStop(t *testing.T) {
	for end, said := range map[error]int{nil: 0, errors.New("exit status 7"): 1} {
		synctest.Test(t, func(t *testing.T) {
			sup, n := startWithScripts(nil, []script{{serves: true, lifetime: time.Second, exitErr: end}})
			time.Sleep(time.Second + defaultTiming.backoff/2)
			err := sup.Stop(t.Context())
			if lines := strings.Count(n.logged.String(), "\n"); err != nil || lines != said || len(n.spawns) != 1 || sup.Restarts() != 0 {
				t.Errorf("end %v: %v, %d starts, %d restarts, logged %q; want one start and %d lines",
					end, err, len(n.spawns), sup.Restarts(), n.logged.String(), said)
			}
		})
	}
}

func TestStopWhileResting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sup, n := startWithScripts(nil, []script{{lifetime: time.Second}})
		time.Sleep(25 * time.Second) // during the back-off of 10 s after the eighth run
		synctest.Wait()
		began, starts := time.Now(), len(n.spawns)
		if err := sup.Stop(t.Context()); err != nil || time.Since(began) > 0 || len(n.spawns) != starts {
			t.Errorf("%v after %v, %d starts; want at once and no further one than %d", err, time.Since(began), len(n.spawns), starts)
		}
		if sup.Dial(engine.DialRequest{}) == nil {
			t.Error("a supervisor dialled")
		}
	})
}

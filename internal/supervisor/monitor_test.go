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

// script is what one run of a scripted worker does; the zero value never
// serves and lives until it is killed.
type script struct {
	fails   error         // to start
	serves  bool          // at once
	leaves  bool          // stops serving when it is drained, and does not end
	stays   bool          // does not end when it is drained
	lives   time.Duration // 0: for ever
	endsBad error
}

// actor is a worker without a process.
type actor struct {
	script
	serve, leave, end  chan struct{}
	drained, killed    chan struct{}
	onceDrain, onceEnd sync.Once
	cause              error
	passed             chan []byte // broadcasts
}

func (a *actor) send(frame []byte) error {
	select {
	case a.passed <- frame:
		return nil
	default:
		return engine.ErrFull
	}
}

func (a *actor) pid() int                 { return 1 }
func (a *actor) serving() <-chan struct{} { return a.serve }
func (a *actor) stopped() <-chan struct{} { return a.leave }
func (a *actor) ended() <-chan struct{}   { return a.end }
func (a *actor) err() error               { return a.cause }
func (a *actor) drain()                   { a.onceDrain.Do(func() { close(a.drained) }) }
func (a *actor) kill()                    { a.onceEnd.Do(func() { close(a.killed) }) }

func (a *actor) run() {
	defer close(a.end)
	if a.serves {
		close(a.serve)
	}
	var over <-chan time.Time
	if a.lives > 0 {
		over = time.After(a.lives)
	}
	drained := a.drained
	for {
		select {
		case <-over:
			a.cause = a.endsBad
			return
		case <-drained:
			drained = nil
			if a.leaves {
				close(a.leave)
			} else if !a.stays {
				return
			}
		case <-a.killed:
			a.cause = errors.New("signal: killed")
			return
		}
	}
}

// stage is a spawner that plays: one script for each run of a worker, the last
// one for all runs after.
type stage struct {
	counters sharedCounters
	scripts  [][]script

	mu     sync.Mutex
	spawns []time.Time // of worker 0
	actors []*actor
	lives  []int
	shut   bool
	freed  bool

	said strings.Builder // what was logged
}

func (n *stage) spawn(index int, _ func([]byte)) (process, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if index == 0 {
		n.spawns = append(n.spawns, time.Now())
	}
	scripts := n.scripts[index]
	s := scripts[min(n.lives[index], len(scripts)-1)]
	n.lives[index]++
	if s.fails != nil {
		return nil, s.fails
	}
	a := &actor{
		script: s, serve: make(chan struct{}), leave: make(chan struct{}), end: make(chan struct{}),
		drained: make(chan struct{}), killed: make(chan struct{}), passed: make(chan []byte, roomForCasts),
	}
	n.actors = append(n.actors, a)
	go a.run()
	return a, nil
}

// all are the actors that there have been.
func (n *stage) all() []*actor {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.actors)
}

func (n *stage) closeListeners() { n.shut = true }
func (n *stage) close()          { n.freed = true }

// play starts a supervisor on a stage.
func play(serving func(net.Addr), scripts ...[]script) (*Supervisor, *stage) {
	n := &stage{scripts: scripts, lives: make([]int, len(scripts))}
	n.counters = make(sharedCounters, len(scripts)*stride)
	cfg := Config{Processes: len(scripts), Serving: serving, Log: slog.New(slog.NewTextHandler(&n.said, nil))}
	return supervise(cfg, standard, []net.Addr{&net.TCPAddr{Port: 1}}, n.counters, n), n
}

// waits are the times between the starts of worker 0.
func (n *stage) waits() (waits []time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := 1; i < len(n.spawns); i++ {
		waits = append(waits, n.spawns[i].Sub(n.spawns[i-1]))
	}
	return waits
}

// starts counts the lives of worker 0.
func (n *stage) starts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.spawns)
}

func TestBackoff(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	synctest.Test(t, func(t *testing.T) {
		short := script{serves: true, lives: 1 * s}
		sup, n := play(nil, []script{short, short, short, short, short, short, short, short, short,
			{serves: true, lives: 10 * s}, short, {serves: true}})
		// Ten short lives, one that settled, one short.
		<-time.After(5 * time.Minute)
		want := []time.Duration{1*s + 100*ms, 1*s + 200*ms, 1*s + 400*ms, 1*s + 800*ms, 1*s + 1600*ms,
			1*s + 3200*ms, 1*s + 6400*ms, 11 * s, 11 * s, 10*s + 100*ms, 1*s + 200*ms}
		if got := n.waits(); !slices.Equal(got, want) {
			t.Errorf("from start to start %v, want %v", got, want)
		}
		if sup.Restarts() != int64(len(want)) || sup.Processes() != 1 {
			t.Errorf("restarts %d, processes %d; want %d and 1", sup.Restarts(), sup.Processes(), len(want))
		}
		if err := sup.Stop(t.Context()); err != nil || !n.shut || !n.freed {
			t.Errorf("stop: %v, listeners closed %v, counters freed %v", err, n.shut, n.freed)
		}
	})
}

func TestGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := []script{{lives: time.Millisecond, endsBad: errors.New("exit status 7")}}
		announced := false
		sup, n := play(func(net.Addr) { announced = true }, bad, bad, []script{{fails: errors.New("no memory")}})
		sup.Wait()
		if err := sup.Err(); !errors.Is(err, ErrGaveUp) || !strings.Contains(err.Error(), "10 times in a row") {
			t.Errorf("%v, want an error that wraps ErrGaveUp and says how often", err)
		}
		if announced || sup.Processes() != 0 || !n.freed {
			t.Errorf("announced %v, processes %d, counters freed %v", announced, sup.Processes(), n.freed)
		}
		if starts := n.starts(); starts != 10 {
			t.Errorf("worker 0 was started %d times, want 10", starts)
		}
	})
}

// As long as one worker serves, the others are tried again for ever.
func TestOneServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := []script{{lives: time.Millisecond, endsBad: errors.New("exit status 7")}}
		sup, n := play(nil, bad, []script{{serves: true}})
		<-time.After(time.Hour)
		if sup.Err() != nil || n.starts() < 300 {
			t.Errorf("%v after %d starts; want none after one every 10 s", sup.Err(), n.starts())
		}
		if err := sup.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A worker that has served once in between counts as alive again.
func TestServedInBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, good := script{lives: time.Millisecond}, script{serves: true, lives: time.Second}
		nine := slices.Repeat([]script{bad}, 9)
		sup, n := play(nil, slices.Concat(nine, []script{good}, nine, []script{{serves: true}}))
		<-time.After(time.Hour)
		if sup.Err() != nil || n.starts() != 20 {
			t.Errorf("%v after %d starts, want none after 20", sup.Err(), n.starts())
		}
		_ = sup.Stop(t.Context())
	})
}

// Listening is for when all serve.
func TestServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		sup, _ := play(func(net.Addr) { at = append(at, time.Since(began)) },
			[]script{{serves: true}}, []script{{lives: time.Second}, {serves: true, lives: time.Second}, {serves: true}})
		<-time.After(time.Minute)
		_ = sup.Stop(t.Context())
		if want := []time.Duration{1100 * time.Millisecond}; !slices.Equal(at, want) {
			t.Errorf("announced at %v, want %v", at, want)
		}
	})
}

// A process that neither serves nor ends is killed, before and after it served.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sup, n := play(nil, []script{{}, {serves: true}})
		<-time.After(time.Hour)
		if got, want := n.waits(), []time.Duration{standard.start + standard.backoff}; !slices.Equal(got, want) {
			t.Errorf("from start to start %v, want %v", got, want)
		}
		_ = sup.Stop(t.Context())

		began := time.Now()
		sup, _ = play(nil, []script{{serves: true, leaves: true}})
		synctest.Wait()
		if err := sup.Stop(t.Context()); err != nil || time.Since(began) != standard.exit {
			t.Errorf("a worker that had left was waited for %v, with %v; want %v", time.Since(began), err, standard.exit)
		}
	})
}

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sup, n := play(nil, []script{{serves: true, stays: true}}, []script{{serves: true}})
		synctest.Wait()
		n.counters.block(0).counts.Set(engine.Open, 3)
		n.counters.block(0).counts.Set(engine.Accepted, 5)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		err := sup.Stop(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "3 connections were closed before they had finished, with 1 worker processes") {
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

// A signal to the process group can end a worker before the supervisor has
// heard of it. That is no end to tell of, unless it was a bad one.
func TestEndsJustBeforeStop(t *testing.T) {
	for end, said := range map[error]int{nil: 0, errors.New("exit status 7"): 1} {
		synctest.Test(t, func(t *testing.T) {
			sup, n := play(nil, []script{{serves: true, lives: time.Second, endsBad: end}})
			<-time.After(time.Second + standard.backoff/2)
			err := sup.Stop(t.Context())
			if lines := strings.Count(n.said.String(), "\n"); err != nil || lines != said || n.starts() != 1 || sup.Restarts() != 0 {
				t.Errorf("end %v: %v, %d starts, %d restarts, logged %q; want one start and %d lines",
					end, err, n.starts(), sup.Restarts(), n.said.String(), said)
			}
		})
	}
}

// A stop ends the wait for the next start.
func TestStopWhileResting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sup, n := play(nil, []script{{lives: time.Second}})
		<-time.After(25 * time.Second) // in the wait of 10 s after the eighth life
		began, starts := time.Now(), n.starts()
		if err := sup.Stop(t.Context()); err != nil || time.Since(began) > 0 || n.starts() != starts {
			t.Errorf("%v after %v, %d starts; want at once and no further one than %d", err, time.Since(began), n.starts(), starts)
		}
		if sup.Dial(engine.DialRequest{}) == nil {
			t.Error("a supervisor dialled")
		}
	})
}

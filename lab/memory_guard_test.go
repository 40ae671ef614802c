package lab

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/cgroup"
	"github.com/myriad-go/myriad/internal/procfs"
)

// guarded has a guard look at memory that shrinks with each look.
func guarded(t *testing.T, each int64, enough error) (stopped *MillionStop, told int, over error) {
	free := int64(1000)
	g := &memoryGuard{keep: 500, over: func(err error) { over = err }}
	g.room = func() (memoryRoom, error) { free -= each; return memoryRoom{free: free}, nil }
	g.enough = func() error { told++; return enough }
	g.begin()
	time.Sleep(3 * guardEvery)
	stopped = g.connected()
	time.Sleep(100 * guardEvery)
	g.end()
	return stopped, told, over
}

func TestMemoryGuard(t *testing.T) {
	for name, c := range map[string]struct {
		each    int64
		enough  error
		stopped bool
		over    string
	}{
		"enough":             {each: 0},
		"low while opening":  {each: 200, stopped: true, over: "less than half"},
		"low afterwards":     {each: 20, over: "less than half"},
		"can't be told":      {each: 200, enough: errors.New("gone"), stopped: true, over: "can't be told: gone"},
		"just what it may":   {each: 500 / 104, stopped: false},
		"all of it, at once": {each: 990, stopped: true, over: "less than half"},
	} {
		synctest.Test(t, func(t *testing.T) {
			stopped, told, over := guarded(t, c.each, c.enough)
			if (stopped != nil) != c.stopped || (told == 1) != c.stopped {
				t.Errorf("%s: got %v, told %d times, want %v and once", name, stopped, told, c.stopped)
			}
			if (over != nil) != (c.over != "") || over != nil && !strings.Contains(over.Error(), c.over) {
				t.Errorf("%s: got %v, want %q", name, over, c.over)
			}
		})
	}
}

// A guard that knows nothing ends, and one that never began has nothing to end.
func TestMemoryGuardUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &memoryGuard{keep: 500, room: func() (memoryRoom, error) { return memoryRoom{}, procfs.ErrNotAvailable }}
		g.end()
		g.begin()
		synctest.Wait()
		if s := g.connected(); s != nil {
			t.Errorf("got %v, want nothing", s)
		}
		g.end()
	})
}

// A look that fails is no reason to look no more, and many are one to end.
func TestMemoryGuardBlind(t *testing.T) {
	for fails, want := range map[int]string{
		mostBlind - 1: "less than half of the", mostBlind: "what is free could not be read 50 times: too many open files",
	} {
		synctest.Test(t, func(t *testing.T) {
			looks, over := 0, make(chan error, 1)
			g := &memoryGuard{keep: 1000, over: func(err error) { over <- err }}
			g.room = func() (memoryRoom, error) {
				switch looks++; {
				case looks == 1:
					return memoryRoom{free: 1000}, nil
				case looks <= 1+fails:
					return memoryRoom{}, errors.New("too many open files")
				}
				return memoryRoom{free: 1, of: "cgroup /a memory.max"}, nil
			}
			g.begin()
			if err := <-over; !strings.Contains(err.Error(), want) {
				t.Errorf("%d looks that fail: got %v, want %q", fails, err, want)
			}
			g.end()
		})
	}
}

// The least of what the machine and the cgroups leave counts.
func TestMemoryRoom(t *testing.T) {
	m := procfs.Meminfo{Total: 1000, Free: 300, FilePages: 200}
	for _, c := range []struct {
		ceiling cgroup.Limit
		want    memoryRoom
	}{
		{cgroup.Limit{}, memoryRoom{free: 400, total: 1000}},
		{cgroup.Limit{Max: 5000, Used: 10, From: "a"}, memoryRoom{free: 400, total: 1000}},
		{cgroup.Limit{Max: 600, Used: 200, From: "a"}, memoryRoom{free: 400, total: 600}},
		{cgroup.Limit{Max: 600, Used: 201, From: "a"}, memoryRoom{free: 399, total: 600, of: "a"}},
		{cgroup.Limit{Max: 600, Used: 700, From: "a"}, memoryRoom{free: 0, total: 600, of: "a"}},
	} {
		if got := roomOf(m, c.ceiling); got != c.want {
			t.Errorf("%+v: got %+v, want %+v", c.ceiling, got, c.want)
		}
	}
	if got := (memoryRoom{total: 1000}); got.kept(50) != 50 || got.kept(49) != 50 || got.kept(51) != 51 {
		t.Errorf("kept: %d, %d, %d", got.kept(50), got.kept(49), got.kept(51))
	}
}

func TestMillionStop(t *testing.T) {
	s := &MillionStop{Wall: "memory", At: 1_412_000, Free: 1_050_000_000, Keep: 1_200_000_000}
	want := "memory: stopped at 1,412,000 connections: 1,050 MB are free, and 1,200 MB are to stay free"
	if s.String() != want {
		t.Errorf("got %q, want %q", s, want)
	}
	s.Of = "cgroup /a memory.max"
	if want := "1,050 MB are free in cgroup /a memory.max, and"; !strings.Contains(s.String(), want) {
		t.Errorf("got %q, want %q", s, want)
	}
}

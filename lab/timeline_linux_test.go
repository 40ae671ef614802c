package lab

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/load"
)

// TestLook looks at this process as server and at a child as load generator.
func TestLook(t *testing.T) {
	child := exec.Command("cat") // until its input ends
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer in.Close()
	tl := &timeline{}
	l := newLook(t.Context(), time.Now(), syscall.Getpgrp(), &tl.heard, nil)
	tl.generator(child.Process.Pid)
	tl.hear(load.Event{Snapshot: load.Snapshot{Open: 5, Answered: 9}, Interval: &load.Interval{
		Generator: load.Usage{Goroutines: 4, GCs: 3, GCPause: 2}}})
	tl.hear(load.Event{Snapshot: load.Snapshot{Open: 5, Answered: 10}})
	tick, ok := l.tick()
	if !ok {
		t.Fatal("no tick")
	}
	s := tick.Server
	if s.RSS < 1<<20 || s.Anonymous < 1<<16 || s.PSS == 0 || s.Threads < 2 || s.Voluntary == 0 {
		t.Errorf("server: %+v", s)
	}
	if g := tick.Load; g.RSS == 0 || g.Threads != 1 || g.Goroutines != 4 || g.GCs != 3 || g.GCPause != 2 {
		t.Errorf("load: %+v", g)
	}
	if tick.Open != 5 || tick.Answered != 10 || tick.Slab == 0 || tick.Free == 0 || tick.Busy == 0 {
		t.Errorf("got %+v", tick)
	}
	tl.generator(0)
	if tick, ok := l.tick(); !ok || tick.Load != (TickSide{}) || tick.Open != 0 {
		t.Errorf("without a generator: %+v, %v", tick, ok)
	}
	l.server = 1 << 30
	if _, ok := l.tick(); ok {
		t.Errorf("a tick of a server that has ended")
	}
}

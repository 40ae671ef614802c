package lab

import (
	"context"
	"os"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

const (
	// slowLook is from when on a look at PSS, or at context switches, is a slow one, and
	// slowEvery the time between two of these.
	slowLook  = 5 * time.Millisecond
	slowEvery = 5 * time.Second
)

// look takes ticks. It belongs to one goroutine at a time.
type look struct {
	ctx    context.Context // of the questions to the server
	began  time.Time
	server int // process group
	heard  *loadState
	asker  *asker
	pss    [2]patience // of the server, of the load
	turns  [2]patience // the same for context switches
}

func newLook(ctx context.Context, began time.Time, server int, heard *loadState, a *asker) *look {
	return &look{ctx: ctx, began: began, server: server, heard: heard, asker: a}
}

// close lets go of the connection to the server.
func (l *look) close() { l.asker.close() }

// tick looks at both sides and at the machine. What can't be read stays 0: that fails no
// run. It is false when the server has ended.
func (l *look) tick() (t Tick, ok bool) {
	t.At = time.Since(l.began)
	generator := int(l.heard.group.Load())
	groups, err := procfs.Groups(l.server, generator)
	if err != nil || len(groups[l.server]) == 0 {
		return t, false
	}
	l.readSide(&t.Server, groups[l.server], 0)
	if generator != 0 {
		l.readSide(&t.Load, groups[generator], 1)
		l.readHeard(&t)
	}
	readTickMachine(&t)
	l.asker.ask(l.ctx, &t.Server)
	return t, true
}

// readSide looks at the processes of a side, processor time first.
func (l *look) readSide(to *TickSide, pids []int, side int) {
	for _, pid := range pids {
		if s, err := procfs.ReadStat(pid); err == nil {
			to.User += s.User
			to.System += s.System
			to.Threads += s.Threads
		}
	}
	for _, pid := range pids {
		if m, err := procfs.ReadResident(pid); err == nil {
			to.RSS += m.Now
			to.Anonymous += m.Anonymous
		}
	}
	l.pss[side].try(func() {
		for _, pid := range pids {
			if m, err := procfs.ReadMemory(pid); err == nil {
				to.PSS += m.PSS
			}
		}
	})
	l.turns[side].try(func() {
		for _, pid := range pids {
			if s, err := procfs.ReadSwitches(pid); err == nil {
				to.Voluntary += s.Voluntary
				to.Involuntary += s.Involuntary
			}
		}
	})
}

// readHeard is what the load generator has said.
func (l *look) readHeard(t *Tick) {
	h := l.heard
	t.Open, t.Answered = h.open.Load(), h.answered.Load()
	t.Load.Goroutines, t.Load.GCs = h.goroutines.Load(), h.collections.Load()
	t.Load.GCPause = time.Duration(h.pause.Load())
}

// readTickMachine looks at the machine.
func readTickMachine(t *Tick) {
	if m, err := procfs.ReadMeminfo(); err == nil {
		t.Slab, t.Free = m.Slab, m.Free
	}
	if c, err := procfs.ReadCPUs(); err == nil {
		t.Busy = c.All.Busy + c.All.Stolen
	}
	if n, err := procfs.ReadNetCounters(); err == nil {
		t.Established = n["TcpCurrEstab"]
	}
	if s, err := procfs.ReadSocketCounts(); err == nil {
		t.TimeWait, t.Orphans, t.TCPMemory = s.TimeWait, s.Orphans, s.Pages*int64(os.Getpagesize())
	}
}

// patience keeps a look that was slow from being taken at each tick.
type patience struct {
	slow bool
	last time.Time // when it began
}

// try takes the look, unless it was slow and not long ago.
func (p *patience) try(look func()) {
	now := time.Now()
	if p.slow && now.Sub(p.last) < slowEvery {
		return
	}
	look()
	p.last, p.slow = now, time.Since(now) > slowLook
}

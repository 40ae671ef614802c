package lab

import (
	"context"
	"fmt"
)

const (
	// leastKept is how much memory a run leaves at least, in bytes.
	leastKept = 256 << 20
	// firstGuess is what a connection is taken to need before any was measured,
	// both ends and the buffer of a server that has one; parkedGuess is the same
	// for a goroutine. Both are above everything that was seen, in bytes.
	firstGuess  = 20 << 10
	parkedGuess = 4 << 10
	// growth is what is planned beside for the load generator and for what grows
	// faster than connections do.
	growth = 1.10
)

// wall says why a run can't be made, "" if it can: that the subject holds fewer
// connections, or that memory would run out. Only Full and Parking workloads have
// walls. It looks at the runs before it.
func (r *runner) wall(s step, before []RunRecord) string {
	w := s.workload
	if !w.Full && w.Kind != Parking {
		return ""
	}
	if most := s.subject.MaxConns; most > 0 && w.Connections > most {
		return fmt.Sprintf("%s connections are more than the %s that it can hold: %s",
			thousands(float64(w.Connections)), thousands(float64(most)), s.subject.Wall)
	}
	room, err := r.room()
	if err != nil {
		return "" // nobody knows
	}
	each, from := needs(s, before)
	need, keep := int64(each*float64(w.Connections)), room.kept(leastKept)
	if need <= room.free-keep {
		return ""
	}
	return fmt.Sprintf("memory: %s of %s bytes each, by %s, need %s; %s are free%s, of which %s are kept",
		thousands(float64(w.Connections)), thousands(each), from, gibibytes(need), gibibytes(room.free), room.in(), gibibytes(keep))
}

// needs is how many bytes of the machine's memory a run takes for each connection,
// as far as the largest run of its subject before it tells, and what tells.
func needs(s step, before []RunRecord) (each float64, from string) {
	each, from = firstGuess, "a cautious guess"
	if s.workload.Kind == Parking {
		return parkedGuess, from
	}
	most := 0
	for i := range before {
		r := &before[i]
		if r.Subject != s.subject.Name || r.Idle == nil || r.Idle.Full == nil || r.Result.Connected < most {
			continue
		}
		if took := r.Idle.Full.takes(); took > 0 {
			most, each = r.Result.Connected, took*growth
			from = fmt.Sprintf("the run with %s", thousands(float64(most)))
		}
	}
	return each, from
}

// watchFree returns a context that ends, with the reason as its cause, when memory
// is about to run out: when half of what is to be kept is gone. The returned
// function releases it and waits. It watches Full workloads only.
func (m *measurement) watchFree(ctx context.Context) (context.Context, func()) {
	if !m.workload.Full {
		return ctx, func() {}
	}
	room, err := m.room()
	if err != nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	guard := &memoryGuard{keep: room.kept(leastKept), room: m.room, over: func(err error) {
		cancel(fmt.Errorf("%w; %s of %s connections were open",
			err, thousands(float64(m.open.Load())), thousands(float64(m.workload.Connections))))
	}}
	guard.begin()
	return ctx, func() {
		guard.end()
		cancel(nil)
	}
}

func gibibytes(n int64) string { return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30)) }

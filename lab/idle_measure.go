package lab

import (
	"context"
	"fmt"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

const (
	// stillSlab is by how much the kernel's small objects may change in the time
	// of settle, in bytes, when nothing comes or goes any more: those of closed
	// sockets are given back a while later.
	stillSlab = 1 << 20
	// stillBound is how long that is waited for at most.
	stillBound = 2 * time.Second
)

// settled waits until the number of the server's connections is as asked, at most
// for bound, lets memory settle, samples it, and reports whether it was so. base is
// how many sockets the server has without any. Without /proc it does not wait.
func (m *measurement) settled(ctx context.Context, moment Moment, bound time.Duration, base int, asked func(n int) bool) (bool, error) {
	if m.workload.Full && m.sampled {
		return m.settledFull(ctx, moment, bound, base, asked)
	}
	ok, err := m.awaitSockets(ctx, bound, func(n int) bool { return asked(n - base) })
	if err != nil {
		return false, err
	}
	m.collect(ctx, moment)
	if err := pause(ctx, settle); err != nil {
		return false, err
	}
	return ok, m.sample(moment, memory|sockets)
}

// collect has a server of one process that shows figures give back what it doesn't use:
// what it has used before, or has had in one large page, would be used for connections,
// and they would seem to take nothing.
func (m *measurement) collect(ctx context.Context, before Moment) {
	times := laterCollections
	if before == Touched {
		times = firstCollections
	}
	if m.processes == 1 {
		m.metrics.collect(ctx, times)
	}
}

// settledFull counts connections behind each sample, because counting takes some of
// the server's memory, or of the kernel's.
func (m *measurement) settledFull(ctx context.Context, moment Moment, bound time.Duration, base int, asked func(n int) bool) (bool, error) {
	began := time.Now()
	for last := int64(-1); ; {
		m.collect(ctx, moment)
		if err := pause(ctx, settle); err != nil {
			return false, err
		}
		s, err := take(m.server.process.pid(), moment, memory|caches)
		if err != nil {
			return false, fmt.Errorf("sample %s: %w", moment, err)
		}
		past := time.Since(began)
		still := last >= 0 && max(s.Slab-last, last-s.Slab) <= stillSlab
		last = s.Slab
		if !still && past < min(bound, stillBound) {
			continue
		}
		if err := m.count(ctx, &s); err != nil {
			return false, fmt.Errorf("sample %s: %w", moment, err)
		}
		if ok := asked(s.Connections + max(s.Sockets-base, 0)); ok || past >= bound {
			m.record.Samples = append(m.record.Samples, s)
			return ok, nil
		}
	}
}

// count has the server say how many connections it has, if it has an address for
// that. Otherwise it looks at the server's descriptors: those of a shard are not to
// be seen, and each that is leaves an object in one of the kernel's caches.
func (m *measurement) count(ctx context.Context, s *Sample) error {
	if m.metrics.Addr != "" {
		return s.ask(ctx, m.metrics, m.processes)
	}
	pids, err := procfs.Group(m.server.process.pid())
	if err != nil {
		return err
	}
	return s.readSockets(pids)
}

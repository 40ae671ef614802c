package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/load"
)

const (
	// settle is how long memory is left alone before it is sampled.
	settle = 200 * time.Millisecond
	// closeBound is how long a server may take to close the sockets whose
	// peers are gone.
	closeBound = 5 * time.Second
	// firstCloseBound is the same for the lab's own first connection.
	firstCloseBound = time.Second
)

// measurement is one run under way, its server being up.
type measurement struct {
	*runner
	server    *server
	workload  Workload
	pinning   Pinning
	record    *RunRecord
	generator *process // the last one that was started
	// metrics is where a server of a Full workload shows its figures, and
	// processes how many processes it has.
	metrics   MetricsSource
	processes int
	timeline  *timeline
	captures  *captures    // nil for a run of which nothing is captured
	open      atomic.Int64 // connections, as the load generator has said last
}

// follow begins the run's time line, before the server's sockets are counted: see
// timeline. The caller stops it.
func (m *measurement) follow() {
	admin := m.metrics.Addr
	if m.workload.Kind == Idle {
		admin = "" // memory is what it is about
	}
	m.timeline = m.runner.follow(m.record, m.server.process, admin, m.processes)
}

// sample takes a sample and keeps it. Without /proc there is none.
func (m *measurement) sample(moment Moment, w what) error {
	if !m.sampled {
		return nil
	}
	s, err := take(m.server.process.pid(), moment, w)
	if err != nil {
		return fmt.Errorf("sample %s: %w", moment, err)
	}
	m.record.Samples = append(m.record.Samples, s)
	return nil
}

// sockets returns how many sockets the server has open.
func (m *measurement) sockets() (int, error) {
	s, err := take(m.server.process.pid(), "", sockets)
	return s.Sockets, err
}

// awaitSockets waits until the server's sockets are as asked, at most for
// bound, and reports whether they are. Without /proc it does not wait.
func (m *measurement) awaitSockets(ctx context.Context, bound time.Duration, asked func(n int) bool) (bool, error) {
	if !m.sampled {
		return true, nil
	}
	end := time.Now().Add(bound)
	for {
		n, err := m.sockets()
		if err != nil {
			return false, err
		}
		if asked(n) {
			return true, nil
		}
		if time.Now().After(end) {
			return false, nil
		}
		if err := pause(ctx, poll); err != nil {
			return false, err
		}
	}
}

// ready counts the sockets that the server has without any connection: it
// closes the one that is open, and waits until the server has closed it too.
// A server whose sockets are not to be seen goes on, and gets its mark later.
func (m *measurement) ready(ctx context.Context, conn net.Conn) error {
	if !m.sampled {
		return conn.Close()
	}
	with, err := m.sockets()
	conn.Close()
	if err != nil {
		return err
	}
	if _, err := m.awaitSockets(ctx, firstCloseBound, func(n int) bool { return n < with }); err != nil {
		return err
	}
	return m.sample(Ready, sockets|memory)
}

// window applies a workload that measures a window of time.
func (m *measurement) window(ctx context.Context) error {
	var err error
	defer m.captures.end()
	m.record.Load = m.loadCommand(m.workload.loadFlags(m.server.addr))
	m.record.Result, err = m.generate(ctx, m.record.Load, func(e load.Event) error {
		switch e.Phase {
		case load.Measuring:
			err := m.begin()
			m.captures.begin(ctx) // it has a connection of its own, which is not to be counted
			return err
		case load.Measured:
			return m.sample(Measured, cpu|memory)
		}
		return nil
	})
	return err
}

// begin samples when a window begins. Connections are counted by the port that the server
// has them on: what other servers have left does not matter then, nor a server's descriptors,
// of which a million take longer to look at than a window, and those of a shard are not to be
// seen. Heartbeats are not counted, so that the window is not late.
func (m *measurement) begin() error {
	if err := m.sample(Measuring, cpu); err != nil || !m.sampled || m.workload.Kind == Heartbeats {
		return err
	}
	s := &m.record.Samples[len(m.record.Samples)-1]
	n, err := sock.Accepted(m.port(), m.workload.Connections+room)
	if err == nil {
		s.Accepted = n
		return nil
	}
	s.Sockets, err = m.sockets() // the kernel does not tell, or of too many
	return err
}

// port is where the server listens.
func (m *measurement) port() uint16 {
	return netip.MustParseAddrPort(m.server.addr).Port()
}

// idle applies an Idle workload.
func (m *measurement) idle(ctx context.Context) error {
	ctx, stop := m.watchFree(ctx)
	defer stop()
	if _, err := m.generate(ctx, m.loadCommand(m.workload.touchFlags(m.server.addr)), nil); err != nil {
		return fmt.Errorf("first touch: %w", err)
	}
	base := 0
	if ready := m.record.sample(Ready); ready != nil {
		base = ready.Sockets
	}
	closed, err := m.settled(ctx, Touched, closeBound, base, func(n int) bool { return n <= 0 })
	if err != nil {
		return err
	}
	if !closed {
		return fmt.Errorf("the server still had connections open %v after they were closed", closeBound)
	}
	m.record.Load = m.loadCommand(m.workload.loadFlags(m.server.addr))
	m.record.Result, err = m.generate(ctx, m.record.Load, func(e load.Event) error {
		m.open.Store(e.Snapshot.Open)
		switch e.Phase {
		case load.Connected:
			return m.atRest(ctx, Held, base)
		case load.Exchanged:
			return m.atRest(ctx, Exchanged, base)
		}
		return nil
	})
	return err
}

// atRest samples memory while the load holds its connections: when the server
// has accepted all of them, and everything has settled. It must be done within
// the hold.
func (m *measurement) atRest(ctx context.Context, moment Moment, base int) error {
	began := time.Now()
	// One that has too few is marked.
	if _, err := m.settled(ctx, moment, m.workload.Hold/2, base, func(n int) bool { return n >= m.workload.Connections }); err != nil {
		return err
	}
	if took := time.Since(began); took > m.workload.Hold {
		m.record.Marks = append(m.record.Marks, Mark{RuleHold,
			fmt.Sprintf("sampled %v after %s, later than the hold of %v", took.Round(time.Millisecond), moment, m.workload.Hold)})
	}
	return nil
}

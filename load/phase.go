package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// phases takes the run from the first connection to the last hold.
func (r *run) phases(ctx context.Context) error {
	if err := r.connect(ctx); err != nil {
		return err
	}
	r.tell(Event{Phase: Connected})
	if s := r.sum(); s.open() == 0 {
		return nil
	}
	if err := r.hold(ctx, r.cfg.HoldBefore); err != nil {
		return err
	}
	if err := r.exchange(ctx); err != nil {
		return err
	}
	return r.hold(ctx, r.cfg.HoldAfter)
}

// connect opens the connections, as many as there will be.
func (r *run) connect(ctx context.Context) error {
	dialing, cancel := context.WithCancelCause(ctx)
	begin := r.traffic.now()
	var dialer sync.WaitGroup
	dialer.Go(func() {
		if err := r.dialer.run(dialing); err != nil {
			cancel(fmt.Errorf("load: connecting: %w", err))
		}
	})
	err := r.await(dialing, wait{
		stall: r.connectStall(),
		moved: r.settled,
		done:  func(s sum) bool { return r.settled(s) == int64(r.cfg.Connections) },
	})
	cancel(nil)
	dialer.Wait()
	r.settle(err)
	if s := r.sum(); s.opened > 0 {
		r.connected = s.lastOpened - begin
	}
	return unlessStalled(err)
}

// connectStall is the bound of the connect phase; a slow rate alone does not
// pass it.
func (r *run) connectStall() time.Duration {
	bound := r.cfg.ConnectTimeout
	if r.cfg.ConnectRate > 0 {
		bound = max(bound, 2*time.Second/time.Duration(r.cfg.ConnectRate))
	}
	return bound
}

// settle ends the connect phase, which ended with err. If it stalled, the
// attempts that are missing have failed.
func (r *run) settle(err error) {
	for _, s := range r.traffic.shards {
		s.shutLinks()
	}
	cause := ""
	if errors.Is(err, errStalled) {
		cause = fmt.Sprintf("not established within %v", r.cfg.ConnectTimeout)
	}
	r.traffic.faults.settle(int64(r.cfg.Connections), r.sum().opened, cause)
}

// unlessStalled drops errStalled: what is missing is counted, and the run goes
// on with what there is.
func unlessStalled(err error) error {
	if errors.Is(err, errStalled) {
		return nil
	}
	return err
}

// hold leaves the connections alone for a while, or until none is left.
func (r *run) hold(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	return r.await(ctx, wait{most: d, done: noneOpen})
}

func noneOpen(s sum) bool { return s.open() == 0 }

// exchange has the connections exchange messages.
func (r *run) exchange(ctx context.Context) error {
	from := r.traffic.now() + r.cfg.Warmup
	until := from + r.cfg.Duration
	if r.cfg.Messages > 0 {
		until = math.MaxInt64
	}
	r.traffic.window(from, until)

	starting, cancel := context.WithCancel(ctx)
	var starter sync.WaitGroup
	starter.Go(func() { r.traffic.startTraffic(starting) })
	err := r.hold(ctx, r.cfg.Warmup)
	if err == nil {
		err = r.measure(ctx)
	}
	r.traffic.endWindow()
	cancel()
	starter.Wait()
	if !errors.Is(err, errStalled) && !r.cfg.Unprompted {
		err = cmp.Or(err, r.drain(ctx))
	}
	return unlessStalled(err)
}

// measure is the window.
func (r *run) measure(ctx context.Context) error {
	user, system := cpuTime()
	r.tell(Event{Phase: Measuring})
	err := r.await(ctx, r.windowWait())
	from, until := r.traffic.endWindow()
	userEnd, systemEnd := cpuTime()
	r.user, r.system = userEnd-user, systemEnd-system
	r.window = until - from
	s := r.sum()
	if r.cfg.Messages > 0 && s.lastAnswer > from {
		r.window = s.lastAnswer - from
	}
	if r.cfg.Messages > 0 && s.exchanged == s.opened {
		r.tell(Event{Phase: Exchanged})
	}
	r.tell(Event{Phase: Measured})
	return err
}

// windowWait is what ends the window.
func (r *run) windowWait() wait {
	if r.cfg.Messages == 0 {
		return wait{most: r.traffic.left(), done: noneOpen}
	}
	return wait{
		done:  func(s sum) bool { return s.finished == s.opened },
		stall: r.cfg.Drain,
		moved: func(s sum) int64 { return s.whole.answered + s.closed },
	}
}

// drain waits for the answers that are missing, not for long once ctx has
// ended.
func (r *run) drain(ctx context.Context) error {
	complete := func(s sum) bool { return s.flying() == 0 }
	err := r.await(ctx, wait{
		done:  complete,
		stall: r.cfg.Drain,
		moved: func(s sum) int64 { return s.whole.answered },
	})
	if err == nil || errors.Is(err, errStalled) {
		return nil
	}
	_ = r.await(context.WithoutCancel(ctx), wait{most: min(r.cfg.Drain, cancelDrain), done: complete})
	return err
}

package supervisor

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Run accompanies a worker's engine until it has ended: it tells the supervisor
// that the worker serves, publishes its counters, and drains it when that is
// asked for. It is called once, after a successful Take.
//
// A drain is asked for by SIGTERM, by the end of ctx, or by the supervisor, who
// orders it or is gone, which is passed on to the program as a SIGTERM if it has
// not had one. It is bounded by bound, unless the supervisor has ordered it, who
// then bounds it with a kill. From the start of Run on, SIGINT does nothing, SIGHUP
// nothing but what main asks for, and once a drain has been ordered neither does any
// SIGTERM after the first: a terminal or a service manager sends them to all processes,
// and the supervisor gets them too and decides.
//
// When the supervisor has gone, a goroutine remains that ends the process if it
// has not ended when bound and the time to exit are over.
func (w *Worker) Run(ctx context.Context, e engine.Engine, bound time.Duration, log *slog.Logger) error {
	swallow(os.Interrupt)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // or it would kill
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	counts := &publisher{block: w.block, engine: e}
	d := &drainer{engine: e, counts: counts, bound: bound, ended: make(chan struct{})}
	defer d.close()
	var writing sync.WaitGroup
	writing.Go(w.out.write)
	defer writing.Wait()
	defer w.out.close()
	ordered, orphaned := make(chan struct{}), make(chan struct{})
	go w.obey(e, ordered, orphaned, bound, log)
	go func() {
		e.Wait()
		close(d.ended)
	}()
	counts.publish()
	_ = w.out.put([]byte{saysServing}, lineTimeout)
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()
	done, termed := ctx.Done(), false
	for {
		select {
		case <-tick.C:
			counts.publish()
		case <-terms:
			termed = true
			d.drain()
			if d.ordered {
				swallow(syscall.SIGTERM)
			}
		case <-done:
			done = nil
			d.drain()
		case <-ordered:
			ordered = nil
			d.drainUnbounded()
			if termed {
				swallow(syscall.SIGTERM)
			} else {
				raise()
			}
		case <-orphaned:
			orphaned, ordered = nil, nil // nobody is left to bound a drain
			d.orphan()
			if !termed {
				raise()
			}
		case <-d.late():
			d.cut(context.DeadlineExceeded)
			w.leave(&writing) // a handler that does not return may hold up what follows
		case <-d.ended:
			counts.publish()
			w.leave(&writing)
			return d.result()
		}
	}
}

// leave tells the supervisor that this worker has stopped serving, and so is to
// end within the time to exit; before that, what else it was to hear. It fails
// only when the supervisor has gone.
func (w *Worker) leave(writing *sync.WaitGroup) {
	w.out.close()
	writing.Wait()
	_ = w.line.CloseWrite()
}

// obey does what the supervisor orders, until it has gone. Then it sees to it
// that this process ends too.
func (w *Worker) obey(e engine.Engine, ordered, orphaned chan<- struct{}, bound time.Duration, log *slog.Logger) {
	in := bufio.NewReader(w.line)
	c := &caster{worker: w, engine: e, log: log}
	for told := false; ; {
		what, frame, err := hear(in)
		if err != nil {
			break
		}
		switch {
		case what == carries:
			c.cast(frame[headSize:])
		case what == commands:
			obeyCommand(e, frame[headSize:], log)
		case what == ordersDrain && !told:
			told = true
			close(ordered)
		}
	}
	close(orphaned)
	time.Sleep(bound + w.exit)
	log.LogAttrs(context.Background(), slog.LevelError, "the supervisor has gone, and main has not returned; exiting",
		slog.Int("worker", w.Index))
	os.Exit(1)
}

// swallow makes a signal do nothing, whoever had asked for it. It does not
// ignore it for good: that would be inherited by programs that this one starts.
// A signal that arrives in the middle of signal.Ignore can end the process, for
// the runtime then finds it neither wanted nor ignored (seen in Go 1.26), so this
// is not called while a second one is to be expected.
func swallow(sig os.Signal) {
	signal.Ignore(sig)
	signal.Notify(make(chan os.Signal, 1), sig)
}

// drainer drains an engine once. It belongs to Run.
type drainer struct {
	engine engine.Engine
	counts *publisher
	bound  time.Duration
	ended  chan struct{} // closed when the engine has

	cancel   context.CancelCauseFunc // nil before the drain
	err      chan error              // gets what Stop says
	ordered  bool                    // by the supervisor, who bounds it
	deadline *time.Timer             // nil if there is none
}

// drain begins to drain, within the bound.
func (d *drainer) drain() {
	if d.cancel == nil {
		d.begin()
		if !d.ordered {
			d.limit()
		}
	}
}

// drainUnbounded begins to drain, or lifts the bound.
func (d *drainer) drainUnbounded() {
	d.ordered = true
	d.drain()
	d.unlimit()
}

// orphan begins to drain, and bounds it from now on if it had no bound.
func (d *drainer) orphan() {
	d.ordered = false
	d.drain()
	d.limit()
}

// begin begins to drain, when the supervisor can read how many are open.
func (d *drainer) begin() {
	d.counts.publish()
	var ctx context.Context
	ctx, d.cancel = context.WithCancelCause(context.Background())
	d.err = make(chan error, 1)
	go func() { d.err <- d.engine.Stop(ctx) }()
}

func (d *drainer) limit() {
	if d.deadline == nil {
		d.deadline = time.NewTimer(d.bound)
	}
}

func (d *drainer) unlimit() {
	if d.deadline != nil {
		d.deadline.Stop()
		d.deadline = nil
	}
}

// late fires when the bound is over; it is nil when there is none.
func (d *drainer) late() <-chan time.Time {
	if d.deadline == nil {
		return nil
	}
	return d.deadline.C
}

// cut ends what has not drained.
func (d *drainer) cut(why error) {
	d.unlimit()
	d.cancel(why)
}

// result is what the drain came to. The engine has ended.
func (d *drainer) result() error {
	if d.cancel == nil {
		return nil // stopped by someone else
	}
	if err := <-d.err; err != nil {
		return fmt.Errorf("shutdown: %w", err)
	}
	return nil
}

// close frees what the drain holds.
func (d *drainer) close() {
	d.unlimit()
	if d.cancel != nil {
		d.cancel(nil)
	}
}

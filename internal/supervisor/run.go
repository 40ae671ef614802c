package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Run attends a worker's engine until it has ended: it tells the supervisor
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
	var writing sync.WaitGroup
	writing.Go(w.out.write)
	defer writing.Wait()
	defer w.out.close()
	ordered, orphaned, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go w.obey(e, ordered, orphaned, bound, log)
	go func() {
		e.Wait()
		close(ended)
	}()
	d := &drain{engine: e, counters: &publisher{block: w.block, engine: e}, bound: bound, bounded: true}
	d.counters.publish()
	publish := make(chan chan struct{})
	defer w.attend(e, func(ctx context.Context) {
		published := make(chan struct{})
		select {
		case publish <- published:
			<-published
		case <-ctx.Done():
		}
	})()
	_ = w.out.put(newFrame(kindServing, nil), controlTimeout)
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()
	for done := ctx.Done(); ; {
		select {
		case <-tick.C:
			d.counters.publish()
		case published := <-publish:
			d.counters.publish()
			close(published)
		case <-terms:
			d.signalled = true
			d.begin()
		case <-done:
			done = nil
			d.begin()
		case <-ordered:
			ordered, d.ordered, d.bounded = nil, true, false
			d.begin()
		case <-orphaned: // nobody else is left to bound a drain
			orphaned, ordered, d.ordered, d.bounded = nil, nil, true, true
			d.begin()
		case <-d.deadline:
			d.deadline = nil
			d.cut(context.DeadlineExceeded)
			w.sayStopped(&writing) // a handler that does not return may hold up what follows
		case <-ended:
			d.counters.publish()
			w.sayStopped(&writing)
			return d.end()
		}
	}
}

// drain is the drain of a worker. It belongs to Run.
type drain struct {
	engine   engine.Engine
	counters *publisher
	bound    time.Duration

	cut      context.CancelCauseFunc // ends it; nil before it has begun
	stopped  chan error              // what the engine's Stop returned
	deadline <-chan time.Time        // nil for none

	bounded   bool // by bound; otherwise by the supervisor's kill
	ordered   bool // by the supervisor, or because that is gone
	signalled bool // by a SIGTERM
	raised    bool // the order was passed on as a SIGTERM
	ignoring  bool // further ones do nothing
}

// begin begins the drain, unless it has begun, sets or lifts its bound, and passes the
// supervisor's order on to the program.
func (d *drain) begin() {
	if d.cut == nil {
		d.counters.publish() // the supervisor reads how many are open
		var ctx context.Context
		ctx, d.cut = context.WithCancelCause(context.Background())
		d.stopped = make(chan error, 1)
		go func() { d.stopped <- d.engine.Stop(ctx) }()
	}
	if !d.bounded {
		d.deadline = nil
	} else if d.deadline == nil {
		d.deadline = time.After(d.bound)
	}
	switch {
	case d.ordered && !d.signalled && !d.raised:
		d.raised = true
		raise()
	case d.signalled && !d.bounded && !d.ignoring:
		d.ignoring = true
		swallow(syscall.SIGTERM)
	}
}

// end is how the drain has ended, when the engine has.
func (d *drain) end() error {
	if d.cut == nil {
		return nil // stopped by someone else
	}
	defer d.cut(nil)
	if err := <-d.stopped; err != nil {
		return fmt.Errorf("shutdown: %w", err)
	}
	return nil
}

// sayStopped sends what waits and then tells the supervisor that this worker has
// stopped serving, and so is to exit in time. It fails only when the supervisor has
// gone.
func (w *Worker) sayStopped(writing *sync.WaitGroup) {
	w.out.close()
	writing.Wait()
	_ = w.socket.CloseWrite()
}

// obey does what the supervisor orders, until it has gone. Then it makes sure that
// this process ends too.
func (w *Worker) obey(e engine.Engine, ordered, orphaned chan<- struct{}, bound time.Duration, log *slog.Logger) {
	in := bufio.NewReader(w.socket)
	b := &broadcaster{engine: e}
	for told := false; ; {
		frame, err := receive(in)
		if err != nil {
			break
		}
		switch kind, content := frame[0], frame[headSize:]; {
		case kind == kindBroadcast:
			err = b.broadcast(content)
		case kind != kindDrain:
			err = obeyCommand(e, kind, content)
		case !told:
			told = true
			close(ordered)
		}
		if err != nil && !errors.Is(err, engine.ErrClosed) {
			log.Error("a broadcast or command is dropped for the connections of this worker process",
				"worker", w.Index, "bytes", len(frame)-headSize, "error", err.Error())
		}
	}
	close(orphaned)
	time.Sleep(bound + w.exit)
	log.Error("the supervisor has gone, and main has not returned; exiting",
		"worker", w.Index)
	os.Exit(1)
}

// obeyCommand does what an operator has ordered.
func obeyCommand(e engine.Engine, kind byte, content []byte) error {
	switch kind {
	case kindPause, kindResume:
		return e.PauseAccept(kind == kindPause)
	case kindExpel:
		var peer netip.AddrPort
		if err := peer.UnmarshalBinary(content); err != nil || !peer.IsValid() {
			return fmt.Errorf("the peer to expel is %x; expected an address and a port", content)
		}
		return e.ClosePeerConns(peer)
	}
	return nil
}

// retryBroadcast is how long a worker waits for room before it tries again.
const retryBroadcast = time.Millisecond

// broadcaster sends broadcasts to a worker's own connections.
type broadcaster struct {
	engine engine.Engine
	waited time.Time // when it last waited for room
}

// broadcast sends a message. While the engine has no room it waits, so that the
// control socket is not read: for controlTimeout at most, and not again for
// writeTimeout, so that an order behind many broadcasts is heard soon.
func (b *broadcaster) broadcast(p []byte) error {
	err := b.engine.Broadcast(p)
	if errors.Is(err, engine.ErrFull) && time.Since(b.waited) > writeTimeout {
		for tries := int(controlTimeout / retryBroadcast); errors.Is(err, engine.ErrFull) && tries > 0; tries-- {
			time.Sleep(retryBroadcast)
			err = b.engine.Broadcast(p)
		}
		b.waited = time.Now()
	}
	return err
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

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

// Run connects a worker's engine with the supervisor until the engine has ended. It tells the supervisor that the
// worker serves, publishes the worker's counters, and drains the worker on request. Call Run only once, after
// ClaimListeners.
//
// Run starts a drain when SIGTERM arrives, when ctx ends, when the supervisor requests a drain, or when the supervisor
// dies. drainTimeout limits every drain except one that the supervisor has requested. If the supervisor has requested
// the drain or has died, Run also sends a SIGTERM to this process, unless one has already arrived.
//
// If the supervisor has died and the process still runs after drainTimeout plus the exit timeout, Run exits the
// process.
//
// From the start of Run, SIGINT has no effect, and SIGHUP no longer ends the process.
func (w *Worker) Run(ctx context.Context, e engine.Engine, drainTimeout time.Duration, log *slog.Logger) error {
	ignoreSignalButNotInChildren(os.Interrupt)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // its default action would kill the process
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	var writing sync.WaitGroup
	writing.Go(w.out.writeUntilClosedAndDrained)
	defer writing.Wait()
	defer w.out.close()
	drainRequested, orphaned, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go w.handleFramesAndExitIfOrphaned(e, drainRequested, orphaned, drainTimeout, log)
	go func() {
		e.Wait()
		close(ended)
	}()
	d := &workerDrain{engine: e, counters: &counterPublisher{block: w.block, engine: e}, timeout: drainTimeout, hasTimeout: true}
	d.counters.publishToSharedMemory()
	publish := make(chan chan struct{})
	defer w.startHandoffOrderHandler(e, func(ctx context.Context) {
		published := make(chan struct{})
		select {
		case publish <- published:
			<-published
		case <-ctx.Done():
		}
	})()
	_ = w.out.enqueue(encodeFrame(kindServing, nil), controlTimeout)
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()
	for done := ctx.Done(); ; {
		select {
		case <-tick.C:
			d.counters.publishToSharedMemory()
		case published := <-publish:
			d.counters.publishToSharedMemory()
			close(published)
		case <-terms:
			d.gotSIGTERM = true
			d.startOrUpdateDrain()
		case <-done:
			done = nil
			d.startOrUpdateDrain()
		case <-drainRequested:
			drainRequested, d.requestedBySupervisor, d.hasTimeout = nil, true, false
			d.startOrUpdateDrain()
		case <-orphaned: // nothing else limits the drain now
			orphaned, drainRequested, d.requestedBySupervisor, d.hasTimeout = nil, nil, true, true
			d.startOrUpdateDrain()
		case <-d.deadline:
			d.deadline = nil
			d.cancel(context.DeadlineExceeded)
			w.flushAndNotifyStopped(&writing) // a handler that does not return may delay what follows
		case <-ended:
			d.counters.publishToSharedMemory()
			w.flushAndNotifyStopped(&writing)
			return d.waitDrainResult()
		}
	}
}

// workerDrain is the state of a worker's drain. Only Worker.Run uses it.
type workerDrain struct {
	engine   engine.Engine
	counters *counterPublisher
	timeout  time.Duration

	cancel   context.CancelCauseFunc // ends the drain; nil before it has started
	stopped  chan error              // result of the engine's Stop
	deadline <-chan time.Time        // nil for none

	hasTimeout            bool // timeout limits the drain; otherwise the supervisor kills a slow worker
	requestedBySupervisor bool // also set if the supervisor has died
	gotSIGTERM            bool
	raisedSIGTERM         bool // this process has sent itself a SIGTERM
	ignoresSIGTERM        bool // a further SIGTERM has no effect
}

// startOrUpdateDrain starts the drain. If the drain has already started, it updates the deadline. If the supervisor has
// requested the drain or has died, startOrUpdateDrain sends a SIGTERM to this process, unless the process has already
// received or sent itself one.
func (d *workerDrain) startOrUpdateDrain() {
	if d.cancel == nil {
		d.counters.publishToSharedMemory() // the supervisor reads how many connections are open
		var ctx context.Context
		ctx, d.cancel = context.WithCancelCause(context.Background())
		d.stopped = make(chan error, 1)
		go func() { d.stopped <- d.engine.Stop(ctx) }()
	}
	if !d.hasTimeout {
		d.deadline = nil
	} else if d.deadline == nil {
		d.deadline = time.After(d.timeout)
	}
	switch {
	case d.requestedBySupervisor && !d.gotSIGTERM && !d.raisedSIGTERM:
		d.raisedSIGTERM = true
		raiseSIGTERM()
	case d.gotSIGTERM && !d.hasTimeout && !d.ignoresSIGTERM:
		d.ignoresSIGTERM = true
		ignoreSignalButNotInChildren(syscall.SIGTERM)
	}
}

func (d *workerDrain) waitDrainResult() error {
	if d.cancel == nil {
		return nil // stopped by another caller
	}
	defer d.cancel(nil)
	if err := <-d.stopped; err != nil {
		return fmt.Errorf("shutdown: %w", err)
	}
	return nil
}

// flushAndNotifyStopped writes the queued messages and then tells the supervisor that this worker has stopped serving.
func (w *Worker) flushAndNotifyStopped(writing *sync.WaitGroup) {
	w.out.close()
	writing.Wait()
	_ = w.socket.CloseWrite()
}

// handleFramesAndExitIfOrphaned executes the supervisor's commands until the supervisor dies. It then closes the
// channel orphaned, waits for drainTimeout plus the exit timeout, and exits the process with status 1.
func (w *Worker) handleFramesAndExitIfOrphaned(e engine.Engine, drainRequested, orphaned chan<- struct{}, drainTimeout time.Duration, log *slog.Logger) {
	in := bufio.NewReader(w.socket)
	b := &broadcaster{engine: e}
	for requested := false; ; {
		frame, err := readFrameWithHeader(in)
		if err != nil {
			break
		}
		switch kind, content := frame[0], frame[frameHeaderSize:]; {
		case kind == kindBroadcast:
			err = b.broadcastRetryingBriefly(content)
		case kind != kindDrain:
			err = executeOperatorCommand(e, kind, content)
		case !requested:
			requested = true
			close(drainRequested)
		}
		if err != nil && !errors.Is(err, engine.ErrClosed) {
			log.Error("dropping a broadcast or command for the connections of this worker process",
				"worker", w.Index, "bytes", len(frame)-frameHeaderSize, "error", err.Error())
		}
	}
	close(orphaned)
	time.Sleep(drainTimeout + w.exitTimeout)
	log.Error("the supervisor has died and main has not returned; exiting",
		"worker", w.Index)
	os.Exit(1)
}

func executeOperatorCommand(e engine.Engine, kind byte, payload []byte) error {
	switch kind {
	case kindPause, kindResume:
		return e.PauseAccept(kind == kindPause)
	case kindExpel:
		var peer netip.AddrPort
		if err := peer.UnmarshalBinary(payload); err != nil || !peer.IsValid() {
			return fmt.Errorf("peer to expel is %x; expected an address and a port", payload)
		}
		return e.QueueCloseOfPeerConns(peer)
	}
	return nil
}

const broadcastRetryInterval = time.Millisecond

type broadcaster struct {
	engine   engine.Engine
	lastWait time.Time // when it last waited for space in the engine
}

// broadcastRetryingBriefly sends p to this worker's connections. If the engine is full, it tries again for up to
// controlTimeout. After it has done so, it does not try again for writeTimeout, because the supervisor's other commands
// must wait for it.
func (b *broadcaster) broadcastRetryingBriefly(p []byte) error {
	err := b.engine.BroadcastToAllConns(p)
	if errors.Is(err, engine.ErrFull) && time.Since(b.lastWait) > writeTimeout {
		for tries := int(controlTimeout / broadcastRetryInterval); errors.Is(err, engine.ErrFull) && tries > 0; tries-- {
			time.Sleep(broadcastRetryInterval)
			err = b.engine.BroadcastToAllConns(p)
		}
		b.lastWait = time.Now()
	}
	return err
}

// ignoreSignalButNotInChildren makes this process ignore sig, but not its child processes. sig must not arrive during
// the call.
func ignoreSignalButNotInChildren(sig os.Signal) {
	signal.Ignore(sig)
	// Child processes would inherit an ignored signal.
	signal.Notify(make(chan os.Signal, 1), sig)
}

package lab

import (
	"context"
	"net/http"
	"sync"
	"time"
)

const (
	// askBound is how long a tick waits for what a server says of itself.
	askBound = 500 * time.Millisecond
	// firstAskBound is how long a run waits for the first answer, without which it asks
	// no more: on a busy machine it may take longer than a tick waits.
	firstAskBound = 10 * time.Second
)

// The metrics of a tick that a server with loops has, of all its processes.
const (
	metricTurns = "myriad_loop_lag_seconds_count"
	metricLag   = "myriad_loop_lag_seconds_sum"
)

// goMetrics are the names of what Go's runtime says.
type goMetrics struct{ goroutines, collections, pause string }

// One process says it of itself. A supervisor serves nobody: what it says of its workers is
// the sum over them.
var (
	goOfOne     = goMetrics{"go_goroutines", "go_gc_duration_seconds_count", "go_gc_duration_seconds_sum"}
	goOfWorkers = goMetrics{"myriad_worker_goroutines", "myriad_worker_gc_cycles_total", "myriad_worker_gc_pause_seconds_total"}
)

// asker asks a server what it says of itself, one question at a time. A tick does not
// wait for a slow answer, and the question goes on: giving it up would end the connection,
// and who counts the server's sockets would find one less. The next tick takes the late
// answer, if its own comes no earlier. It belongs to one goroutine at a time; nil asks
// nothing.
type asker struct {
	source  MetricsSource
	alone   bool                    // as far as the lab knows, there is one process
	bound   time.Duration           // askBound
	answers chan map[string]float64 // room for one
	asking  bool
	wait    sync.WaitGroup
}

// newAsker is for the metrics at addr. It asks a first time, so that there is a
// connection. It is nil without an address, and where there is no answer within
// firstAskBound: a connection that came later would be counted among those of the load.
func newAsker(ctx context.Context, addr string, processes int) *asker {
	if addr == "" {
		return nil
	}
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, DisableCompression: true}}
	a := &asker{bound: askBound, alone: processes < 2, source: MetricsSource{Addr: addr, client: client}, answers: make(chan map[string]float64, 1)}
	ctx, cancel := context.WithTimeout(ctx, firstAskBound)
	defer cancel()
	for { // it may not listen there yet
		if _, err := a.read(ctx); err == nil {
			return a
		}
		if pause(ctx, poll) != nil {
			a.close()
			return nil
		}
	}
}

func (a *asker) read(ctx context.Context) (map[string]float64, error) {
	one, all := goOfOne, goOfWorkers
	return a.source.known(ctx, one.goroutines, one.collections, one.pause, all.goroutines, all.collections, all.pause, metricTurns, metricLag)
}

// ask fills in what the server says in time, all 0 where it says nothing.
func (a *asker) ask(ctx context.Context, to *TickSide) {
	if a == nil || ctx.Err() != nil {
		return
	}
	var values map[string]float64
	select {
	case values = <-a.answers: // to the last question
		a.asking = false
	default:
	}
	if !a.asking {
		a.asking = true
		a.wait.Go(func() {
			values, _ := a.read(ctx)
			a.answers <- values // nil where there is none
		})
	}
	bound := time.NewTimer(a.bound)
	defer bound.Stop()
	select {
	case values = <-a.answers:
		a.asking = false
	case <-bound.C:
	}
	of := goOfWorkers
	if a.alone && values[of.goroutines] == 0 {
		of = goOfOne
	}
	to.Goroutines, to.GCs, to.Turns = int64(values[of.goroutines]), int64(values[of.collections]), int64(values[metricTurns])
	to.GCPause = time.Duration(values[of.pause] * float64(time.Second))
	to.Lag = time.Duration(values[metricLag] * float64(time.Second))
}

// close waits for the question under way, whose context has ended, and ends the
// connection.
func (a *asker) close() {
	if a == nil {
		return
	}
	a.wait.Wait()
	a.source.client.CloseIdleConnections()
}

package web

import (
	"context"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/overload"
	"github.com/myriad-go/myriad/pool"
)

// exchangeJob runs the handlers of a list of exchanges. If the connection closes before the job runs, the handlers do
// not run.
type exchangeJob struct {
	x           atomic.Pointer[exchange]
	route       *route
	overload    *overload.Manager
	ticket      overload.Ticket
	onLoopState atomic.Int32 // jobOnLoop, jobTaken or jobEnded; for jobs of event loops
}

const (
	jobOnLoop int32 = iota
	jobTaken        // another goroutine continues the loop, and the route counts the job in takenCalls
	jobEnded
)

func (j *exchangeJob) submitToPoolOrDrop() {
	if x := j.x.Load(); x != nil {
		if err := x.h.poolOrDefault().TrySubmitTask(pool.Task{Job: j}); err != nil {
			j.Dropped(err)
		}
	}
}

func (j *exchangeJob) takeExchange() *exchange { return j.x.Swap(nil) }

func (j *exchangeJob) Run(context.Context) { j.runHandlers(nil) }

// Dropped implements pool.Dropper. It answers the requests of the job with the status 503.
func (j *exchangeJob) Dropped(error) {
	j.overload.Abandon(&j.ticket)
	j.takeExchange().rejectThisAndFollowing(nil)
}

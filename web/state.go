package web

import "fmt"

// A request has two states, because two goroutines work on it concurrently.
//
// exchangeState coordinates the connection's owner and the handler's goroutine: which of them acts next, and which
// releases resources. After dispatch, exchange.mu guards it. Before dispatch, and for a Quick handler, only the owner
// uses the exchange, and the state is stateReading.
//
// responseState is the progress of the response. It belongs to the goroutine that runs the handler and needs no lock.
// The owner reads it only after that goroutine has set stateReturned or stateBuffered, as its last step.

type exchangeState uint8

const (
	stateReading    exchangeState = iota // the owner reads the head, or runs a Quick handler
	statePipelined                       // waits behind another request; nothing of the response has been sent
	stateBuffered                        // waits behind another request; the handler has returned, its response is in memory
	stateActive                          // the handler is queued or runs; its return posts sendReadyResponses
	stateReturned                        // the handler has returned; the owner must finish the response
	stateDiscarding                      // the response is complete; the rest of the body is discarded
	stateAborted                         // the connection has closed; the handler has not returned
	stateDone                            // complete, and all resources are released
)

var exchangeStates = [...]string{"reading", "pipelined", "buffered", "active", "returned", "discarding", "aborted", "done"}

// exchangeTransitions[s] is the set of states that may follow the state s. Each bit represents one state.
var exchangeTransitions = [stateDone + 1]uint16{
	stateReading:    1<<statePipelined | 1<<stateActive,
	statePipelined:  1<<stateBuffered | 1<<stateActive | 1<<stateAborted | 1<<stateDone,
	stateBuffered:   1<<stateReturned | 1<<stateDone,
	stateActive:     1<<stateReturned | 1<<stateAborted | 1<<stateDone,
	stateReturned:   1<<stateDiscarding | 1<<stateDone,
	stateDiscarding: 1 << stateDone,
	stateAborted:    1 << stateDone,
	stateDone:       1 << stateReading, // reused
}

func (s exchangeState) String() string { return exchangeStates[s] }

// setState changes the state of x. If the transition is forbidden, setState logs it, but still changes the state. After
// dispatch, the caller must hold x.mu.
func (x *exchange) setState(newState exchangeState) {
	if exchangeTransitions[x.state]>>newState&1 == 0 {
		x.logForbiddenTransition(x.state, newState)
	}
	x.state = newState
}

type responseState uint8

const (
	responsePending   responseState = iota // no final status yet
	responseStatus                         // WriteHeader has been called
	responseWhole                          // the handler has returned before the head was written, so the length is known
	responseHead                           // the head is in out or was sent
	responseComplete                       // the handler has returned; all output is in out and trailing, or was sent
	responseSwitching                      // another tcp.Handler takes over after the handler returns
	responseHijacked                       // the connection belongs to the handler
	responseAborted                        // the handler has panicked or called runtime.Goexit
)

var responseStates = [...]string{"pending", "status", "whole", "head", "complete", "switching", "hijacked", "aborted"}

// responseTransitions[s] is the set of states that may follow the state s. Each bit represents one state.
var responseTransitions = [responseAborted + 1]uint16{
	responsePending:   1<<responseStatus | 1<<responseSwitching | 1<<responseHijacked | 1<<responseAborted,
	responseStatus:    1<<responseWhole | 1<<responseHead | 1<<responseAborted,
	responseWhole:     1<<responseHead | 1<<responseComplete,
	responseHead:      1<<responseComplete | 1<<responseHijacked | 1<<responseAborted,
	responseSwitching: 1 << responseAborted,
}

func (s responseState) String() string { return responseStates[s] }

// setState changes the state of w. If the transition is forbidden, setState logs it, but still changes the state.
func (w *response) setState(newState responseState) {
	if responseTransitions[w.state]>>newState&1 == 0 {
		w.x.logForbiddenTransition(w.state, newState)
	}
	w.state = newState
}

// onForbidden, if set, is called instead of logging a forbidden transition. Only tests set it.
var onForbidden func(x *exchange, from, to fmt.Stringer)

func (x *exchange) logForbiddenTransition(from, to fmt.Stringer) {
	if onForbidden != nil {
		onForbidden(x, from, to)
	} else {
		x.h.logf("web: invalid transition of a request from %v to %v; please report this bug", from, to)
	}
}

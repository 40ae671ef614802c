// Package supervisor runs a server as several worker processes.
//
// # Who owns what
//
// The supervisor is the process that the user started. It owns a listener for
// each worker, all on one address (SO_REUSEPORT), and never accepts from them:
// it holds them open, so that a worker that is started again finds its socket
// with the connections that wait there. It owns the board, memory that it shares
// with all workers. Each worker has a keeper, one goroutine, which alone starts
// it, tells it to drain, kills it and learns of its end.
//
// A worker is the same program with the same arguments. It finds in its
// environment (MYRIAD_WORKER) which one it is, and as descriptors 3, 4 and 5 its
// listener, the board and its life-line. It alone writes to its block of the
// board, until it has ended; then the block is its keeper's, who adds it to the
// counters of the past and clears it for the next life.
//
// # The life-line
//
// The life-line is a socket pair between supervisor and worker. The worker
// writes one byte when it serves, and ends its direction when it has stopped
// serving. The supervisor writes one byte to order a drain, which it bounds
// itself. When the supervisor goes, however it went, the kernel ends its
// direction, and the worker drains and ends. At each end one goroutine reads and
// one writes, from an outbox.
//
// A broadcast goes over it both ways: from the worker in which it was made to the
// supervisor, whose relay, one goroutine, passes it on to all workers that serve,
// the first one included. So all of them get all broadcasts in one order. Where
// there is no room for one more, the worker that makes broadcasts is not read from
// any longer, until it has no room either and tells its caller. Only a worker
// that takes nothing for lineTimeout misses one, which is logged. An order to drain
// goes ahead of broadcasts that wait. What an operator commands goes the way of a
// broadcast, and in order with them.
//
// # The life of a worker
//
//	start ──▶ starting ──▶ serving ──▶ left ──▶ ended
//	  ▲          │            │                   │
//	  └──────────┴── back-off ┴───────────────────┘
//
// Each step but serving has a bound, see pace.
package supervisor

import "time"

// environment is the variable that makes a process a worker:
// "<index>/<processes> <network> <address>", as the Server has them.
const environment = "MYRIAD_WORKER"

// What goes over the life-line.
const (
	saysServing = 's' // from the worker
	ordersDrain = 'd' // from the supervisor
	carries     = 'b' // a broadcast, either way: 4 bytes of length (big-endian) and the message follow
	commands    = 'c' // an operator's command, either way, in the same form; see command.go
)

const (
	// publishEvery is how often a worker publishes its counters.
	publishEvery = 100 * time.Millisecond
	// lineTimeout bounds what is done on a life-line that should be done at
	// once.
	lineTimeout = time.Second
)

// pace are the bounds of waiting and of trying again.
type pace struct {
	first   time.Duration // before the first start again
	most    time.Duration // doubling up to this
	settled time.Duration // a life of this length begins anew with first
	giveUp  int           // when all workers have failed so often in a row
	start   time.Duration // from the start of a process until it serves
	exit    time.Duration // from its end of serving until it ends
}

var standard = pace{
	first: 100 * time.Millisecond, most: 10 * time.Second, settled: 10 * time.Second,
	giveUp: 10, start: 2 * time.Minute, exit: 30 * time.Second,
}

// backoff is how long a keeper waits between two lives.
type backoff struct {
	pace
	next time.Duration
}

// after is the wait after a life that lasted so long: first, doubled for each
// short life in a row, at most most.
func (b *backoff) after(lived time.Duration) time.Duration {
	if b.next == 0 || lived >= b.settled {
		b.next = b.first
	}
	wait := b.next
	b.next = min(2*b.next, b.most)
	return wait
}

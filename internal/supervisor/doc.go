// Package supervisor runs a server as several worker processes.
//
// # Who owns what
//
// The supervisor is the process that the user started. For each worker it owns a
// listener per address (SO_REUSEPORT). It never accepts: it keeps the listeners open,
// so that a worker that is started again finds its sockets and the connections that
// wait there. It maps the shared counters, a block per worker. For each worker one
// goroutine, its monitor, starts the process, drains it, kills it, waits for it, and
// starts it again.
//
// A worker is the same program with the same arguments. The variable MYRIAD_WORKER
// says which worker it is; descriptors 3, 4 and 5 are the shared counters, its control
// socket and its link for upgrades (migrate_linux.go), and its listeners follow. Only the worker
// writes to its block of counters until it has ended; then its monitor adds the block
// to the counters of workers that ended, and clears it.
//
// # The control socket
//
// The control socket is a socket pair between supervisor and worker. At each end one
// goroutine reads and another one writes, from a bounded outbox.
//
// The worker says when it serves, and shuts down its direction when it has stopped
// serving. The supervisor orders a drain, which it bounds with a kill. When the
// supervisor dies the kernel ends its direction, and the worker drains and exits.
//
// Broadcasts and operators' commands go both ways: from the worker in which they were
// made to the supervisor, and from its relay, one goroutine, to all workers that serve,
// the first one included. So all workers get them in the same order. Where there is no
// room the sender is not read from, until it has no room either and its caller gets
// ErrFull. Only a worker that takes nothing for controlTimeout misses a message, which
// is logged. An order to drain overtakes messages that wait.
//
// # The life of a worker
//
//	start ──▶ starting ──▶ serving ──▶ stopped ──▶ ended
//	  ▲          │            │                      │
//	  └──────────┴── back-off ┴──────────────────────┘
//
// Each state but serving is bounded, see timing.
package supervisor

// Package supervisor runs a server as several worker processes.
//
// # Ownership
//
// The supervisor is the process that the user started. It opens a listener per worker and address (SO_REUSEPORT) and
// never accepts. It keeps the listeners open, so that a restarted worker finds its sockets and the waiting connections.
// A monitor goroutine per worker starts, drains, kills, reaps and restarts the process.
//
// A worker is the same program with the same arguments, identified by the variable MYRIAD_WORKER. Descriptor 3 is the
// shared counters, 4 the control socket, and 5 the connection for handoff orders (handoff_linux.go); the worker's
// listeners follow. A worker's block of counters is written only by the worker until the worker has ended. Its monitor
// then adds the block to the counters of ended workers and clears it. All workers share a page behind the counters.
// Package tcp keeps the keys of TLS session tickets there.
//
// # The control socket
//
// The control socket is a socket pair between the supervisor and a worker. At each end one goroutine reads and another
// one writes, from a bounded outbox. The worker announces that it serves, and shuts down its direction when it has
// stopped serving. The supervisor requests a drain, and kills the worker if the drain takes too long. If the supervisor
// dies, its end of the socket closes; the worker then drains and exits.
//
// A worker sends broadcasts and operators' commands to the supervisor. The supervisor's relay, a single goroutine,
// sends them to all serving workers, including the sender, so all workers receive them in the same order. If a worker's
// queue is full, the relay waits for space and receives no messages. The senders' queues then fill up, and callers get
// ErrFull. Only a worker that reads nothing for controlTimeout misses a message. A drain request overtakes queued
// messages.
//
// # Worker states
//
//	start ──▶ starting ──▶ serving ──▶ stopped ──▶ ended
//	  ▲          │            │                      │
//	  └──────────┴── back-off ┴──────────────────────┘
//
// Each state except serving has a time limit; see timing.
package supervisor

// Package load generates load for a TCP server, verifies its answers, and measures rates and latencies.
//
//	result, err := load.Run(ctx, load.Config{Target: "127.0.0.1:9000", Connections: 10_000})
//	if err != nil { ... }
//	result.WriteText(os.Stdout)
//
// Run compares every byte of every answer with the message, or with Config.Answer. If answers are not known in advance,
// Config.Match describes how they are delimited, for example as HTTP responses. Such answers are counted and timed, but
// not compared.
//
// # Modes
//
//	closed loop   one message per answer: each connection keeps Config.Pipeline in flight
//	open loop     messages have planned times (Config.Rate), for all connections together
//	              or for each; Pipeline limits the messages in flight on a connection
//	flood         as fast as each connection accepts data; no answers expected (Config.Flood)
//	unprompted    each message answers something that the server sent (Config.Unprompted)
//	hold          nothing is sent (Config.Hold)
//
// Rate.Goal searches for the highest rate of an open loop that keeps the latency under a limit.
//
// # Phases
//
//	connect ─▶ HoldBefore ─▶ traffic ─▶ HoldAfter ─▶ close
//	                         ├ Warmup ┼──── Duration ────┤ last answers
//	                         └ Messages on each connection ┘
//
// Traffic starts on all connections when every connection attempt has finished. After the window, the run waits for
// missing answers (Config.Drain). An open loop still sends the messages that it had planned for the window. With
// Messages, the window extends from the first message to the last answer.
//
// With Early, a Ramp or a Lifetime, the window begins with the first connection attempt, and each connection sends as
// soon as it is established. A Ramp spreads the attempts over time. A Lifetime closes each connection in the middle of
// its traffic and replaces it.
//
// # What counts
//
// A message counts as sent in the window if it was passed to its connection during the window. An answer counts as
// answered in the window if its last byte arrived during the window.
//
// In a closed loop, a latency is the time from passing the message to its connection until the answer. It counts if the
// answer arrived during the window. In an open loop, a latency is the time from the planned moment of the message until
// the answer. It counts if the message was planned for the window, even if the answer arrives after the window.
// Therefore neither a stalled server nor a slow generator can hide a message from the figures; messages that were never
// sent count as unsent.
//
// # Ownership and concurrency
//
// Run's goroutine advances the run from phase to phase, and only this goroutine calls Config.Observe. It starts and
// joins two helpers: a dialer that paces connection attempts, and a starter that nudges each connection when the
// traffic begins. If connections are replaced, the dialer runs until the end of the traffic.
//
// Connections belong to an engine (internal/engine). A connState is the generator's state of one connection. The owner
// of the connection, a loop or a goroutine, changes it under the lock of the connection's shard. All states lie in one
// table. Connections that are only held have no connState.
//
// Totals and distributions of times are recorded per shard. There is one shard per loop, or a fixed number of shards in
// a model without loops. A shard also has a heap of timers and a queue of connections that can take a planned message.
// At the end of each interval (Config.ProgressEvery), Run's goroutine takes the shards' distributions and merges them.
//
// In an open loop, either one plan (pacer.SharedPlan) serves all connections, or each connection has its own plan in
// the table. From a shared plan, a connection takes the next due time when it can have another message in flight.
// Overdue messages need no memory, because a plan's next untaken time implies them.
//
// The engine calls the pacing (engine.Config.Scheduler) once per iteration of a loop, or on a separate goroutine in a
// model without loops. The pacing handles due timers and plans under the shard's lock. After releasing the lock, it
// nudges the connections, whose owners then send. No lock is held while a connection is written to.
//
// Lock order: a shard's lock before the lock of the plan or of the table. A goroutine never holds the locks of two
// shards. While it holds the lock of the fault recorder, it acquires no other lock.
//
// # End of a run
//
// A run ends after its last phase, or when no connection is left and none will come, or when its context ends. If the
// context has ended, the run stops sending and waits at most one second for answers. In every case it closes all
// connections, stops the engine, waits for its helpers, and reports the Result with the event Done.
package load

// Package load generates load for a TCP server, verifies its answers, and measures rates and
// latencies.
//
//	result, err := load.Run(ctx, load.Config{Target: "127.0.0.1:9000", Connections: 10_000})
//	if err != nil { ... }
//	result.WriteText(os.Stdout)
//
// Run compares every byte of every answer with what was sent, or with Config.Answer. If answers are
// not known in advance, Config.Match describes how they are delimited, as in HTTP; they are then
// counted and timed, not compared.
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
// Traffic starts on all connections when every connection attempt has finished. At the end of the
// window, only messages that an open loop had planned before are still sent, and the run waits for
// missing answers (Config.Drain). With Messages, the window extends from the first message to the
// last answer.
//
// With Early, a Ramp or a Lifetime, the traffic begins with the first connection attempt, and each
// connection sends as soon as it is established. A Ramp spreads the attempts over time. A Lifetime
// closes each connection in the middle of its traffic, and a new one replaces it.
//
// # What counts
//
// A message counts as sent in the window if it was passed to its connection during the window. An
// answer counts as answered in the window if its last byte arrived during the window. The clock is
// read once for all input that is available on a connection.
//
// In a closed loop, the latency of an answer counts if the answer arrived during the window. It is
// the time since the message was passed to the connection, which can be before the window. In an
// open loop, the latency counts if the message was planned for the window. It is the time since the
// planned moment, even if the answer arrives after the window. So neither a stalled server nor a
// slow generator can hide a message from the figures; a message that was never sent counts as
// unsent.
//
// # Ownership and concurrency
//
// Run's goroutine advances the run from phase to phase, and only it calls Config.Observe. It starts
// and joins two helpers: a dialer that paces connection attempts, and a starter that nudges each
// connection when the traffic begins. The dialer runs until the end of the traffic if connections
// are replaced.
//
// Connections belong to an engine (internal/engine). A connState is the generator's state of one
// connection. It belongs to the owner of the connection, except for a few fields that are protected
// by the lock of the connection's shard. The states lie in a table that is allocated once, and so
// does data that only some modes need: planned times, sizes, states of match rules and of
// WebSockets. Connections that are only held have no connState, so a million of them need no memory
// but the engine's.
//
// Totals are counted per shard: one for each loop, or a fixed number of shards in a model without
// loops. A shard also has a heap of timers and a queue of connections that can take a planned
// message. Its lock is held for a few dozen nanoseconds. On a loop, the only other user is Run's
// goroutine, a hundred times a second.
//
// The shared plan of an open loop is one sequence of times, a pacer.Shared: a connection with
// capacity takes the next time that is due. A plan per connection is part of the table. Overdue
// messages need no memory, because the next untaken time of a plan implies them.
//
// The engine calls the pacing (engine.Config.Pace) once per iteration of a loop, or on a separate
// goroutine in a model without loops. The pacing handles due timers and plans under the shard's
// lock and nudges the connections after releasing it; their owners then send. Nothing is written to
// a connection while a lock is held.
//
// Lock order: a shard's lock, then that of the plan or of the table; never two shards at a time.
// The lock of the fault recorder is taken alone.
//
// Distributions of times are also per shard. At the end of each interval (Config.ProgressEvery),
// Run's goroutine swaps them for empty ones and merges them: an interval has the percentiles of its
// own time, and a result is the sum of all.
//
// # End of a run
//
// A run ends after its last phase, when no connection is left and none will come, or early when its
// context ends. In the last case it stops sending and waits at most one second for answers. In
// every case it closes all connections, stops the engine, waits for its helpers, and reports the
// Result with the event Done.
package load

// Package load puts load on a TCP server, checks what it answers, and measures
// how it bears it.
//
//	result, err := load.Run(ctx, load.Config{Target: "127.0.0.1:9000", Connections: 10_000})
//	if err != nil { ... }
//	result.WriteText(os.Stdout)
//
// Every byte of every answer is compared with what was sent, or with Config.Answer.
// Where answers are not known, Config.Match says how they are delimited, as HTTP's are;
// they are then counted and timed, not compared.
//
// # Modes
//
//	closed loop   a message for each answer: each connection keeps Config.Pipeline in flight
//	open loop     messages have planned times (Config.Rate), for all connections together
//	              or for each; Pipeline bounds what a connection has in flight
//	flood         as fast as each connection takes it; no answer is awaited (Config.Flood)
//	unprompted    each message answers what the server has sent (Config.Unprompted)
//	hold          nothing is sent (Config.Hold)
//
// Rate.Goal looks for the highest rate of an open loop that keeps a latency.
//
// # Phases
//
//	connect ─▶ HoldBefore ─▶ traffic ─▶ HoldAfter ─▶ close
//	                         ├ Warmup ┼──── Duration ────┤ last answers
//	                         └ Messages on each connection ┘
//
// Traffic starts on all connections once none is being established any more.
// When the window ends nothing more is sent, but what an open loop had planned
// before, and answers that are missing are waited for (Config.Drain). With Messages
// the window reaches from the first message to the last answer.
//
// With Early, a Ramp or a Lifetime the traffic begins with the first attempt to
// connect, so that connecting is a part of it: each connection sends from when it is
// established. A Ramp spreads the attempts over a time. A Lifetime ends each
// connection in the middle of its traffic, and another one takes its place.
//
// # What counts
//
// A message counts as sent in the window if it was handed to its connection inside
// it, an answer as answered in the window if its last byte arrived inside it. The
// clock is read once for all the input that is at hand on a connection.
//
// In a closed loop an answer's latency counts if it arrived in the window: the time
// since its message was handed to the connection, which can have been before the
// window. In an open loop it counts if its message was to be sent in the window: the
// time since then, also when the answer came after the window. So neither a stalled
// server nor a slow generator can keep a message out of the figures; what was not
// sent at all is counted as unsent.
//
// # Who owns what
//
// Run's goroutine owns the run: it goes from phase to phase, and it alone
// calls Config.Observe. It starts helpers and waits for them: a dialer that paces
// the connecting, to the end of the traffic where connections replace others, and a
// helper that nudges each connection when the traffic begins.
//
// The connections live in an engine of internal/engine. A connState is the
// generator's part of a connection; it belongs to whoever owns the connection,
// but for a few fields that others read or claim messages in, which have the lock
// of the connection's shard. They lie in a table that is made once, and so does what only
// some kinds of load need of them: times planned, sizes, states of rules and
// of WebSockets. Connections that are only held have no connState: a million of them costs no
// more than the engine's entries.
//
// What connections add up goes into shards, a shard a loop, or a fixed number of
// them under a model without loops. A shard also has what its connections wait for: a heap
// of timers, and a queue of connections that have room for a message of the plan. Its lock
// is held for a few dozen nanoseconds, which on a loop nobody else wants but Run's
// goroutine a hundred times a second.
//
// The plan of an open loop for all connections is one sequence of times, the
// pacer.Shared: a connection that has room takes the next one that has come. A plan
// for each connection is in its part of the table. Nothing is kept for what is
// late: the next time that has not been taken says it all.
//
// The engine calls the pacing (engine.Config.Pace) once a turn of a loop, or on a
// goroutine of its own where there are no loops. It takes what timers and plans say
// that is due, under the shard's lock, and has the connections touched after it has let
// go of it; their owner then sends. Whoever hands messages to a connection holds no
// lock.
//
// Locks are taken in this order: a shard's, then that of the plan or of the table,
// never two shards' at a time. That of the faults is taken alone.
//
// Distributions of times are in the shards too. Run's goroutine exchanges them for
// empty ones at the end of each interval (Config.ProgressEvery), and merges them: an
// interval has the percentiles of what came in it, and a result is the sum of all.
//
// # How it ends
//
// A run ends when the window and what follows it is over, when no connection is left
// and none will come, or early when its context has ended: then it sends no more and
// waits a second for answers at most. Whatever happened, it closes all connections and
// stops the engine, waits for both and for its helpers, and tells the Result with the
// event Done.
package load

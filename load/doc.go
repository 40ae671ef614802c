// Package load puts load on a TCP server that answers each message with
// itself, and measures how it bears it.
//
//	result, err := load.Run(ctx, load.Config{Target: "127.0.0.1:9000", Connections: 10_000})
//	if err != nil { ... }
//	result.WriteText(os.Stdout)
//
// It is a closed loop: each connection keeps Config.Pipeline messages in
// flight and sends the next one when an answer is there. Every byte of every
// answer is compared with what was sent, or with Config.Answer. An HTTP server's
// answer is learned in an exchange before the run; it is compared in the same
// way, but for the value of its Date (Config.HTTP).
//
// # Phases
//
//	connect ─▶ HoldBefore ─▶ traffic ─▶ HoldAfter ─▶ close
//	                         ├ Warmup ┼──── Duration ────┤ last answers
//	                         └ Messages on each connection ┘
//
// Traffic starts on all connections once none is being established any more.
// When the window ends nothing more is sent, and answers that are missing are
// waited for (Config.Drain). With Messages the window reaches from the first
// message to the last answer.
//
// # What counts
//
// A message counts as sent in the window if it was handed to its connection
// inside it, an answer as answered in the window if its last byte arrived
// inside it, and then its latency is recorded: the time since its message was
// handed to the connection, which can have been before the window. The clock
// is read once for all the input that is at hand on a connection.
//
// # Who owns what
//
// Run's goroutine owns the run: it goes from phase to phase, and it alone
// calls Config.Observe. It starts two helpers and waits for both: a dialer
// that paces the connecting, and a starter that nudges each connection when
// the traffic begins.
//
// The connections live in an engine of internal/engine. A link is the
// generator's part of a connection; it belongs to whoever owns the connection
// and is touched in the handler's calls only, so it needs no lock. Its message
// in flight and the bytes it waits for are positions in the one text that all
// links read from.
//
// What links add up goes into shards, a shard a loop, or a fixed number of
// them under a model without loops. A shard has a lock, held for a few dozen
// nanoseconds, which on a loop nobody else wants but Run's goroutine a hundred
// times a second.
package load

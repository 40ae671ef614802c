// Package agents loads servers from many machines at once: an Agent on each, which waits for
// work, and a coordinator (Run), which divides a load.Config among them and makes one
// load.Result of what they saw. They talk through NATS: a server inside the coordinator's
// process, or one of the user's.
//
// # A run
//
//	coordinator                                 agent
//	call     what is to be loaded          ─▶
//	                                       ◀─   here    what its doctor says it can carry
//	take     it is this run's from now on  ─▶           to those that were chosen
//	clock    what time is it there?        ⇄            round trips: offset and uncertainty
//	plan     its part of the configuration ⇄            looked at, and taken or refused
//	beat     start at this time            ─▶           connects
//	                                       ◀─   event   connected
//	beat     begin at this time            ─▶           the traffic begins; in a search, at this rate
//	                                       ◀─   event   each interval, each phase
//	                                       ◀─   event   published, or a rate tried, until it is answered
//	beat     what all have published,      ─▶           waits for that
//	         it is steady, the next rate   ─▶
//	                                       ◀─   event   done, with its result, until it is confirmed
//	beat     it is here; the run is over   ─▶           waits for the next call
//
// A beat says the whole state that the coordinator wants the agent in, and comes each
// second, so that one that is lost does no harm. So does an agent's. Take, clock and plan are requests
// that are repeated while there is no answer. Whoever is not heard of for Silence is gone: the coordinator goes on
// without an agent, whose part is then named as missing in the result, and an agent ends its run.
//
// # Trust
//
// Whoever knows the secret may have agents load what they allow; see Agent. The secret itself is
// never sent: each letter has a MAC (HMAC-SHA-256) with a key that is made of it, and in a run of
// both sides' random numbers as well, and a number that grows, so that nothing can be said again later.
// Nothing is encrypted, unless NATS is reached with TLS (Options.ListenTLS, NATS.TLS).
//
// # Who owns what
//
// An Agent has one goroutine that reads letters and owns what it knows of a run, and during
// a run a second one that calls load.Run; Serve waits for both. The second one shares the
// session's way of sending, which has a lock, and the channel that begins the traffic.
//
// A coordinator is one goroutine, which reads letters, and owns all it knows of the agents;
// while they are asked to take their parts there is one for each, which it waits for. It alone
// calls load.Config.Observe.
//
// Letters wait in channels of a fixed size; what does not fit is lost, and said again.
package agents

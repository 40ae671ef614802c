// Package agents loads servers from several machines. An Agent on each machine waits for work. A coordinator
// (RunOnAgents) divides a load.Config among the agents and merges their results into one load.Result. All of them
// connect to a NATS server, in the coordinator's process or elsewhere.
//
// # A run
//
//	coordinator                                      agent
//	call       the targets                      ─▶
//	                                            ◀─   info       capacity of its machine
//	clock      the first one reserves the agent ⇄               round trips: offset and uncertainty
//	plan       its part of the configuration    ⇄               accepts or refuses it
//	heartbeat  start at this time               ─▶              connects
//	                                            ◀─   event      connected
//	heartbeat  begin at this time               ─▶              sends; in a search, at this rate
//	                                            ◀─   event      each interval, each phase
//	                                            ◀─   event      published, or a rate tried, until answered
//	heartbeat  the totals published, steady,    ─▶
//	           the next rate
//	                                            ◀─   event      done, with its result, until confirmed
//	heartbeat  the run is over                  ─▶              waits for the next call
//
// A coordinator's heartbeat describes the complete state that the agent must assume, so each heartbeat makes up for
// lost earlier ones. Clock and plan are requests, which are repeated until there is a reply. A peer silent for longer
// than Silence is considered lost. If an agent is lost, the coordinator continues without it and names the missing part
// in the result. If the coordinator is lost, the agent ends its run.
//
// # Authentication
//
// NATS authenticates the agents and the coordinator: the coordinator's own server by a token, another server by users,
// tokens or nkeys. Any admitted client can make agents load the targets that they allow. Therefore agents and
// coordinator refuse a server beyond loopback that requires no credentials. TLS encrypts (Options.ListenTLS, NATS.TLS).
// Messages of authenticated peers are still parsed strictly and within limits.
//
// # Concurrency
//
// In an Agent, one goroutine reads messages and owns the agent's run, and a second one calls load.Run. Serve waits for
// both. A coordinator is one goroutine, and only this goroutine calls load.Config.Observe. Messages queue in channels
// of a fixed size; messages that do not fit are dropped.
package agents

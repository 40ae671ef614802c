// Package agents loads servers from several machines: an Agent on each machine waits for work, and
// a coordinator (Run) divides a load.Config among the agents and merges their results into one
// load.Result. All of them connect to a NATS server, in the coordinator's process or elsewhere.
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
// A coordinator's heartbeat contains the complete state that it wants the agent in, so each one
// replaces lost earlier ones. Clock and plan are requests, repeated until there is a reply. A peer
// silent for longer than Silence is considered lost: the coordinator continues without the agent
// and names the missing part in the result; an agent ends its run.
//
// # Authentication
//
// NATS authenticates agents and coordinator: with the token of the coordinator's server, or with
// the users, tokens or nkeys of another server. Any admitted client can make agents load the
// targets that they allow. So both refuse a server beyond loopback that requires no credentials.
// TLS encrypts (Options.ListenTLS, NATS.TLS). Messages of authenticated peers are still parsed
// strictly and within limits.
//
// # Concurrency
//
// One goroutine of an Agent reads messages and owns the agent's run; a second one calls load.Run.
// Serve waits for both. A coordinator is one goroutine, and only it calls load.Config.Observe;
// requests to several agents run concurrently, and it waits for them. Messages queue in channels of
// a fixed size; those that do not fit are dropped.
package agents

// Package admin is the operator's interface to a server: an HTTP handler with a page that
// follows it, its metrics, its health, its profiles and traces, and a flight recorder
// that keeps what happened when event loops lagged. With Config.Token an operator may
// also act: pause accepting, drain, close connections.
//
// Whoever reaches it can see the program's command line, its memory (in heap
// profiles as far as names go, in traces as far as stacks go), the addresses of its
// peers, and can make it work for a profile. It belongs on loopback, which is where
// Serve listens by default, or behind something that asks who is there. What
// another site's page has a browser ask for is refused, see Handler.
//
// With Server.Processes each worker process is one of its own: /metrics and the page of
// the supervisor tell the sum of all, and orders reach all, but profiles, traces and
// flights are those of the process that serves them.
package admin

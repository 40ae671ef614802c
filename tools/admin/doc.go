// Package admin provides the operator's interface to a server. It is an HTTP handler with a live page, metrics, health
// checks, profiles and traces. A flight recorder keeps the trace of the seconds before an event loop lagged. With
// Config.Token an operator can also pause accepting, drain the server and close connections.
//
// Anyone who can reach the handler can see the program's command line, parts of its memory (names in heap profiles,
// stacks in traces) and its peers' addresses. They can also make the program spend CPU time on profiles. The handler
// therefore belongs on loopback, where Serve listens by default, or behind authentication. The handler rejects requests
// that another site makes a browser send: see Handler.
//
// With Server.Processes, the supervisor's /metrics and page show the sums over all worker processes, and commands reach
// all of them. Profiles, traces and flight recordings cover only the process that serves the request.
package admin

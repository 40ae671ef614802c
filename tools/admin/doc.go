// Package admin provides the operator's interface to a server: an HTTP handler with a live page,
// metrics, health, profiles and traces, and a flight recorder that keeps what happened when event
// loops lagged. With Config.Token an operator can also pause accepting, drain, and close
// connections.
//
// Anyone who can reach it can see the program's command line, its memory (names in heap profiles,
// stacks in traces) and the addresses of its peers, and can make it work for a profile. It belongs
// on loopback, where Serve listens by default, or behind authentication. Requests that another
// site's page makes a browser send are rejected, see Handler.
//
// With Server.Processes, /metrics and the page of the supervisor show the sum of all worker
// processes, and commands reach all; profiles, traces and flights are those of the process that
// serves them.
package admin

package lab

import "time"

// Quick asks, in less than two minutes, what an I/O model is worth on this
// machine: throughput at few and many connections, a pipeline of lines, and
// the memory of idle connections, each beside plain package net.
func Quick() Scenario {
	const (
		warmUp   = 300 * time.Millisecond
		duration = 1500 * time.Millisecond
	)
	return Scenario{
		Name:     "quick",
		Question: "What is each I/O model worth beside plain package net, on this machine?",
		Subjects: []Subject{
			{Name: "net", Command: []string{"{self}", "plain", "--addr", "{addr}", "--app", "{app}"}},
			{Name: "goroutine", Command: serveCommand("goroutine")},
			{Name: "epoll", Command: serveCommand("epoll")},
		},
		Workloads: []Workload{
			{
				Name: "echo-100", Caption: "Echo of 64-byte messages on 100 connections, one in flight on each.",
				Kind: Throughput, App: Echo, Connections: 100, Size: 64, Pipeline: 1, WarmUp: warmUp, Duration: duration,
			},
			{
				Name: "echo-1000", Caption: "Echo of 64-byte messages on 1,000 connections, one in flight on each.",
				Kind: Throughput, App: Echo, Connections: 1000, Size: 64, Pipeline: 1, WarmUp: warmUp, Duration: duration,
			},
			{
				Name: "lines-1000", Caption: "Lines of 16 bytes on 1,000 connections, 16 in flight on each. " +
					"net is in the form that most people write: one Write for each line.",
				Kind: Throughput, App: Lines, Connections: 1000, Size: 16, Pipeline: 16, WarmUp: warmUp, Duration: duration,
			},
			{
				Name: "idle-10000", Caption: "10,000 connections that are silent, then exchange one 64-byte message each, then are silent.",
				Kind: Idle, App: Echo, Connections: 10000, Size: 64, Pipeline: 1, Hold: 2 * time.Second,
			},
		},
		Baseline: "net",
		Rounds:   3,
	}
}

// serveCommand is the command line of Myriad's own server on an I/O model, with
// further flags.
func serveCommand(model string, flags ...string) []string {
	return append([]string{"{self}", "serve", "--addr", "{addr}", "--app", "{app}", "--model", model}, flags...)
}

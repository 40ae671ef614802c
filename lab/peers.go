package lab

import (
	"strconv"
	"time"
)

// Peers asks how Myriad's I/O models, each given by its name, compare with what
// else there is in Go. The servers that are measured without any help are plain
// package net, with a buffer that holds the largest message here, and net/http;
// any other joins by its command line, as in Options.Subjects. The module peers
// of this repository has some to join.
func Peers(models []string) Scenario {
	plain := func(app string) []string {
		return []string{"{self}", "plain", "--addr", "{addr}", "--app", app, "--buffer", strconv.Itoa(large)}
	}
	s := Scenario{
		Name:     "peers",
		Question: "How does each I/O model compare with what else there is in Go?",
		Subjects: []Subject{
			{Name: "net", Command: plain("{app}")},
			{Name: "net-raw", Apps: []string{Lines}, Command: plain(Echo)},
		},
		Workloads: peersWorkloads(),
		Baseline:  "net",
		Rounds:    5,
	}
	for _, model := range models {
		s.Subjects = append(s.Subjects, Subject{Name: model, Command: serveCommand(model)})
	}
	return s
}

// large is the size of the large messages.
const large = 16 << 10

func peersWorkloads() []Workload {
	workloads := []Workload{
		{
			Name: "one", Caption: "Echo of 64-byte messages on one connection.",
			App: Echo, Connections: 1, Size: 64, Pipeline: 1,
		},
		{
			Name: "echo-100", Caption: "Echo of 64-byte messages on 100 connections, one in flight on each.",
			App: Echo, Connections: 100, Size: 64, Pipeline: 1,
		},
		{
			Name: "echo-1000", Caption: "Echo of 64-byte messages on 1,000 connections, one in flight on each.",
			App: Echo, Connections: 1000, Size: 64, Pipeline: 1,
		},
		{
			Name: "echo-10000", Caption: "Echo of 64-byte messages on 10,000 connections, one in flight on each.",
			App: Echo, Connections: 10000, Size: 64, Pipeline: 1,
		},
		{
			Name: "large-100", Caption: "Echo of 16-KiB messages on 100 connections, one in flight on each.",
			App: Echo, Connections: 100, Size: large, Pipeline: 1,
		},
		{
			Name: "lines-1000", Caption: "Lines of 16 bytes on 1,000 connections, 16 in flight on each. " +
				"net-raw does not look for lines: one Write for each Read.",
			App: Lines, Connections: 1000, Size: 16, Pipeline: 16,
		},
		{
			Name: "http-1", Caption: "HTTP/1.1 GET of a short text on 512 connections, one in flight on each. net is net/http.",
			App: HTTP, Connections: 512, Pipeline: 1,
		},
		{
			Name: "http-16", Caption: "HTTP/1.1 GET of a short text on 512 connections, 16 in flight on each. net is net/http.",
			App: HTTP, Connections: 512, Pipeline: 16,
		},
		{
			Name: "unpinned-10000", Caption: "Echo of 64-byte messages on 10,000 connections, one in flight on each. " +
				"Nothing is pinned: server and load share all CPUs.",
			App: Echo, Connections: 10000, Size: 64, Pipeline: 1, Unpinned: true,
		},
	}
	for i := range workloads {
		w := &workloads[i]
		w.Kind, w.WarmUp, w.Duration = Throughput, 500*time.Millisecond, 2*time.Second
	}
	return workloads
}

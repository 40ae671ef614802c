package lab

import (
	"slices"
	"time"
)

// Models asks which of the I/O models that are given by name suits which work:
// few and many connections, handlers that wait and handlers that compute. It
// also asks whether auto finds that out by itself.
//
// Nothing is pinned. With one CPU for the server, neither a second loop nor a
// second process nor a worker could ever win, and a handler that computes would
// cost the same under every model. So the load generator, which has one loop,
// shares the CPUs with the server. The published comparisons did so too.
func Models(available []string) Scenario {
	s := Scenario{
		Name:      "models",
		Question:  "Which I/O model suits which work, and does auto choose it?",
		Workloads: modelsWorkloads(),
		Baseline:  "goroutine",
		Auto:      "auto",
		Rounds:    3,
	}
	for _, setting := range modelsSettings {
		if setting.model == "auto" || slices.Contains(available, setting.model) {
			s.Subjects = append(s.Subjects, Subject{Name: setting.name, Command: serveCommand(setting.model, setting.flags...)})
		}
	}
	return s
}

// modelsSettings are the settings of Myriad's server that are compared.
var modelsSettings = []struct {
	name, model string
	flags       []string
}{
	{"goroutine", "goroutine", nil},
	{"epoll-1", "epoll", []string{"--loops", "1"}},
	{"epoll-2", "epoll", []string{"--loops", "2"}},
	{"prefork-2", "epoll", []string{"--processes", "2"}},
	{"epoll-workers", "epoll", []string{"--workers", "128"}},
	{"uring-1", "uring", []string{"--loops", "1"}},
	{"uring-workers", "uring", []string{"--workers", "128"}},
	{"auto", "auto", nil},
}

func modelsWorkloads() []Workload {
	workloads := []Workload{
		{
			Name: "few-10", Caption: "Few clients: echo of 64-byte messages on 10 connections, one in flight on each.",
			App: Echo, Connections: 10, Size: 64,
		},
		{
			Name: "many-1000", Caption: "Many clients: echo of 64-byte messages on 1,000 connections, one in flight on each.",
			App: Echo, Connections: 1000, Size: 64,
		},
		{
			Name: "many-10000", Caption: "Many clients: echo of 64-byte messages on 10,000 connections, one in flight on each.",
			App: Echo, Connections: 10000, Size: 64,
		},
		{
			Name: "wait-100", Caption: "A handler that waits 10 ms for each line of 64 bytes; 100 connections, one in flight on each. " +
				"A loop that waits itself answers 100 a second.",
			App: Wait, Connections: 100, Size: 64, Drain: 400 * time.Millisecond,
		},
		{
			Name: "wait-1000", Caption: "The same on 1,000 connections. A loop that waits itself needs 10 s for one round of them, " +
				"so that the window sees a part of it: little.",
			App: Wait, Connections: 1000, Size: 64, Drain: 4 * time.Second,
		},
		{
			Name: "compute-100", Caption: "A handler that computes 4,217 hashes for each line; 100 connections, one in flight on each.",
			App: Pow, Connections: 100,
		},
	}
	for i := range workloads {
		w := &workloads[i]
		w.Kind, w.Pipeline, w.Unpinned = Throughput, 1, true
		w.WarmUp, w.Duration = time.Second, 2*time.Second
	}
	return workloads
}

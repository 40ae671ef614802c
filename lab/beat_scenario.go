package lab

import (
	"slices"
	"strconv"
	"time"
)

// BeatConnections is how many connections the scenario of heartbeats has unless
// told otherwise.
const BeatConnections = 100_000

// maxOneTable is how many connections a server gets that has one table of
// descriptors, whose limit is 20,000 on many machines.
const maxOneTable = 15_000

// HeartbeatCosts asks what heartbeats cost on idle connections, for the models
// that are given by name.
//
// Clients are honest: each answers a heartbeat at once, with a line. Once a
// minute is what servers do, and costs so little that it is hard to tell from
// noise: so the same is asked with one every six seconds.
func HeartbeatCosts(available []string, connections int) Scenario {
	s := Scenario{
		Name:     "heartbeat",
		Question: "What do heartbeats cost on idle connections?",
		Baseline: "none",
		Rounds:   1,
		Workloads: []Workload{
			beatWorkload("minute", "One heartbeat a minute on each idle connection, answered with a line.", connections, time.Minute),
			beatWorkload("often", "The same every six seconds, ten times as often, to have a clearer signal.", connections, 6*time.Second),
		},
	}
	for _, setting := range []struct {
		name, model string
		beats       bool
	}{{"none", "epoll", false}, {"epoll", "epoll", true}, {"uring", "uring", true}, {"goroutine", "goroutine", true}} {
		if !slices.Contains(available, setting.model) {
			continue
		}
		s.Subjects = append(s.Subjects, beatSubject(setting.name, setting.model, setting.beats, connections))
	}
	s.Subjects = append(s.Subjects, Subject{
		Name: "net", MaxConns: maxOneTable,
		Command: []string{"{self}", "plain", "--addr", "{addr}", "--app", "{app}", "--heartbeat", "{heartbeat}"},
	})
	return s
}

// beatWorkload has a window in which each connection gets at least one heartbeat,
// also from a server that is an eighth late.
func beatWorkload(name, caption string, connections int, interval time.Duration) Workload {
	caption += " Servers that can't hold all connections have " + thousands(maxOneTable) +
		", and CPU time in proportion in the column behind. none sends no heartbeats."
	return Workload{
		Name: name, Caption: caption, Kind: Heartbeats, App: Sink, Connections: connections, Pipeline: 1,
		Interval: interval, WarmUp: 2 * time.Second, Duration: max(interval+interval*3/20, 20*time.Second),
	}
}

// beatSubject is Myriad's own server with room for the connections, and for the
// lab's own and those of the moment.
func beatSubject(name, model string, beats bool, connections int) Subject {
	const spare = 100
	s := Subject{Name: name}
	var flags []string
	if model == "goroutine" {
		s.MaxConns = maxOneTable
	} else {
		flags = append(flags, "--max-conns", strconv.Itoa(connections+spare))
	}
	if beats {
		flags = append(flags, "--heartbeat", "{heartbeat}", "--heartbeat-message", Heartbeat)
	}
	s.Command = serveCommand(model, flags...)
	return s
}

package lab

import (
	"slices"
	"strconv"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
)

const (
	// IdleConnections is up to how many connections the scenario of idle
	// connections goes unless told otherwise.
	IdleConnections = 100_000
	// IdleGoroutines is the same for its parked goroutines.
	IdleGoroutines = 1_000_000
)

// The sizes that are looked at. 23,000 is where the published table of connections
// ended; all of the goroutines' sizes are published ones.
var (
	idleSizes = []int{10_000, 23_000, 100_000, 1_000_000, 2_000_000}
	parkSizes = []int{10_000, 50_000, 100_000, 500_000, 1_000_000}
)

// IdleCosts asks what memory connections take that do nothing, for the models that
// are given by name: from 10,000 up to as many as asked for, and beside that what
// goroutines take that do nothing, up to as many.
//
// Models with loops have one server process of whatever size. goroutine has as many
// processes as descriptors ask for, and net, which has one, is left out where they
// don't suffice. A size that memory does not suffice for is left out too. Nothing is
// extrapolated.
func IdleCosts(models []string, connections, goroutines int) Scenario {
	s := Scenario{
		Name:     "idle",
		Question: "What memory does a connection take that does nothing?",
		Baseline: "net",
		Rounds:   1,
	}
	most, wall := oneTable()
	s.Subjects = []Subject{
		{Name: "goroutines", Parks: true, Command: []string{"{self}", "park", "-n", "{n}"}},
		{
			Name: "net", MaxConns: most, Wall: wall,
			Command: []string{"{self}", "plain", "--addr", "{addr}", "--app", "{app}", "--admin", "{admin}"},
		},
	}
	for _, model := range models {
		s.Subjects = append(s.Subjects, idleSubject(model, most))
	}
	for _, n := range sizesTo(parkSizes, goroutines) {
		s.Workloads = append(s.Workloads, Workload{Name: "parked-" + strconv.Itoa(n), Kind: Parking, Connections: n})
	}
	for _, n := range sizesTo(idleSizes, connections) {
		s.Workloads = append(s.Workloads, idleWorkload(n))
	}
	return s
}

// oneTable is how many connections a server with one table of descriptors gets, and
// what stops it there; 0 if there is no limit to read. The lab raises the soft limit
// to the hard one.
func oneTable() (most int, wall string) {
	_, hard, ok := sock.DescriptorLimit()
	if !ok || hard > 1<<30 {
		return 0, ""
	}
	return max(int(hard)-sock.Reserve-room, 1),
		"one process has one table of descriptors, and RLIMIT_NOFILE, hard, is " + strconv.FormatUint(hard, 10)
}

// idleSubject is Myriad's own server. A model without loops has several processes
// where one has too few descriptors: the kernel spreads connections over them by
// chance, so each is to have three quarters of what it can hold. No time limit ends
// a connection.
func idleSubject(model string, most int) Subject {
	s := Subject{Name: model}
	flags := []string{"--admin", "{admin}", "--first-byte-timeout", "never", "--write-timeout", "never"}
	if model == "goroutine" {
		if most > 0 {
			s.PerProcess = max(most*3/4, 1)
			flags = append(flags, "--processes", "{processes}")
		}
	} else {
		flags = append(flags, "--max-conns", "{room}")
	}
	s.Command = serveCommand(model, flags...)
	return s
}

// sizesTo are the sizes up to one, and that one.
func sizesTo(sizes []int, to int) []int {
	sizes = slices.DeleteFunc(slices.Clone(sizes), func(n int) bool { return n >= to })
	return append(sizes, to)
}

// idleWorkload holds connections for as long as it takes to sample them.
func idleWorkload(n int) Workload {
	return Workload{
		Name: "idle-" + strconv.Itoa(n), Kind: Idle, Full: true, App: Echo, Connections: n, Size: 64, Pipeline: 1,
		Caption: thousands(float64(n)) + " connections that are silent, then exchange one 64-byte message each, then are silent.",
		Hold:    2*time.Second + time.Duration(n)*10*time.Microsecond,
	}
}

// published are figures of "Tuning a Go TCP server toward 1M idle connections on a
// laptop", in MiB, and bytes for each connection.
type published struct {
	stack, sys, rss, each float64
}

const publishedOn = `published: "Tuning a Go TCP server toward 1M idle connections on a laptop", another machine: ` +
	"12 logical CPUs, 16 GiB, Go 1.16"

// What is published of parked goroutines and of connections, by their number.
var (
	publishedParked = map[int]published{
		10_000:    {stack: 20.2, sys: 71.3},
		50_000:    {stack: 98.4, sys: 138.2},
		100_000:   {stack: 196.1, sys: 272.0},
		500_000:   {stack: 977.4, sys: 1336.2},
		1_000_000: {stack: 1954.0, sys: 2601.5},
	}
	publishedIdle = map[int]published{
		10_000: {rss: 38.8, sys: 73.5, each: 3.9 * 1024},
		23_000: {rss: 83.0, sys: 144.4, each: 3.7 * 1024},
	}
)

// published1M is what is published of a million connections.
const published1M = "3.8 GiB of RSS, extrapolated from 23,000"

// isMillion says whether a workload's connections are a million.
func (w Workload) isMillion() bool { return w.Full && w.Connections == 1_000_000 }

// full are the Full workloads.
func (s *Scenario) full() []Workload {
	return slices.DeleteFunc(slices.Clone(s.Workloads), func(w Workload) bool { return !w.Full })
}

package lab

import (
	"math"
	"strconv"

	"github.com/myriad-go/myriad/internal/sock"
)

// millionName is the scenario's name.
const millionName = "million"

// millionSubject is a server that holds the connections.
type millionSubject struct {
	name, model string
	prefork     bool
}

var millionSubjects = []millionSubject{
	{name: "epoll", model: "epoll"},
	{name: "uring", model: "uring"},
	{name: "prefork", model: "epoll", prefork: true},
}

// MillionSubjects are the names of the servers that Million can run.
func MillionSubjects() (names []string) {
	for _, s := range millionSubjects {
		names = append(names, s.name)
	}
	return names
}

// spare is how many connections more a server is allowed than it is to hold, for the
// lab's own: enough, too, that no listener of many is full before the others are.
const spare = 1000

// processes is how many worker processes it takes to hold so many connections with
// one descriptor table each, two at least, and 0 for one that serves itself. Which
// process gets a connection is chance, so each has room for more than its part, by six
// standard deviations and the twentieth part.
func (s *millionSubject) processes(connections int) (processes, allowed int) {
	if !s.prefork {
		return 0, connections + spare
	}
	room := sock.MaxConns()
	processes = 2
	for processes < maxWorkerProcesses && share(connections, processes) > room {
		processes++
	}
	return processes, processes * share(connections, processes)
}

// maxWorkerProcesses is the most that a Server starts.
const maxWorkerProcesses = 1024

// share is how many connections one of so many processes may have to hold.
func share(connections, processes int) int {
	mean := float64(connections) / float64(processes)
	return int(mean*1.05+6*math.Sqrt(mean)) + spare/10
}

// command is the server's command line.
func (s *millionSubject) command(o *MillionOptions, self, addr, admin string) []string {
	processes, allowed := s.processes(o.Connections)
	command := []string{
		self, "serve", "--app", "push", "--model", s.model, "--addr", addr, "--admin", admin,
		"--max-conns", strconv.Itoa(allowed), "--first-byte-timeout", "never",
		"--heartbeat", o.Heartbeat.String(), "--heartbeat-message", Heartbeat,
	}
	if o.Loops > 0 {
		command = append(command, "--loops", strconv.Itoa(o.Loops))
	}
	if processes > 0 {
		command = append(command, "--processes", strconv.Itoa(processes))
	}
	return command
}

// news is the line that is broadcast.
const news = "news for all of you"

// millionLoad is the generator's command line.
func (o *MillionOptions) millionLoad(self, addr string) []string {
	command := []string{
		self, "hold", "--json", "--connections", strconv.Itoa(o.Connections), "--interval", o.every().String(),
		"--check", "--check-inflight", strconv.Itoa(o.InFlight),
		"--heartbeat", Heartbeat, "--heartbeat-answer", HeartbeatAnswer, "--broadcast", news + "\n",
		"--duration", o.held().String(), "--hold-after", o.after().String(),
	}
	if o.LoadLoops > 0 {
		command = append(command, "--loops", strconv.Itoa(o.LoadLoops))
	}
	return append(command, addr)
}

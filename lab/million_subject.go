package lab

import (
	"math"
	"strconv"

	"github.com/myriad-go/myriad/internal/sock"
)

// spare is how many connections more a server is allowed than it is to hold, for the
// lab's own: enough, too, that no listener of many is full before the others are.
const spare = 1000

// spread is how many worker processes a server of kind Holding has: 0 for one that serves
// itself, and for one with PerProcess as many as it takes to hold the connections with one
// descriptor table each, two at least. Which process gets a connection is chance, so each
// has room for more than its part, by six standard deviations and the twentieth part. All
// together are allowed so many.
func (s Subject) spread(connections int) (processes, allowed int) {
	if s.PerProcess == 0 {
		return 0, connections + spare
	}
	room := min(sock.MaxConns(), s.PerProcess)
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

// place is where the server is to be, and what else its command says.
func (m *millionRunner) place() (place, error) {
	at, err := m.placeOf(step{workload: m.workload, subject: m.subject})
	at.processes, at.room = m.subject.spread(m.workload.Connections)
	return at, err
}

// news is the line that is broadcast.
const news = "news for all of you"

// millionLoad is the generator's command line.
func (w Workload) millionLoad(self, addr string) []string {
	m := w.million()
	command := []string{
		self, "hold", "--json", "--connections", strconv.Itoa(w.Connections), "--interval", w.every().String(),
		"--check=" + strconv.Itoa(m.InFlight),
		"--heartbeat", Heartbeat, "--heartbeat-answer", HeartbeatAnswer, "--broadcast", news + "\n",
		"--duration", w.held().String(), "--hold-after", w.after().String(),
	}
	if m.LoadLoops > 0 {
		command = append(command, "--loops", strconv.Itoa(m.LoadLoops))
	}
	return append(command, addr)
}

package lab

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/myriad-go/myriad/doctor"
)

const (
	// leastKept is how much memory a run leaves at least, in bytes.
	leastKept = 256 << 20
	// firstGuess is what a connection is taken to need before any was measured,
	// both ends and the buffer of a server that has one; parkedGuess is the same
	// for a goroutine. Both are above everything that was seen, in bytes.
	firstGuess  = 20 << 10
	parkedGuess = 4 << 10
	// growth is what is planned beside for the load generator and for what grows
	// faster than connections do.
	growth = 1.10
	// negligible is how much memory may be asked for whatever is free, in bytes.
	negligible = 64 << 20
)

// readFacts reads what package doctor knows of this machine, nil where it can't be read:
// then a run that doesn't fit fails.
func readFacts() *doctor.Facts {
	facts, err := doctor.Read(0)
	if err != nil {
		return nil
	}
	return facts
}

// wall says why a run can't be made, "" if it can: that the subject holds fewer
// connections, that the machine does, or that memory would run out. Nothing has been
// started. It looks at the runs before it.
func (r *runner) wall(s step, before []RunRecord) string {
	w := s.workload
	if most := s.subject.MaxConns; w.Full && most > 0 && w.Connections > most {
		return fmt.Sprintf("%s connections are more than the %s that it can hold: %s",
			thousands(float64(w.Connections)), thousands(float64(most)), s.subject.Wall)
	}
	s.workload = w.heldBy(s.subject.MaxConns)
	asked := r.facts != nil && asksForMemory(s)
	if wall := machineWall(r.facts, s, asked); wall != "" || asked {
		return wall
	}
	return r.memoryWall(s, before)
}

// memoryWalls are walls of package doctor.
var memoryWalls = []string{"memory", "cgroup-memory"}

// asksForMemory says whether package doctor is asked for memory too: for Myriad's own
// servers, whose connections it knows. It isn't where the lab knows better what a
// connection takes, from the runs that it has made, and looks while they are opened.
func asksForMemory(s step) bool {
	return s.subject.model() != "" && !s.workload.Full && s.workload.Kind != Holding
}

// machineWall says which wall of the machine stops a run, "" for none. Both ends of its
// connections are here: the load generator with as many source addresses and descriptor
// tables as it takes by itself, and the server: of one that is not Myriad's own the fewest
// walls are assumed.
func machineWall(facts *doctor.Facts, s step, memory bool) string {
	n := s.workload.Connections
	if facts == nil || n < 1 || s.workload.Kind == Parking {
		return ""
	}
	plan := doctor.Plan{Connections: n, Side: doctor.Both, Model: cmp.Or(s.subject.model(), leastModel), Processes: min(s.subject.processes(s.workload), maxWorkerProcesses)}
	report, err := doctor.Examine(facts, plan)
	if err != nil {
		return "" // more than it can be asked for
	}
	i := slices.IndexFunc(report.Walls, func(w doctor.Wall) bool {
		return !w.Soft && w.Near(n) && (memory || !slices.Contains(memoryWalls, w.Name))
	})
	if i < 0 {
		return ""
	}
	wall := &report.Walls[i]
	text := fmt.Sprintf("%s: %s stops %s connections at %s", wall.Name, wall.What, thousands(float64(n)), thousands(float64(wall.Holds)))
	if wall.Present != "" {
		text += "; it is " + wall.Present
	}
	if wall.Needs != "" {
		text += ", needs " + wall.Needs
	}
	return text + fmt.Sprintf("; `myriad doctor -n %d` says how to move it", n)
}

// leastModel is the I/O model that has the fewest walls.
const leastModel = "epoll"

// model is the I/O model of a server of Myriad's own, "" for any other.
func (s Subject) model() string {
	if len(s.Command) < 2 || s.Command[0] != "{self}" || s.Command[1] != "serve" {
		return ""
	}
	if i := slices.Index(s.Command, "--model"); i >= 0 && i+1 < len(s.Command) && slices.Contains(modelNames(), s.Command[i+1]) {
		return s.Command[i+1]
	}
	return autoModel
}

// memoryWall says how memory would run out, "" if there is enough. A Holding workload
// opens no more connections before it does, and goes on with those that there are.
func (r *runner) memoryWall(s step, before []RunRecord) string {
	if s.workload.Kind == Holding {
		return ""
	}
	room, err := r.room()
	if err != nil {
		return "" // nobody knows
	}
	n := float64(s.workload.Connections)
	each, from := needs(s, before)
	need, keep := int64(each*n), room.kept(leastKept)
	if need <= negligible || need <= room.free-keep {
		return ""
	}
	return fmt.Sprintf("memory: %s of %s bytes each, by %s, need %s; %s are free%s, of which %s are kept",
		thousands(n), thousands(each), from, gibibytes(need), gibibytes(room.free), room.in(), gibibytes(keep))
}

// needs is how many bytes of the machine's memory a run takes for each connection,
// as far as the largest run of its subject before it tells, and what tells.
func needs(s step, before []RunRecord) (each float64, from string) {
	each, from = firstGuess, "a cautious guess"
	if s.workload.Kind == Parking {
		return parkedGuess, from
	}
	most := 0
	for i := range before {
		r := &before[i]
		if r.Subject != s.subject.Name || r.Idle == nil || r.Idle.Full == nil || r.Result.Connected < most {
			continue
		}
		if took := r.Idle.Full.takes(); took > 0 {
			most, each = r.Result.Connected, took*growth
			from = fmt.Sprintf("the run with %s", thousands(float64(most)))
		}
	}
	return each, from
}

func gibibytes(n int64) string { return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30)) }

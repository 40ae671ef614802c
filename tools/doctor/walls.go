package doctor

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
)

// declaration is a wall as its file declares it: what is always so, and examine, which
// fills in the rest. It reports false where the wall has no meaning for the plan, or what
// it needs to know is missing.
type declaration struct {
	Wall
	examine func(*exam, *Wall) bool
}

// walls are all that are examined, and settings those of the kernel that they read, by
// name.
var (
	walls    []declaration
	settings = make(map[string]setting)
)

// setting is what is known of a setting of the kernel that a wall reads.
type setting struct {
	name string
	// amount: it is how much of something there can be, so that more allows for all
	// that less does.
	amount bool
	// own: each network namespace has its own, which can be written there. Which ones
	// do is as Linux 6.18 has it; older ones have fewer.
	own bool
	// machineWide: it is shown in the first network namespace only, and holds for all.
	machineWide bool
	// safe: Kubernetes lets a pod set it by default, see
	// kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster.
	safe bool
	// least is a value that no plan finds too high: what the kernel begins with where
	// that is the same on each machine, and a small one where it depends on the
	// machine's memory. It is empty for a setting that no wall changes.
	least string
}

// wall declares a wall, and the settings of the kernel that it reads and no other wall
// has declared. It returns nothing of use, so that a variable of the package can call it.
func wall(w Wall, examine func(*exam, *Wall) bool, reads ...setting) struct{} {
	walls = append(walls, declaration{w, examine})
	for _, s := range reads {
		settings[s.name] = s
	}
	return struct{}{}
}

// settingWall declares a wall whose limit is a setting of one number. Without that there
// is no such wall.
func settingWall(w Wall, limit setting, examine func(x *exam, w *Wall, limit int64) bool, reads ...setting) struct{} {
	return wall(w, func(x *exam, w *Wall) bool {
		n, ok := x.number(limit.name)
		return ok && examine(x, w, n)
	}, append(reads, limit)...)
}

// exam is one examination: the facts, the plan with its defaults filled in, and
// the sides that are on this machine. It is read only.
type exam struct {
	f    *Facts
	p    Plan
	n    int64 // connections of the plan
	ends []end
}

// end is one side of the connections.
type end struct {
	side      Side
	model     string // not auto
	explicit  bool   // no other would do: auto takes another one, but not in worker processes
	loops     bool   // whether that has event loops
	wanted    int    // how many of them there are where descriptors don't ask for more
	processes int
}

func newExam(f *Facts, p Plan) *exam {
	x := &exam{f: f, p: p.filled(), n: int64(p.Connections)}
	x.ends = x.sides()
	return x
}

// sides are those that are on this machine. The generator has one process, and
// with both sides here the best model whatever the server has.
func (x *exam) sides() []end {
	explicit := x.p.Model != auto
	server := end{side: Server, model: resolve(x.p.Model, x.f), explicit: explicit || x.p.Processes > 1, processes: max(x.p.Processes, 1), wanted: 1}
	if x.p.Processes <= 1 {
		server.wanted = max(1, x.f.Machine.CPUs/2)
	}
	client := end{side: Client, model: resolve(auto, x.f), processes: 1, wanted: 1}
	if x.p.Side == Client {
		client.model, client.explicit = server.model, explicit
	}
	server.loops, client.loops = server.model != goroutine, client.model != goroutine
	switch x.p.Side {
	case Server:
		return []end{server}
	case Client:
		return []end{client}
	}
	return []end{server, client}
}

// resolve says which model auto is on a machine.
func resolve(model string, f *Facts) string {
	switch {
	case model != auto:
		return model
	case f.Uring != "":
		return epoll
	}
	return uring
}

// side reports whether a side is on this machine.
func (x *exam) side(s Side) bool { return x.p.Side == s || x.p.Side == Both }

// processes is how many processes there are, both sides together.
func (x *exam) processes() int64 {
	n := int64(0)
	for _, e := range x.ends {
		n += int64(e.processes)
		if e.processes > 1 {
			n++ // their supervisor
		}
	}
	return n
}

// share is how many of the connections one process of a side is to have room for.
// The kernel spreads them over worker processes by chance: so each has room for four
// standard deviations more than an even share.
func (e *end) share(connections int64) int64 { return evenShare(connections, int64(e.processes)) }

func evenShare(connections, processes int64) int64 {
	even := ceilDiv(connections, processes)
	if processes > 1 {
		even += int64(4 * math.Sqrt(float64(even)))
	}
	return even
}

// near reports whether a wall is met before the plan is reached.
func (x *exam) exceeded(w *Wall) bool { return w.Exceeded(x.p.Connections) }

// least takes a side's number if it is less than what the wall has from the other,
// and makes the wall one of both if it is the same.
func (x *exam) least(w *Wall, side Side, holds int64) {
	switch {
	case w.Side == "" || holds < w.Holds:
		w.Side, w.Holds = side, holds
	case holds == w.Holds:
		w.Side = Both
	}
}

// use fills in how much of a limit is in use.
func (w *Wall) use(used, limit int64) {
	w.Used, w.Limit = used, limit
	w.Present = fmt.Sprintf("%s, %s used", format.Count(limit), format.Count(used))
}

// raise has a wall that is near need so much of a setting.
func (x *exam) raise(w *Wall, name string, need int64) {
	if x.exceeded(w) {
		w.Needs = format.Count(need)
		w.Changes = append(w.Changes, x.sysctl(name, strconv.FormatInt(withHeadroom(need), 10)))
	}
}

// sysctl is the change of a setting.
func (x *exam) sysctl(name, to string) Change {
	return Change{Kind: Sysctl, Name: name, From: x.f.Sysctls[name], To: to}
}

// number reads a setting that is one number.
func (x *exam) number(name string) (int64, bool) {
	n, ok := x.numbers(name, 1)
	if !ok {
		return 0, false
	}
	return n[0], true
}

// numbers reads a setting of so many numbers, none below zero; false if it is not
// there or something else.
func (x *exam) numbers(name string, count int) ([]int64, bool) {
	fields := strings.Fields(x.f.Sysctls[name])
	if len(fields) != count {
		return nil, false
	}
	list := make([]int64, count)
	for i, field := range fields {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return nil, false
		}
		list[i] = int64(min(n, math.MaxInt64))
	}
	return list, true
}

// limited writes a limit, of which -1 is none.
func limited(n int64) string {
	if n < 0 || n == Unlimited {
		return "none"
	}
	return format.Count(n)
}

package doctor

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
)

// wallRule is a wall as its file declares it: what is always so, and examine, which
// fills in the rest. It reports false where the wall has no meaning for the plan, or what
// it needs to know is missing.
type wallRule struct {
	Wall
	examine func(*analysis, *Wall) bool
}

// walls are all that are examined, and settings those of the kernel that they read, by
// name.
var (
	wallRules   []wallRule
	sysctlInfos = make(map[string]sysctlInfo)
)

// sysctlInfo is what is known of a setting of the kernel that a wall reads.
type sysctlInfo struct {
	name string
	// isAmount: it is how much of something there can be, so that more allows for all
	// that less does.
	isAmount bool
	// perNamespace: each network namespace has its own, which can be written there. Which ones
	// do is as Linux 6.18 has it; older ones have fewer.
	perNamespace bool
	// machineWide: it is shown in the first network namespace only, and holds for all.
	machineWide bool
	// kubernetesSafe: Kubernetes lets a pod set it by default, see
	// kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster.
	kubernetesSafe bool
	// defaultValue is a value that no plan finds too high: what the kernel begins with where
	// that is the same on each machine, and a small one where it depends on the
	// machine's memory. It is empty for a setting that no wall changes.
	defaultValue string
}

// registerWall declares a wall, and the settings of the kernel that it reads and no other wall
// has declared. It returns nothing of use, so that a variable of the package can call it.
func registerWall(w Wall, examine func(*analysis, *Wall) bool, reads ...sysctlInfo) struct{} {
	wallRules = append(wallRules, wallRule{w, examine})
	for _, s := range reads {
		sysctlInfos[s.name] = s
	}
	return struct{}{}
}

// registerSysctlWall declares a wall whose limit is a setting of one number. Without that there
// is no such wall.
func registerSysctlWall(w Wall, limit sysctlInfo, examine func(x *analysis, w *Wall, limit int64) bool, reads ...sysctlInfo) struct{} {
	return registerWall(w, func(x *analysis, w *Wall) bool {
		n, ok := x.sysctlNumber(limit.name)
		return ok && examine(x, w, n)
	}, append(reads, limit)...)
}

// analysis is one examination: the facts, the plan with its defaults filled in, and
// the sides that are on this machine. It is read only.
type analysis struct {
	f         *Facts
	p         Plan
	n         int64 // connections of the plan
	endpoints []endpoint
}

// endpoint is one side of the connections.
type endpoint struct {
	side      Side
	model     string // not auto
	explicit  bool   // no other would do: auto takes another one, but not in worker processes
	hasLoops  bool   // whether that has event loops
	minLoops  int    // how many of them there are where descriptors don't ask for more
	processes int
}

func newAnalysis(f *Facts, p Plan) *analysis {
	x := &analysis{f: f, p: p.withDefaults(), n: int64(p.Connections)}
	x.endpoints = x.localEndpoints()
	return x
}

// localEndpoints are those that are on this machine. The generator has one process, and
// with both sides here the best model whatever the server has.
func (x *analysis) localEndpoints() []endpoint {
	explicit := x.p.Model != auto
	server := endpoint{side: Server, model: resolveModel(x.p.Model, x.f), explicit: explicit || x.p.Processes > 1, processes: max(x.p.Processes, 1), minLoops: 1}
	if x.p.Processes <= 1 {
		server.minLoops = max(1, x.f.Machine.CPUs/2)
	}
	client := endpoint{side: Client, model: resolveModel(auto, x.f), processes: 1, minLoops: 1}
	if x.p.Side == Client {
		client.model, client.explicit = server.model, explicit
	}
	server.hasLoops, client.hasLoops = server.model != goroutine, client.model != goroutine
	switch x.p.Side {
	case Server:
		return []endpoint{server}
	case Client:
		return []endpoint{client}
	}
	return []endpoint{server, client}
}

// resolveModel says which model auto is on a machine.
func resolveModel(model string, f *Facts) string {
	switch {
	case model != auto:
		return model
	case f.Uring != "":
		return epoll
	}
	return uring
}

// hasSide reports whether a side is on this machine.
func (x *analysis) hasSide(s Side) bool { return x.p.Side == s || x.p.Side == Both }

// countProcesses is how many processes there are, both sides together.
func (x *analysis) countProcesses() int64 {
	n := int64(0)
	for _, e := range x.endpoints {
		n += int64(e.processes)
		if e.processes > 1 {
			n++ // their supervisor
		}
	}
	return n
}

// connsPerProcess is how many of the connections one process of a side is to have room for.
// The kernel spreads them over worker processes by chance: so each has room for four
// standard deviations more than an even share.
func (e *endpoint) connsPerProcess(connections int64) int64 {
	return evenShare(connections, int64(e.processes))
}

func evenShare(connections, processes int64) int64 {
	even := ceilDiv(connections, processes)
	if processes > 1 {
		even += int64(4 * math.Sqrt(float64(even)))
	}
	return even
}

// near reports whether a wall is met before the plan is reached.
func (x *analysis) isExceeded(w *Wall) bool { return w.Exceeded(x.p.Connections) }

// lowerHolds takes a side's number if it is less than what the wall has from the other,
// and makes the wall one of both if it is the same.
func (x *analysis) lowerHolds(w *Wall, side Side, holds int64) {
	switch {
	case w.Side == "" || holds < w.Holds:
		w.Side, w.Holds = side, holds
	case holds == w.Holds:
		w.Side = Both
	}
}

// setUsage fills in how much of a limit is in use.
func (w *Wall) setUsage(used, limit int64) {
	w.Used, w.Limit = used, limit
	w.Present = fmt.Sprintf("%s, %s used", format.Count(limit), format.Count(used))
}

// requireSysctl has a wall that is near need so much of a setting.
func (x *analysis) requireSysctl(w *Wall, name string, need int64) {
	if x.isExceeded(w) {
		w.Needs = format.Count(need)
		w.Changes = append(w.Changes, x.sysctlChange(name, strconv.FormatInt(addHeadroom(need), 10)))
	}
}

// sysctlChange is the change of a setting.
func (x *analysis) sysctlChange(name, to string) Change {
	return Change{Kind: Sysctl, Name: name, From: x.f.Sysctls[name], To: to}
}

// sysctlNumber reads a setting that is one number.
func (x *analysis) sysctlNumber(name string) (int64, bool) {
	n, ok := x.sysctlNumbers(name, 1)
	if !ok {
		return 0, false
	}
	return n[0], true
}

// sysctlNumbers reads a setting of so many numbers, none below zero; false if it is not
// there or something else.
func (x *analysis) sysctlNumbers(name string, count int) ([]int64, bool) {
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

// formatLimit writes a limit, of which -1 is none.
func formatLimit(n int64) string {
	if n < 0 || n == Unlimited {
		return "none"
	}
	return format.Count(n)
}

package doctor

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
)

// wallRule is a wall as its file registers it: its constant fields and a function that fills in the
// rest. examine returns false if the wall has no meaning for the plan, or its input is unknown.
type wallRule struct {
	Wall
	examine func(*analysis, *Wall) bool
}

// wallRules are all registered walls, and sysctlInfos the kernel settings that they read, by name.
var (
	wallRules   []wallRule
	sysctlInfos = make(map[string]sysctlInfo)
)

// sysctlInfo describes a kernel setting that a wall reads.
type sysctlInfo struct {
	name string
	// isAmount means that it is a maximum, so that a higher value permits everything that a lower
	// one does.
	isAmount bool
	// perNamespace means that each network namespace has its own, writable there: as of Linux 6.18;
	// older kernels have fewer.
	perNamespace bool
	// machineWide means that it is visible in the first network namespace only and applies to all.
	machineWide bool
	// kubernetesSafe means that Kubernetes lets a pod set it by default, see
	// kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster.
	kubernetesSafe bool
	// defaultValue is a value that no plan finds too high: the kernel's default if it is the same
	// on each machine, or a small one if it depends on the machine's memory. It is empty for a
	// setting that no wall changes.
	defaultValue string
}

// registerWall registers a wall and the kernel settings that it sysctlsRead, unless another wall has
// registered them. The result lets a package variable call it.
func registerWall(w Wall, examine func(*analysis, *Wall) bool, sysctlsRead ...sysctlInfo) struct{} {
	wallRules = append(wallRules, wallRule{w, examine})
	for _, s := range sysctlsRead {
		sysctlInfos[s.name] = s
	}
	return struct{}{}
}

// registerSysctlWall registers a wall whose limitSysctl is a setting with one number. Without the setting
// there is no such wall.
func registerSysctlWall(w Wall, limitSysctl sysctlInfo, examine func(x *analysis, w *Wall, limitSysctl int64) bool, otherSysctlsRead ...sysctlInfo) struct{} {
	return registerWall(w, func(x *analysis, w *Wall) bool {
		n, ok := x.sysctlNumber(limitSysctl.name)
		return ok && examine(x, w, n)
	}, append(otherSysctlsRead, limitSysctl)...)
}

// analysis is the input of one Examine: the facts, the plan with defaults, and the local endpoints.
// It is read-only.
type analysis struct {
	f         *Facts
	p         Plan
	n         int64 // connections of the plan
	endpoints []localEndpoint
}

// localEndpoint is one side of the connections.
type localEndpoint struct {
	side      Side
	model     string // not auto
	explicit  bool   // the model can't be replaced: chosen explicitly, or auto in worker processes
	hasLoops  bool   // the model has event loops
	minLoops  int    // number of loops unless descriptors require more
	processes int
}

func newAnalysis(f *Facts, p Plan) *analysis {
	x := &analysis{f: f, p: p.withDefaults(), n: int64(p.Connections)}
	x.endpoints = x.localEndpoints()
	return x
}

// localEndpoints returns the sides on this machine. The generator has one process and, with both
// sides here, the best model whatever the server's.
func (x *analysis) localEndpoints() []localEndpoint {
	explicit := x.p.Model != auto
	server := localEndpoint{side: Server, model: resolveModel(x.p.Model, x.f), explicit: explicit || x.p.Processes > 1, processes: max(x.p.Processes, 1), minLoops: 1}
	if x.p.Processes <= 1 {
		server.minLoops = max(1, x.f.Machine.CPUs/2)
	}
	client := localEndpoint{side: Client, model: resolveModel(auto, x.f), processes: 1, minLoops: 1}
	if x.p.Side == Client {
		client.model, client.explicit = server.model, explicit
	}
	server.hasLoops, client.hasLoops = server.model != goroutine, client.model != goroutine
	switch x.p.Side {
	case Server:
		return []localEndpoint{server}
	case Client:
		return []localEndpoint{client}
	}
	return []localEndpoint{server, client}
}

// resolveModel replaces auto with the model it selects on a machine.
func resolveModel(model string, f *Facts) string {
	switch {
	case model != auto:
		return model
	case f.Uring != "":
		return epoll
	}
	return uring
}

// isSideLocal reports whether a side is on this machine.
func (x *analysis) isSideLocal(s Side) bool { return x.p.Side == s || x.p.Side == Both }

// countProcessesOfPlan returns the number of processes, both sides together.
func (x *analysis) countProcessesOfPlan() int64 {
	n := int64(0)
	for _, e := range x.endpoints {
		n += int64(e.processes)
		if e.processes > 1 {
			n++ // their supervisor
		}
	}
	return n
}

// maxConnsUnderDescriptorLimit returns how many connections one process must be able to hold. The kernel
// distributes them randomly over worker processes, so each can hold four standard deviations more
// than an even share.
func (e *localEndpoint) connsPerProcessWithMargin(connections int64) int64 {
	return shareWithRandomMargin(connections, int64(e.processes))
}

func shareWithRandomMargin(connections, processes int64) int64 {
	even := ceilDiv(connections, processes)
	if processes > 1 {
		even += int64(4 * math.Sqrt(float64(even)))
	}
	return even
}

// isExceededByPlan reports whether the plan exceeds a wall.
func (x *analysis) isExceededByPlan(w *Wall) bool { return w.Exceeded(x.p.Connections) }

// lowerWallHolds lowers the wall's number to a side's if that is less, and makes it a wall of both
// sides if equal.
func (x *analysis) lowerWallHolds(w *Wall, side Side, holds int64) {
	switch {
	case w.Side == "" || holds < w.Holds:
		w.Side, w.Holds = side, holds
	case holds == w.Holds:
		w.Side = Both
	}
}

// setUsedAndLimit sets how much of a limit is in use.
func (w *Wall) setUsedAndLimit(used, limit int64) {
	w.Used, w.Limit = used, limit
	w.Present = fmt.Sprintf("%s, %s used", format.Count(limit), format.Count(used))
}

// requireSysctlIfExceeded adds the change that raises a setting to what the plan needs if the wall is
// exceeded.
func (x *analysis) requireSysctlIfExceeded(w *Wall, name string, need int64) {
	if x.isExceededByPlan(w) {
		w.Needs = format.Count(need)
		w.Changes = append(w.Changes, x.sysctlChange(name, strconv.FormatInt(addEighthAndRoundUp(need), 10)))
	}
}

func (x *analysis) sysctlChange(name, to string) Change {
	return Change{Kind: Sysctl, Name: name, From: x.f.Sysctls[name], To: to}
}

// sysctlNumber returns a setting with one number.
func (x *analysis) sysctlNumber(name string) (int64, bool) {
	n, ok := x.nonNegativeSysctlNumbers(name, 1)
	if !ok {
		return 0, false
	}
	return n[0], true
}

// nonNegativeSysctlNumbers returns a setting with count non-negative numbers, false if it is missing or
// different.
func (x *analysis) nonNegativeSysctlNumbers(name string, count int) ([]int64, bool) {
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

// formatLimit formats a limit, "none" for -1.
func formatLimit(n int64) string {
	if n < 0 || n == Unlimited {
		return "none"
	}
	return format.Count(n)
}

package doctor

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
)

// wallRule is a limit with the function that checks it. The function examine returns false if the limit does not apply
// to the machine or the plan.
type wallRule struct {
	Wall
	examine func(*analysis, *Wall) bool
}

// wallRules contains the registered limits. sysctlInfos contains the kernel settings that these limits depend on. The
// keys of sysctlInfos are names of settings.
var (
	wallRules   []wallRule
	sysctlInfos = make(map[string]sysctlInfo)
)

type sysctlInfo struct {
	name string
	// isAmount reports that a higher value permits everything that a lower value permits.
	isAmount bool
	// perNamespace reports that each network namespace has its own writable value (Linux 6.18).
	perNamespace bool
	// machineWide reports that the setting applies to all network namespaces but is visible only in the first one.
	machineWide bool
	// kubernetesSafe reports that Kubernetes lets a pod set the value by default; see
	// kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster.
	kubernetesSafe bool
	// defaultValue is the kernel's default, or a value small enough for any machine. It is empty for settings that
	// Examine never changes.
	defaultValue string
}

// registerWall registers a limit and the kernel settings that the limit depends on. The returned value is meaningless.
// It permits a call of registerWall in a var declaration.
func registerWall(w Wall, examine func(*analysis, *Wall) bool, sysctlsRead ...sysctlInfo) struct{} {
	wallRules = append(wallRules, wallRule{w, examine})
	for _, s := range sysctlsRead {
		sysctlInfos[s.name] = s
	}
	return struct{}{}
}

// registerSysctlWall registers a limit that is a kernel setting with one number. The limit does not apply if the number
// is unknown.
func registerSysctlWall(w Wall, limitSysctl sysctlInfo, examine func(x *analysis, w *Wall, limitSysctl int64) bool, otherSysctlsRead ...sysctlInfo) struct{} {
	return registerWall(w, func(x *analysis, w *Wall) bool {
		n, ok := x.sysctlNumber(limitSysctl.name)
		return ok && examine(x, w, n)
	}, append(otherSysctlsRead, limitSysctl)...)
}

// analysis is the read-only input of one call of Examine.
type analysis struct {
	f         *Facts
	p         Plan
	n         int64 // connections of the plan
	endpoints []localEndpoint
}

// localEndpoint describes the server or the client of a plan, if it runs on this machine.
type localEndpoint struct {
	side      Side
	model     string // never "auto"
	explicit  bool   // the model is fixed: chosen explicitly, or auto in worker processes
	hasLoops  bool   // the model has event loops
	minLoops  int    // number of loops, unless descriptors require more
	processes int
}

func newAnalysis(f *Facts, p Plan) *analysis {
	x := &analysis{f: f, p: p.withDefaults(), n: int64(p.Connections)}
	x.endpoints = x.localEndpoints()
	return x
}

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

// resolveModel replaces "auto" by the I/O model that Myriad would choose on this machine.
func resolveModel(model string, f *Facts) string {
	switch {
	case model != auto:
		return model
	case f.Uring != "":
		return epoll
	}
	return uring
}

func (x *analysis) isSideLocal(s Side) bool { return x.p.Side == s || x.p.Side == Both }

func (x *analysis) countProcessesOfPlan() int64 {
	n := int64(0)
	for _, e := range x.endpoints {
		n += int64(e.processes)
		if e.processes > 1 {
			n++ // the supervisor of the worker processes
		}
	}
	return n
}

func (e *localEndpoint) connsPerProcessWithMargin(connections int64) int64 {
	return shareWithImbalanceMargin(connections, int64(e.processes))
}

func shareWithImbalanceMargin(connections, processes int64) int64 {
	even := ceilDiv(connections, processes)
	if processes > 1 {
		// The kernel distributes connections randomly. The margin is four standard deviations.
		even += int64(4 * math.Sqrt(float64(even)))
	}
	return even
}

func (x *analysis) isExceededByPlan(w *Wall) bool { return w.Exceeded(x.p.Connections) }

// keepLowerAllowedConns sets w.Holds to the number of connections that the limit allows on one side, and w.Side to that
// side. If w already has a number for the other side, the lower number and its side remain. If both numbers are equal,
// w.Side becomes Both.
func (x *analysis) keepLowerAllowedConns(w *Wall, side Side, allowed int64) {
	switch {
	case w.Side == "" || allowed < w.Holds:
		w.Side, w.Holds = side, allowed
	case allowed == w.Holds:
		w.Side = Both
	}
}

func (w *Wall) setUsedAndLimit(used, limit int64) {
	w.Used, w.Limit = used, limit
	w.Present = fmt.Sprintf("%s, %s used", format.Count(limit), format.Count(used))
}

// requireSysctlIfExceeded checks whether the plan exceeds the limit w. If so, it adds to w the change of a kernel
// setting. lowestEnough is the lowest value that suffices. The change sets a value that is an eighth higher, to leave a
// reserve.
func (x *analysis) requireSysctlIfExceeded(w *Wall, sysctl string, lowestEnough int64) {
	if x.isExceededByPlan(w) {
		w.Needs = format.Count(lowestEnough)
		w.Changes = append(w.Changes, x.sysctlChange(sysctl, strconv.FormatInt(addEighthAndRoundUp(lowestEnough), 10)))
	}
}

func (x *analysis) sysctlChange(name, to string) Change {
	return Change{Kind: Sysctl, Name: name, From: x.f.Sysctls[name], To: to}
}

func (x *analysis) sysctlNumber(name string) (int64, bool) {
	n, ok := x.nonNegativeSysctlNumbers(name, 1)
	if !ok {
		return 0, false
	}
	return n[0], true
}

// nonNegativeSysctlNumbers returns the numbers in the value of a kernel setting. It returns false if the value does not
// consist of exactly count non-negative numbers.
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

func formatLimitOrNone(n int64) string {
	if n < 0 || n == Unlimited {
		return "none"
	}
	return format.Count(n)
}

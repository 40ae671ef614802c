package lab

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/internal/procfs"
)

// Pinning says which CPUs the server and the load generator run on.
type Pinning struct {
	// Server and Load are the CPU numbers of each, nil when nothing is
	// pinned.
	Server []int `json:"server,omitempty"`
	Load   []int `json:"load,omitempty"`
	// Why says why nothing is pinned, "" when it is.
	Why string `json:"why,omitempty"`

	// all are the CPUs to run on when nothing is pinned, nil for those that
	// this process runs on.
	all []int
}

// of is the pinning of a workload.
func (p Pinning) of(w Workload) Pinning {
	if !w.Unpinned || !p.Pinned() {
		return p
	}
	return Pinning{Why: "not asked for", all: slices.Concat(p.Server, p.Load)}
}

// serverCPUs and loadCPUs are where to start each. They are named even when
// nothing is pinned: a process would begin on the CPUs of the one before it.
func (p Pinning) serverCPUs() []int {
	if p.Pinned() {
		return p.Server
	}
	return p.all
}

func (p Pinning) loadCPUs() []int {
	if p.Pinned() {
		return p.Load
	}
	return p.all
}

// choosePinning splits the CPUs that this process may use into two halves.
func choosePinning() Pinning {
	cpus, err := allowedCPUs()
	if err != nil {
		return Pinning{Why: "pinning is " + err.Error()}
	}
	return splitCPUs(cpus, func(cpu int) int {
		core, err := procfs.Core(cpu)
		if err != nil {
			return cpu // unknown: a core of its own
		}
		return core
	})
}

// splitCPUs gives the server one half of the CPUs and the load the other, an
// odd one to the load. CPUs that share a core stay on one side, so that
// neither side slows the other down, unless there is only one core.
func splitCPUs(cpus []int, core func(cpu int) int) Pinning {
	if len(cpus) < 2 {
		return Pinning{Why: "there is only one CPU"}
	}
	cpus = slices.Clone(cpus)
	slices.SortFunc(cpus, func(a, b int) int {
		return cmp.Or(cmp.Compare(core(a), core(b)), cmp.Compare(a, b))
	})
	cut := len(cpus) / 2
	for edge := cut; edge > 0; edge-- {
		if core(cpus[edge-1]) != core(cpus[edge]) {
			cut = edge
			break
		}
	}
	return Pinning{Server: cpus[:cut:cut], Load: cpus[cut:]}
}

// Pinned reports whether server and load have CPUs of their own.
func (p Pinning) Pinned() bool { return len(p.Server) > 0 }

// String says it in words.
func (p Pinning) String() string {
	if !p.Pinned() {
		return "none: " + p.Why
	}
	return fmt.Sprintf("server on %s, load on %s", cpuList(p.Server), cpuList(p.Load))
}

func cpuList(cpus []int) string {
	words := make([]string, len(cpus))
	for i, cpu := range cpus {
		words[i] = strconv.Itoa(cpu)
	}
	name := "CPU "
	if len(cpus) > 1 {
		name = "CPUs "
	}
	return name + strings.Join(words, ",")
}

// width is how many CPUs a side has: all of them when it is not pinned.
func width(side []int) int {
	if len(side) == 0 {
		return runtime.NumCPU()
	}
	return len(side)
}

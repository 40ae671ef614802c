package run

import (
	"cmp"
	"slices"

	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/procfs"
)

// choosePinning splits the CPUs that this process may use between server and load.
func choosePinning() result.Pinning {
	cpus, err := readAllowedCPUs()
	if err != nil {
		return result.Pinning{Why: "pinning is " + err.Error()}
	}
	return splitCPUs(cpus, func(cpu int) int {
		core, err := procfs.FindCore(cpu)
		if err != nil {
			return cpu // unknown: assume a separate core
		}
		return core
	})
}

// pinningFor returns the pinning of a workload.
func (r *runner) pinningFor(w scenario.Workload) result.Pinning {
	if w.Unpinned && r.pinning.Pinned() {
		return result.Pinning{Why: "not asked for"}
	}
	return r.pinning
}

// splitCPUs gives the server one half of the CPUs and the load the other, including an odd one.
// CPUs that share a core stay on one side, so that neither side slows the other down, unless there
// is only one core.
func splitCPUs(cpus []int, coreOf func(cpu int) int) result.Pinning {
	if len(cpus) < 2 {
		return result.Pinning{Why: "there is only one CPU"}
	}
	cpus = slices.Clone(cpus)
	slices.SortFunc(cpus, func(a, b int) int {
		return cmp.Or(cmp.Compare(coreOf(a), coreOf(b)), cmp.Compare(a, b))
	})
	cut := len(cpus) / 2
	for edge := cut; edge > 0; edge-- {
		if coreOf(cpus[edge-1]) != coreOf(cpus[edge]) {
			cut = edge
			break
		}
	}
	return result.Pinning{Server: cpus[:cut:cut], Load: cpus[cut:]}
}

package run

import (
	"cmp"
	"slices"

	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/procfs"
)

// splitAllowedCPUs divides the CPUs that this process may use into a part for the server and a part for the load
// generator. If they cannot be divided, the field Why of the result states the reason.
func splitAllowedCPUs() result.Pinning {
	cpus, err := readAllowedCPUs()
	if err != nil {
		return result.Pinning{Why: "pinning is " + err.Error()}
	}
	return splitCPUsPreferringWholeCores(cpus, func(cpu int) int {
		core, err := procfs.PhysicalCoreID(cpu)
		if err != nil {
			return cpu // unknown: assume a separate core
		}
		return core
	})
}

func (r *runner) pinningForWorkload(w scenario.Workload) result.Pinning {
	if w.Unpinned && r.pinning.Pinned() {
		return result.Pinning{Why: "not asked for"}
	}
	return r.pinning
}

func splitCPUsPreferringWholeCores(cpus []int, coreOf func(cpu int) int) result.Pinning {
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

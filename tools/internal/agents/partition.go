package agents

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
)

// maxCPUs limits the number of processors that an agent can claim to have.
const maxCPUs = 1 << 16

// divideConnsByCPUsWithinLimits divides connections among agents in proportion to their processors. No agent gets more
// connections than its limits allow. If several agents run on one machine, each counts for an equal share of the
// machine's processors and of the number of connections that the machine can hold. If the agents cannot hold all
// connections, divideConnsByCPUsWithinLimits returns an error that lists the limits.
func divideConnsByCPUsWithinLimits(totalConns int, members []agentInfo) (connsByAgent []float64, _ error) {
	agentsOnMachine := make(map[string]int)
	for _, h := range members {
		agentsOnMachine[h.Machine]++
	}
	speed, limits, all := make([]float64, len(members)), make([]float64, len(members)), 0.0
	sum := 0.0
	for i, h := range members {
		beside := float64(agentsOnMachine[h.Machine])
		speed[i], limits[i] = float64(min(max(h.CPUs, 1), maxCPUs))/beside, math.Inf(1)
		if h.Holds > 0 {
			limits[i] = math.Floor(float64(h.Holds) / beside)
		}
		if h.Most > 0 {
			limits[i] = min(limits[i], float64(h.Most))
		}
		all, sum = all+limits[i], sum+speed[i]
	}
	if all < float64(totalConns) {
		return nil, errConnsExceedLimits(totalConns, members, limits)
	}
	// Begin with the agents that reach their limits first. The other agents share the rest.
	order, parts, left := make([]int, len(members)), make([]float64, len(members)), float64(totalConns)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(limits[i]/speed[i], limits[j]/speed[j]) })
	for _, i := range order {
		parts[i] = min(left*speed[i]/sum, limits[i])
		left, sum = left-parts[i], sum-speed[i]
	}
	return parts, nil
}

func errConnsExceedLimits(total int, members []agentInfo, limitByAgent []float64) error {
	all, text := 0.0, ""
	for i, h := range members {
		wall := h.Wall
		if h.Most > 0 && limitByAgent[i] == float64(h.Most) {
			wall = "--max-connections"
		}
		all += limitByAgent[i]
		text += fmt.Sprintf(", %s %s (%s)", h.Name, format.Count(int64(limitByAgent[i])), wall)
	}
	return errors.New("the agents can open only " + format.Count(int64(all)) + " of " + format.Count(total) + " connections: " + strings.TrimPrefix(text, ", ") +
		"; raise these limits as shown by `myriad doctor --side client` on the machines of the agents, or start more agents")
}

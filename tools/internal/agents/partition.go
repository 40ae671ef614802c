package agents

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
)

// partition divides connections among agents in proportion to their processors, up to what each can carry. Agents on
// one machine share its resources.
func partition(total int, members []agentInfo) ([]float64, error) {
	on := make(map[string]int)
	for _, h := range members {
		on[h.Machine]++
	}
	speed, most, all := make([]float64, len(members)), make([]float64, len(members)), 0.0
	for i, h := range members {
		beside := float64(on[h.Machine])
		speed[i], most[i] = float64(max(h.CPUs, 1))/beside, math.Inf(1)
		if h.Holds > 0 {
			most[i] = math.Floor(float64(h.Holds) / beside)
		}
		if h.Most > 0 {
			most[i] = min(most[i], float64(h.Most))
		}
		all += most[i]
	}
	if all < float64(total) {
		return nil, tooMany(total, members, most)
	}
	parts, full, left := make([]float64, len(members)), make([]bool, len(members)), float64(total)
	for again := true; again; {
		again = false
		sum := 0.0
		for i := range members {
			if !full[i] {
				sum += speed[i]
			}
		}
		each := left / sum
		for i := range members {
			if full[i] {
				continue
			}
			if parts[i] = each * speed[i]; parts[i] > most[i] {
				parts[i], full[i], again = most[i], true, true
				left -= most[i]
			}
		}
	}
	return parts, nil
}

// tooMany says who carries how many.
func tooMany(total int, members []agentInfo, most []float64) error {
	all, text := 0.0, ""
	for i, h := range members {
		wall := h.Wall
		if h.Most > 0 && most[i] == float64(h.Most) {
			wall = "--max-connections"
		}
		all += most[i]
		text += fmt.Sprintf(", %s %s (%s)", h.Name, format.Count(int64(most[i])), wall)
	}
	return errors.New("the agents carry " + format.Count(int64(all)) + " of " + format.Count(total) + " connections: " + strings.TrimPrefix(text, ", ") +
		"; `myriad doctor --side client` on their machines says how to move these walls, or start more agents")
}

// Package doctor predicts which limit of the operating system, a wall, stops a number of TCP
// connections on this machine, and how to move it.
//
// Read reads the machine into Facts. Examine predicts from Facts and a Plan at how many connections
// each Wall stops the plan; it is a pure function. The tests of tools/doctor/walls verify its
// predictions with real connections in network namespaces with lowered walls. Apply makes the
// changes that are possible on a running machine, Print writes files that make them permanent.
//
// All functions are safe for concurrent use.
package doctor

import (
	"cmp"
	"errors"
	"slices"
)

// The I/O models, by the names that package tcp gives them.
const (
	auto      = "auto"
	goroutine = "goroutine"
	epoll     = "epoll"
	uring     = "uring"
)

// Examine predicts from facts at how many connections each wall stops a plan. It modifies neither
// and reads nothing else. It returns an error that names the invalid field if the plan is invalid.
func Examine(f *Facts, p Plan) (*Report, error) {
	if f == nil {
		return nil, errors.New("doctor: no facts; expected those of a machine, as Read gives them")
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	x := newAnalysis(f, p)
	r := &Report{Plan: x.p, Holds: Unlimited, Facts: f}
	for _, declared := range wallRules {
		w := declared.Wall
		w.Holds = Unlimited
		if !declared.examine(x, &w) {
			continue
		}
		w.Side = cmp.Or(w.Side, x.p.Side)
		if w.Holds > maxConnections { // no plan has so many
			w.Holds = Unlimited
		}
		r.Walls = append(r.Walls, w)
	}
	slices.SortStableFunc(r.Walls, compareByHolds)
	if i := slices.IndexFunc(r.Walls, func(w Wall) bool { return !w.Soft }); i >= 0 && r.Walls[i].Holds < Unlimited {
		r.Holds, r.First = r.Walls[i].Holds, r.Walls[i].Name
	}
	return r, nil
}

// compareByHolds orders walls by the number of connections, hard before soft ones, then by name.
func compareByHolds(a, b Wall) int {
	soft := func(w Wall) int {
		if w.Soft {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(a.Holds, b.Holds), soft(a)-soft(b), cmp.Compare(a.Name, b.Name))
}

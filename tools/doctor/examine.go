// Package doctor predicts which limit of the operating system, a wall, stops a number of
// TCP connections on this machine, and how to move it.
//
// Read reads the machine into Facts, plain data. Examine predicts from Facts and a Plan,
// which says what is to be held, at how many connections each Wall stops it: a pure
// function of facts of any machine. Its predictions are held against real connections,
// in network namespaces with each wall set low, by the tests of tools/doctor/walls. Apply
// changes what can be changed on a running machine, Print writes what makes that last.
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

// Examine predicts from facts at how many connections each wall stops a plan. It
// changes neither and reads nothing else. It fails if the plan makes no sense, and
// names the field that doesn't.
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
	slices.SortStableFunc(r.Walls, compareWalls)
	if i := slices.IndexFunc(r.Walls, func(w Wall) bool { return !w.Soft }); i >= 0 && r.Walls[i].Holds < Unlimited {
		r.Holds, r.First = r.Walls[i].Holds, r.Walls[i].Name
	}
	return r, nil
}

// compareWalls orders walls: the one that is met first, a hard one before a soft one,
// then by name.
func compareWalls(a, b Wall) int {
	soft := func(w Wall) int {
		if w.Soft {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(a.Holds, b.Holds), soft(a)-soft(b), cmp.Compare(a.Name, b.Name))
}

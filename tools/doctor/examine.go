// Package doctor predicts which operating system limit (a "wall") stops a number of TCP connections on this machine,
// and how to raise the limit.
//
// Read reads the machine into Facts. From Facts and a Plan, Examine predicts the number of connections at which each
// Wall stops the plan. Apply makes the changes that are possible on a running machine. WriteSettings writes files that
// make them permanent. The tests in tools/doctor/walls verify the predictions with real connections.
//
// All functions are safe for concurrent use.
package doctor

import (
	"cmp"
	"errors"
	"slices"
)

// Names of the I/O models, as in package tcp.
const (
	auto      = "auto"
	goroutine = "goroutine"
	epoll     = "epoll"
	uring     = "uring"
)

// Examine predicts how many connections each limit of the machine allows. A limit stops or slows down every plan with
// more connections. Examine uses only its arguments and reads nothing from the machine. If the plan is invalid, the
// error names the invalid field.
func Examine(f *Facts, p Plan) (*Report, error) {
	if f == nil {
		return nil, errors.New("doctor: facts are nil; expected the result of Read")
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
		if w.Holds > maxConnections { // no plan has this many
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

// compareByHolds orders limits by the number of connections that they allow. If two limits allow the same number, a
// limit that is Soft comes after one that is not.
func compareByHolds(a, b Wall) int {
	soft := func(w Wall) int {
		if w.Soft {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(a.Holds, b.Holds), soft(a)-soft(b), cmp.Compare(a.Name, b.Name))
}

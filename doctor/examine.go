// Package doctor predicts which limit of the operating system, a wall, stops a number of
// TCP connections on this machine, and how to move it.
//
// Read reads the machine into Facts, plain data. Examine predicts from Facts and a Plan,
// which says what is to be held, at how many connections each Wall stops it: a pure
// function of facts of any machine. Its predictions are held against real connections,
// in network namespaces with each wall set low, by the tests of doctor/walls. Apply
// changes what can be changed on a running machine, Print writes what makes that last.
//
// All functions are safe for concurrent use.
package doctor

import (
	"cmp"
	"errors"
	"math"
	"slices"
)

// The I/O models, by the names that package myriad gives them.
const (
	auto      = "auto"
	goroutine = "goroutine"
	epoll     = "epoll"
	uring     = "uring"
)

// exam is one examination: the facts, the plan with its defaults filled in, and
// the sides that are on this machine. It is read only.
type exam struct {
	f    *Facts
	p    Plan
	ends []end
}

// end is one side of the connections.
type end struct {
	side      Side
	model     string // not auto
	explicit  bool   // no other would do: auto takes another one, but not in worker processes
	loops     bool   // whether that has event loops
	wanted    int    // how many of them there are where descriptors don't ask for more
	processes int
}

// walls are all that are looked at, and settings those of the kernel that they read,
// by name. Each file of walls registers its own: see wall.
var (
	walls    []func(*exam) *Wall
	settings = make(map[string]setting)
)

// wall registers a wall, and the settings of the kernel that it reads and no other wall
// has registered. examine gives nil where the wall has no meaning for the plan, or what it
// needs to know is missing. It is called when the program starts: the result is nothing,
// for a declaration beside the wall.
func wall(examine func(*exam) *Wall, reads ...setting) struct{} {
	walls = append(walls, examine)
	for _, s := range reads {
		settings[s.name] = s
	}
	return struct{}{}
}

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
	x := newExam(f, p)
	r := &Report{Plan: x.p, Holds: Unlimited, Facts: f}
	for _, examine := range walls {
		w := examine(x)
		if w == nil {
			continue
		}
		if w.Side == "" {
			w.Side = x.p.Side
		}
		if w.Holds > maxConnections { // no plan has so many
			w.Holds = Unlimited
		}
		r.Walls = append(r.Walls, *w)
	}
	slices.SortStableFunc(r.Walls, nearer)
	if i := slices.IndexFunc(r.Walls, func(w Wall) bool { return !w.Soft }); i >= 0 && r.Walls[i].Holds < Unlimited {
		r.Holds, r.First = r.Walls[i].Holds, r.Walls[i].Name
	}
	return r, nil
}

func newExam(f *Facts, p Plan) *exam {
	x := &exam{f: f, p: p.filled()}
	x.ends = x.sides()
	return x
}

// nearer orders walls: the one that is met first, a hard one before a soft one,
// then by name.
func nearer(a, b Wall) int {
	soft := func(w Wall) int {
		if w.Soft {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(a.Holds, b.Holds), soft(a)-soft(b), cmp.Compare(a.Name, b.Name))
}

// sides are those that are on this machine. The generator has one process, and
// with both sides here the best model whatever the server has.
func (x *exam) sides() []end {
	best := x.resolve(auto)
	explicit := x.p.Model != auto
	server := end{side: Server, model: x.resolve(x.p.Model), explicit: explicit || x.p.Processes > 1, processes: max(x.p.Processes, 1), wanted: 1}
	if x.p.Processes <= 1 {
		server.wanted = max(1, x.f.Machine.CPUs/2)
	}
	client := end{side: Client, model: best, processes: 1, wanted: 1}
	if x.p.Side == Client {
		client.model, client.explicit = x.resolve(x.p.Model), explicit
	}
	server.loops, client.loops = server.model != goroutine, client.model != goroutine
	switch x.p.Side {
	case Server:
		return []end{server}
	case Client:
		return []end{client}
	}
	return []end{server, client}
}

// resolve says which model auto is here.
func (x *exam) resolve(model string) string { return resolve(model, x.f) }

func resolve(model string, f *Facts) string {
	switch {
	case model != auto:
		return model
	case f.Uring != "":
		return epoll
	}
	return uring
}

// side reports whether a side is on this machine.
func (x *exam) side(s Side) bool { return x.p.Side == s || x.p.Side == Both }

// processes is how many processes there are, both sides together.
func (x *exam) processes() int64 {
	n := int64(0)
	for _, e := range x.ends {
		n += int64(e.processes)
		if e.processes > 1 {
			n++ // their supervisor
		}
	}
	return n
}

// share is how many of the connections one process of a side is to have room for.
// The kernel spreads them over worker processes by chance: so each has room for four
// standard deviations more than an even share.
func (e *end) share(connections int64) int64 { return evenShare(connections, int64(e.processes)) }

func evenShare(connections, processes int64) int64 {
	even := ceilDiv(connections, processes)
	if processes > 1 {
		even += int64(4 * math.Sqrt(float64(even)))
	}
	return even
}

// near reports whether a wall is met before the plan is reached.
func (x *exam) near(w *Wall) bool { return w.Near(x.p.Connections) }

// least takes a side's number if it is less than what the wall has from the other,
// and makes the wall one of both if it is the same.
func (x *exam) least(w *Wall, side Side, holds int64) {
	switch {
	case w.Side == "" || holds < w.Holds:
		w.Side, w.Holds = side, holds
	case holds == w.Holds:
		w.Side = Both
	}
}

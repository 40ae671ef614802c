package doctor

import (
	"math"
	"slices"
)

// Unlimited is Wall.Holds of what does not stop a plan.
const Unlimited int64 = math.MaxInt64

// Report is what Examine predicts. It is plain data.
type Report struct {
	Plan Plan `json:"plan"`
	// Holds is how many connections the machine can hold as it is, and First
	// the name of the wall that stops it there: the first of Walls.
	Holds int64  `json:"holds"`
	First string `json:"first"`
	// Walls are all that were looked at, the nearest first.
	Walls []Wall `json:"walls"`
	// Facts is what it was predicted from.
	Facts *Facts `json:"facts"`
}

// Wall is a limit of the machine.
type Wall struct {
	// Name is short and does not change: "nofile", "ports", "somaxconn", …
	Name string `json:"name"`
	// Side is whose it is.
	Side Side `json:"side"`
	// What says what is limited, Present its present value.
	What    string `json:"what"`
	Present string `json:"present"`
	// Holds is the number of connections at which it stops the plan, or
	// hurts it if it is Soft; Unlimited if it never does.
	Holds int64 `json:"holds"`
	// Soft says that it makes things slow or lossy instead of stopping them:
	// such a wall is no Report.First.
	Soft bool `json:"soft,omitempty"`
	// Effect is what is seen there: the error and who gets it.
	Effect string `json:"effect"`
	// Needs is the value it needs for the plan, "" if it is enough.
	Needs string `json:"needs,omitempty"`
	// Changes move it, in this order. Where there are none although Needs is
	// set, Advice says what else to do.
	Changes []Change `json:"changes,omitempty"`
	Advice  string   `json:"advice,omitempty"`
	// Source is where this is documented.
	Source string `json:"source"`
}

// Near says that the plan does not fit.
func (w *Wall) Near(connections int) bool { return w.Holds < int64(connections) }

// Kind is what a Change changes.
type Kind string

// The kinds of a Change.
const (
	Sysctl  Kind = "sysctl"  // a setting of the kernel: Name is its name
	Nofile  Kind = "nofile"  // RLIMIT_NOFILE of who starts the server
	Memlock Kind = "memlock" // RLIMIT_MEMLOCK, in bytes
	Link    Kind = "link"    // an interface that is to be up: Name is its name
	Address Kind = "address" // an address that an interface is to have: Name is the interface, To the address with its network's bits
	Cgroup  Kind = "cgroup"  // a file of a control group: Name is its path
)

// Change is a setting that moves a wall.
type Change struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	From string `json:"from"`
	To   string `json:"to"`
}

// Changes are those of all walls that the plan needs moved, the nearest wall's
// first, one for each setting: where two walls ask for different values of the same
// one, it gets what suits both.
func (r *Report) Changes() []Change {
	var all []Change
	for i := range r.Walls {
		w := &r.Walls[i]
		if !w.Near(r.Plan.Connections) {
			continue
		}
		for _, c := range w.Changes {
			same := func(d Change) bool {
				return d.Kind == c.Kind && d.Name == c.Name && (c.Kind != Address || d.To == c.To)
			}
			if at := slices.IndexFunc(all, same); at >= 0 {
				all[at].To = c.widest(all[at].To, c.To)
			} else {
				all = append(all, c)
			}
		}
	}
	// A limit of descriptors can't be above this one, so this comes first.
	slices.SortStableFunc(all, func(a, b Change) int { return before(a) - before(b) })
	return all
}

// before is 0 for a change that others wait for, otherwise 1.
func before(c Change) int {
	if c.Name == "fs.nr_open" || c.Name == reservedName {
		return 0
	}
	return 1
}

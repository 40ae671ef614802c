package doctor

import (
	"encoding/json"
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
	// Walls are all that were examined, the nearest first.
	Walls []Wall `json:"walls"`
	// Facts is what it was predicted from.
	Facts *Facts `json:"facts"`
}

// Wall is a limit of the machine.
type Wall struct {
	// Name is short and does not change: "nofile", "ports", "somaxconn", …
	Name string `json:"name"`
	// Side is the end of the connections that has it.
	Side Side `json:"side"`
	// What says what is limited, Present its present value.
	What    string `json:"what"`
	Present string `json:"present"`
	// Holds is the number of connections at which it stops the plan, or
	// hurts it if it is Soft; Unlimited if it never does.
	Holds int64 `json:"holds"`
	// Soft means that it makes things slow or lossy instead of stopping them:
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

	// Used of Limit, in Unit ("descriptors", "bytes", ...), are in use now, Of what
	// where there are several of the kind. Limit is 0 where that is not known.
	Used  int64  `json:"used,omitempty"`
	Limit int64  `json:"limit,omitempty"`
	Unit  string `json:"unit,omitempty"`
	Of    string `json:"of,omitempty"`
	// Beyond means that Holds counts connections beyond those that are open now, which
	// are in what is used already.
	Beyond bool `json:"beyond,omitempty"`
}

// Exceeded says whether a plan with so many connections does not fit.
func (w *Wall) Exceeded(connections int) bool { return w.Holds < int64(connections) }

// Changes are those of all walls that the plan needs moved, the nearest wall's
// first, one for each setting: where two walls ask for different values of the same
// one, it gets what suits both.
func (r *Report) Changes() []Change {
	var all []Change
	for i := range r.Walls {
		w := &r.Walls[i]
		if !w.Exceeded(r.Plan.Connections) {
			continue
		}
		for _, c := range w.Changes {
			same := func(d Change) bool {
				return d.Kind == c.Kind && d.Name == c.Name && (c.Kind != Address || d.To == c.To)
			}
			if at := slices.IndexFunc(all, same); at >= 0 {
				all[at].To = c.mergeValues(all[at].To, c.To)
			} else {
				all = append(all, c)
			}
		}
	}
	// A limit of descriptors can't be above this one, so this comes first.
	slices.SortStableFunc(all, func(a, b Change) int { return changeOrder(a) - changeOrder(b) })
	return all
}

// changeOrder is 0 for a change that others wait for, otherwise 1.
func changeOrder(c Change) int {
	if c.Name == "fs.nr_open" || c.Name == reservedName {
		return 0
	}
	return 1
}

// MarshalJSON writes the report as an object, with null for Holds that is Unlimited.
func (r Report) MarshalJSON() ([]byte, error) {
	type fields Report
	return json.Marshal(struct {
		fields
		Holds *int64 `json:"holds"`
	}{fields(r), holdsOrNil(r.Holds)})
}

// UnmarshalJSON reads what MarshalJSON has written.
func (r *Report) UnmarshalJSON(b []byte) error {
	type fields Report
	read := fields{Holds: Unlimited} // which null leaves as it is
	err := json.Unmarshal(b, &read)
	*r = Report(read)
	return err
}

// MarshalJSON writes the wall as an object, with null for Holds that is Unlimited.
func (w Wall) MarshalJSON() ([]byte, error) {
	type fields Wall
	return json.Marshal(struct {
		fields
		Holds *int64 `json:"holds"`
	}{fields(w), holdsOrNil(w.Holds)})
}

// UnmarshalJSON reads what MarshalJSON has written.
func (w *Wall) UnmarshalJSON(b []byte) error {
	type fields Wall
	read := fields{Holds: Unlimited}
	err := json.Unmarshal(b, &read)
	*w = Wall(read)
	return err
}

func holdsOrNil(holds int64) *int64 {
	if holds == Unlimited {
		return nil
	}
	return &holds
}

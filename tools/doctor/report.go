package doctor

import (
	"encoding/json"
	"math"
	"slices"
)

// Unlimited is the Wall.Holds of a wall that never stops the plan.
const Unlimited int64 = math.MaxInt64

// Report is the prediction of Examine.
type Report struct {
	Plan Plan `json:"plan"`
	// Holds is how many connections the machine can hold now, and First the name of the wall that
	// stops it there: the first of Walls.
	Holds int64  `json:"holds"`
	First string `json:"first"`
	// Walls are all examined walls, the nearest first.
	Walls []Wall `json:"walls"`
	Facts *Facts `json:"facts"`
}

// Wall is a limit of the machine.
type Wall struct {
	// Name is short and stable: "nofile", "ports", "somaxconn", …
	Name string `json:"name"`
	// Side is the end of the connections to which it belongs.
	Side Side `json:"side"`
	// What describes the limit, Present its present value.
	What    string `json:"what"`
	Present string `json:"present"`
	// Holds is the number of connections at which it stops the plan, or slows it down if it is
	// Soft; Unlimited if it never does.
	Holds int64 `json:"holds"`
	// Soft means that it makes things slow or lossy instead of stopping them; such a wall is never
	// Report.First.
	Soft bool `json:"soft,omitempty"`
	// Effect is the observable effect: the error and who gets it.
	Effect string `json:"effect"`
	// Needs is the value that the plan needs, "" if the present one suffices.
	Needs string `json:"needs,omitempty"`
	// Changes move it, in this order. If there are none although Needs is set, Advice describes an
	// alternative.
	Changes []Change `json:"changes,omitempty"`
	Advice  string   `json:"advice,omitempty"`
	// Source is the address of its documentation.
	Source string `json:"source"`

	// Used of Limit, in Unit ("descriptors", "bytes", ...), is in use now; Of distinguishes several
	// of a kind. Limit is 0 if unknown.
	Used  int64  `json:"used,omitempty"`
	Limit int64  `json:"limit,omitempty"`
	Unit  string `json:"unit,omitempty"`
	Of    string `json:"of,omitempty"`
	// Beyond means that Holds does not include connections that are open now, which count as used.
	Beyond bool `json:"beyond,omitempty"`
}

// Exceeded reports whether a number of connections does not fit.
func (w *Wall) Exceeded(connections int) bool { return w.Holds < int64(connections) }

// Changes returns the changes of all exceeded walls, the nearest wall's first, one per setting: if
// walls need different values, it gets one that satisfies both.
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
				all[at].To = c.valueSatisfyingBoth(all[at].To, c.To)
			} else {
				all = append(all, c)
			}
		}
	}
	// A limit of descriptors can't be above this one, so this comes first.
	slices.SortStableFunc(all, func(a, b Change) int { return changePriority(a) - changePriority(b) })
	return all
}

// changePriority returns 0 for a change on which others depend, otherwise 1.
func changePriority(c Change) int {
	if c.Name == "fs.nr_open" || c.Name == reservedName {
		return 0
	}
	return 1
}

// MarshalJSON writes the report as an object, with null for an unlimited Holds.
func (r Report) MarshalJSON() ([]byte, error) {
	type fields Report
	return json.Marshal(struct {
		fields
		Holds *int64 `json:"holds"`
	}{fields(r), nilIfUnlimited(r.Holds)})
}

// UnmarshalJSON reads what MarshalJSON has written.
func (r *Report) UnmarshalJSON(b []byte) error {
	type fields Report
	read := fields{Holds: Unlimited} // which null leaves as it is
	err := json.Unmarshal(b, &read)
	*r = Report(read)
	return err
}

// MarshalJSON writes the wall as an object, with null for an unlimited Holds.
func (w Wall) MarshalJSON() ([]byte, error) {
	type fields Wall
	return json.Marshal(struct {
		fields
		Holds *int64 `json:"holds"`
	}{fields(w), nilIfUnlimited(w.Holds)})
}

// UnmarshalJSON reads what MarshalJSON has written.
func (w *Wall) UnmarshalJSON(b []byte) error {
	type fields Wall
	read := fields{Holds: Unlimited}
	err := json.Unmarshal(b, &read)
	*w = Wall(read)
	return err
}

func nilIfUnlimited(holds int64) *int64 {
	if holds == Unlimited {
		return nil
	}
	return &holds
}

package doctor

import (
	"encoding/json"
	"math"
	"slices"
)

// Unlimited is the value of Wall.Holds for a wall that never stops the plan.
const Unlimited int64 = math.MaxInt64

// Report is the result of Examine.
type Report struct {
	Plan Plan `json:"plan"`
	// Holds is the number of connections that the machine can hold now. First is the name of the wall that
	// stops it there.
	Holds int64  `json:"holds"`
	First string `json:"first"`
	// Walls contains all examined walls, the nearest first.
	Walls []Wall `json:"walls"`
	Facts *Facts `json:"facts"`
}

// Wall is a limit of the machine and its effect on the plan.
type Wall struct {
	// Name is a short, stable name: "nofile", "ports", "somaxconn", …
	Name string `json:"name"`
	// Side is the end of the connections that the wall affects.
	Side Side `json:"side"`
	// What describes the limit. Present is the present value.
	What    string `json:"what"`
	Present string `json:"present"`
	// Holds is the number of connections at which the wall stops the plan, or slows it down if Soft is set. It
	// is Unlimited if the wall never does.
	Holds int64 `json:"holds"`
	// Soft reports that the wall causes slowness or losses instead of stopping connections. A soft wall is
	// never Report.First.
	Soft bool `json:"soft,omitempty"`
	// Effect is the observable effect: the error and the side that gets the error.
	Effect string `json:"effect"`
	// Needs is the value that the plan needs, "" if the present value suffices.
	Needs string `json:"needs,omitempty"`
	// Changes move the wall, in this order. If there are none although Needs is set, Advice describes an
	// alternative.
	Changes []Change `json:"changes,omitempty"`
	Advice  string   `json:"advice,omitempty"`
	// Source is the URL of the limit's documentation.
	Source string `json:"source"`

	// Used is the part of Limit that is in use now, in Unit ("descriptors", "bytes", ...). Of distinguishes
	// several limits of a kind. Limit is 0 if unknown.
	Used  int64  `json:"used,omitempty"`
	Limit int64  `json:"limit,omitempty"`
	Unit  string `json:"unit,omitempty"`
	Of    string `json:"of,omitempty"`
	// Beyond reports that Holds does not include the currently open connections, which count as Used.
	Beyond bool `json:"beyond,omitempty"`
}

// Exceeded reports whether the given number of connections exceeds the wall.
func (w *Wall) Exceeded(connections int) bool { return w.Holds < int64(connections) }

// Changes returns the changes for all exceeded walls, starting with the nearest wall. There is one change per
// setting. If walls need different values, the change has a value that satisfies all.
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
	// Limits of descriptors cannot exceed this setting, so it comes first.
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

// MarshalJSON writes the report as an object. An unlimited Holds becomes null.
func (r Report) MarshalJSON() ([]byte, error) {
	type fields Report
	return json.Marshal(struct {
		fields
		Holds *int64 `json:"holds"`
	}{fields(r), nilIfUnlimited(r.Holds)})
}

// UnmarshalJSON reads the format of MarshalJSON.
func (r *Report) UnmarshalJSON(b []byte) error {
	type fields Report
	read := fields{Holds: Unlimited} // null does not change this value
	err := json.Unmarshal(b, &read)
	*r = Report(read)
	return err
}

// MarshalJSON writes the wall as an object. An unlimited Holds becomes null.
func (w Wall) MarshalJSON() ([]byte, error) {
	type fields Wall
	return json.Marshal(struct {
		fields
		Holds *int64 `json:"holds"`
	}{fields(w), nilIfUnlimited(w.Holds)})
}

// UnmarshalJSON reads the format of MarshalJSON.
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

package doctor

import (
	"encoding/json"
	"math"
	"slices"
)

// Unlimited is a special value of Wall.Holds and Report.Holds. It means that no plan can reach the limit.
const Unlimited int64 = math.MaxInt64

// Report is the result of Examine for a plan.
type Report struct {
	Plan Plan `json:"plan"`
	// Holds is the number of connections that the machine can hold now. First is the name of the wall that prevents
	// more. If no wall does, Holds is Unlimited and First is "".
	Holds int64  `json:"holds"`
	First string `json:"first"`
	// Walls contains all examined limits. Those with the lowest Holds come first.
	Walls []Wall `json:"walls"`
	Facts *Facts `json:"facts"`
}

// Wall describes a limit of the machine and how the limit affects the plan.
type Wall struct {
	// Name is a short, stable name, such as "nofile", "ports" or "somaxconn".
	Name string `json:"name"`
	// Side is the end of the connections at which the limit applies.
	Side Side `json:"side"`
	// What describes the limit. Present is its present value.
	What    string `json:"what"`
	Present string `json:"present"`
	// Holds is the number of connections at which the limit stops the plan or, if Soft is set, slows it down. It is
	// Unlimited if no plan can reach the limit.
	Holds int64 `json:"holds"`
	// Soft reports that the limit causes delays or losses but stops no connections. Report.First is never a soft limit.
	Soft bool `json:"soft,omitempty"`
	// Effect describes what a user observes at the limit: the error, and the side on which it occurs.
	Effect string `json:"effect"`
	// Needs is the value that the plan needs, or "" if the present value is enough.
	Needs string `json:"needs,omitempty"`
	// Changes raise the limit if they are made in this order. If Needs is set but no change is possible, Advice
	// describes an alternative.
	Changes []Change `json:"changes,omitempty"`
	Advice  string   `json:"advice,omitempty"`
	// Source is the URL of the limit's documentation.
	Source string `json:"source"`

	// Used is the part of Limit that is in use now, in Unit ("descriptors", "bytes", ...). The field Of distinguishes
	// several limits of the same kind. Limit is 0 if it is unknown.
	Used  int64  `json:"used,omitempty"`
	Limit int64  `json:"limit,omitempty"`
	Unit  string `json:"unit,omitempty"`
	Of    string `json:"of,omitempty"`
	// Beyond reports that Holds counts connections in addition to those that are open now.
	Beyond bool `json:"beyond,omitempty"`
}

// Exceeded reports whether the given number of connections exceeds the limit.
func (w *Wall) Exceeded(connections int) bool { return w.Holds < int64(connections) }

// Changes returns the changes that raise all exceeded limits, in the order in which they must be made. Each setting has
// at most one change. The new value satisfies all limits that need the setting.
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
	// No limit of descriptors can exceed this setting, so the setting must be raised first.
	slices.SortStableFunc(all, func(a, b Change) int { return changeSortRank(a) - changeSortRank(b) })
	return all
}

func changeSortRank(c Change) int {
	if c.Name == "fs.nr_open" || c.Name == reservedName {
		return 0
	}
	return 1
}

// MarshalJSON encodes the report as a JSON object. If Holds is Unlimited, the JSON contains null for it.
func (r Report) MarshalJSON() ([]byte, error) {
	type fields Report
	return json.Marshal(struct {
		fields
		Holds *int64 `json:"holds"`
	}{fields(r), nilIfUnlimited(r.Holds)})
}

// UnmarshalJSON decodes a report that MarshalJSON has encoded.
func (r *Report) UnmarshalJSON(b []byte) error {
	type fields Report
	read := fields{Holds: Unlimited} // null does not change this value
	err := json.Unmarshal(b, &read)
	*r = Report(read)
	return err
}

// MarshalJSON encodes the limit as a JSON object. If Holds is Unlimited, the JSON contains null for it.
func (w Wall) MarshalJSON() ([]byte, error) {
	type fields Wall
	return json.Marshal(struct {
		fields
		Holds *int64 `json:"holds"`
	}{fields(w), nilIfUnlimited(w.Holds)})
}

// UnmarshalJSON decodes a limit that MarshalJSON has encoded.
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

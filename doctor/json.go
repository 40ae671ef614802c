package doctor

import "encoding/json"

// This file writes numbers of connections as JSON: where a wall never stops a
// plan, which is Unlimited here, it has null.

type (
	reportFields Report
	wallFields   Wall
)

type reportJSON struct {
	reportFields
	Holds *int64 `json:"holds"`
}

type wallJSON struct {
	wallFields
	Holds *int64 `json:"holds"`
}

// MarshalJSON writes the report as an object, with null for Unlimited.
func (r Report) MarshalJSON() ([]byte, error) {
	return json.Marshal(reportJSON{reportFields(r), bounded(r.Holds)})
}

// UnmarshalJSON reads what MarshalJSON has written.
func (r *Report) UnmarshalJSON(b []byte) error {
	var from reportJSON
	if err := json.Unmarshal(b, &from); err != nil {
		return err
	}
	*r = Report(from.reportFields)
	r.Holds = unbounded(from.Holds)
	return nil
}

// MarshalJSON writes the wall as an object, with null for Unlimited.
func (w Wall) MarshalJSON() ([]byte, error) {
	return json.Marshal(wallJSON{wallFields(w), bounded(w.Holds)})
}

// UnmarshalJSON reads what MarshalJSON has written.
func (w *Wall) UnmarshalJSON(b []byte) error {
	var from wallJSON
	if err := json.Unmarshal(b, &from); err != nil {
		return err
	}
	*w = Wall(from.wallFields)
	w.Holds = unbounded(from.Holds)
	return nil
}

func bounded(holds int64) *int64 {
	if holds == Unlimited {
		return nil
	}
	return &holds
}

func unbounded(holds *int64) int64 {
	if holds == nil {
		return Unlimited
	}
	return *holds
}

package load

import "strings"

// checkedRow is an expectation, what was measured, and whether that meets it.
type checkedRow struct {
	Text, Got string
	Met       bool
}

// checkAll compares the result with all that was expected of it.
func (s *Stream) checkAll(expected []Expectation) []checkedRow {
	var rows []checkedRow
	for _, e := range expected {
		got, ok := e.Check(s.Result)
		rows = append(rows, checkedRow{e.String(), got, ok})
	}
	return rows
}

// missedExpectations names the expectations that are not met; none for none.
func missedExpectations(rows []checkedRow) []verdict {
	var missed []string
	for _, row := range rows {
		if !row.Met {
			missed = append(missed, row.Text+": "+row.Got)
		}
	}
	if len(missed) == 0 {
		return nil
	}
	text := group(int64(len(missed))) + " of " + group(int64(len(rows))) + " expectations not met."
	return []verdict{{"bad", text, strings.Join(missed, "; ") + "."}}
}

// metExpectations says that all are met.
func metExpectations(rows []checkedRow) verdict {
	var met []string
	for _, row := range rows {
		met = append(met, row.Text+": "+row.Got)
	}
	text := "All " + group(int64(len(rows))) + " expectations met."
	if len(rows) == 1 {
		text = "The expectation is met."
	}
	return verdict{"good", text, strings.Join(met, "; ") + "."}
}

package lab

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table is a table of text. Its first and last columns are words and start at
// the left; the columns between are figures and end at the right.
type table struct {
	lines [][]string // all of the same length; the first are the headings
}

func (t *table) add(cells ...string) { t.lines = append(t.lines, cells) }

// write writes the table, indented by two spaces.
func (t *table) write(w io.Writer) error {
	widths := make([]int, len(t.lines[0]))
	for _, line := range t.lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, line := range t.lines {
		var out strings.Builder
		for i, cell := range line {
			fill := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 || i == len(line)-1 {
				out.WriteString("  " + cell + fill)
			} else {
				out.WriteString("  " + fill + cell)
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(out.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

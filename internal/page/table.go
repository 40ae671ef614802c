package page

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table is a table of text cells. The first and last columns are left-aligned, all others right-aligned.
type Table struct {
	// Caption is a sentence above the table.
	Caption string
	// Lines are the rows, all of the same length. The first row contains the headings.
	Lines [][]string
	// Tones[row][column] is the tone of a cell. Missing elements mean Plain.
	Tones [][]Tone
	// Figures makes the last column right-aligned, for figures.
	Figures bool
	// Actions[i] is a button at the end of row i, in HTML only. Rows beyond the end of Actions have no button.
	Actions []Action
}

func (t *Table) isTextColumn(column int) bool {
	return column == 0 || column == len(t.Lines[0])-1 && !t.Figures
}

func (t *Table) rowAction(row int) *Action {
	if row >= len(t.Actions) || t.Actions[row].Label == "" {
		return nil
	}
	return &t.Actions[row]
}

// AddRow adds a row. The first row contains the headings.
func (t *Table) AddRow(cells ...string) { t.Lines = append(t.Lines, cells) }

func (t *Table) SetLastRowTone(column int, tone Tone) {
	line := len(t.Lines) - 1
	for len(t.Tones) <= line {
		t.Tones = append(t.Tones, nil)
	}
	for len(t.Tones[line]) <= column {
		t.Tones[line] = append(t.Tones[line], Plain)
	}
	t.Tones[line][column] = tone
}

func (t *Table) Tone(row, column int) Tone {
	if row >= len(t.Tones) || column >= len(t.Tones[row]) {
		return Plain
	}
	return t.Tones[row][column]
}

// WriteText writes the table without its caption, indented by two spaces.
func (t *Table) WriteText(w io.Writer) error {
	widths := make([]int, len(t.Lines[0]))
	for _, line := range t.Lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, line := range t.Lines {
		var out strings.Builder
		for i, cell := range line {
			fill := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.isTextColumn(i) {
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

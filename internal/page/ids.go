package page

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// assignIDs gives each section and each chart an ID that no other has: what it was given, or
// else its title, in small letters, digits and dashes.
func (p *Page) assignIDs() {
	used := make(map[string]bool)
	id := func(wish string) string {
		const most = 56 // leaves room for a number
		words := strings.FieldsFunc(strings.ToLower(wish), func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < '0' || c > '9')
		})
		base := strings.Join(words, "-")
		base = cmp.Or(strings.TrimSuffix(base[:min(len(base), most)], "-"), "x")
		id := base
		for n := 2; used[id]; n++ {
			id = base + "-" + strconv.Itoa(n)
		}
		used[id] = true
		return id
	}
	for i := range p.Sections {
		s := &p.Sections[i]
		s.ID = id(cmp.Or(s.ID, s.Title))
		for _, part := range s.Parts {
			if c := part.Chart; c != nil {
				c.ID = id(cmp.Or(c.ID, s.Title+" "+c.Title))
			}
		}
	}
}

// validate says what of the page can't be written: tables and series whose columns are not of
// the same length.
func (p *Page) validate() error {
	for _, s := range p.Sections {
		for _, part := range s.Parts {
			if t := part.Table; t != nil {
				for i, line := range t.Lines {
					if len(line) != len(t.Lines[0]) {
						return fmt.Errorf("page: line %d of table %q has %d cells; expected %d, as many as there are headings", i, t.Caption, len(line), len(t.Lines[0]))
					}
				}
			}
			if c := part.Chart; c != nil {
				for _, series := range c.Series {
					if len(series.X) != len(series.Y) {
						return fmt.Errorf("page: series %q of chart %q has %d X and %d Y; expected as many", series.Name, c.Title, len(series.X), len(series.Y))
					}
				}
			}
		}
	}
	return nil
}

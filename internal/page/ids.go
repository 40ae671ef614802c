package page

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// assignUniqueIDs gives each section and chart a unique ID of lower-case letters, digits and dashes.
func (p *Page) assignUniqueIDs() {
	used := make(map[string]bool)
	id := func(wish string) string {
		const most = 56 // leaves space for a number
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

func (p *Page) checkRowAndSeriesLengths() error {
	for _, s := range p.Sections {
		for _, part := range s.Parts {
			if t := part.Table; t != nil {
				for i, line := range t.Lines {
					if len(line) != len(t.Lines[0]) {
						return fmt.Errorf("page: row %d of table %q has %d cells; expected %d, one for each heading", i, t.Caption, len(line), len(t.Lines[0]))
					}
				}
			}
			if c := part.Chart; c != nil {
				for _, series := range c.Series {
					if len(series.X) != len(series.Y) {
						return fmt.Errorf("page: series %q of chart %q has %d X and %d Y values; expected the same number", series.Name, c.Title, len(series.X), len(series.Y))
					}
				}
			}
		}
	}
	return nil
}

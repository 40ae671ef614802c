package page

import (
	"fmt"
	"math"
	"regexp"
)

// idForm is of IDs that are given; those of the frame begin with an underscore.
var idForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

// check says what of the page can't be written.
func (p *Page) check() error {
	seen := map[string]bool{}
	once := func(what, id string) error {
		if !idForm.MatchString(id) {
			return fmt.Errorf("page: the ID of %s is %q; it has to be 1 to 64 small letters, digits and dashes", what, id)
		}
		if seen[id] {
			return fmt.Errorf("page: the ID %q of %s is there twice; give each section and each chart its own", id, what)
		}
		seen[id] = true
		return nil
	}
	for i := range p.Sections {
		s := &p.Sections[i]
		if err := once(fmt.Sprintf("section %q", s.Title), s.ID); err != nil {
			return err
		}
		for j := range s.Parts {
			if t := s.Parts[j].Table; t != nil {
				if err := t.check(); err != nil {
					return fmt.Errorf("%w, in section %q", err, s.ID)
				}
			}
			if c := s.Parts[j].Chart; c != nil {
				if err := once(fmt.Sprintf("chart %q", c.Title), c.ID); err != nil {
					return err
				}
				if err := c.check(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (t *Table) check() error {
	if len(t.Lines) == 0 || len(t.Lines[0]) == 0 {
		return fmt.Errorf("page: table %q has no headings; its first line has to be that of the headings", t.Caption)
	}
	for i, line := range t.Lines {
		if len(line) != len(t.Lines[0]) {
			return fmt.Errorf("page: line %d of table %q has %d cells; the headings are %d", i, t.Caption, len(line), len(t.Lines[0]))
		}
	}
	return nil
}

func (c *Chart) check() error {
	for _, b := range c.Bands {
		if !(b.From <= b.To) || math.IsInf(b.From, 0) || math.IsInf(b.To, 0) {
			return fmt.Errorf("page: a band of chart %q is from %v to %v; expected two numbers in order", c.ID, b.From, b.To)
		}
	}
	for _, s := range c.Series {
		if s.Right && c.Right == (Axis{}) {
			return fmt.Errorf("page: series %q of chart %q is of the right axis; set Chart.Right", s.Name, c.ID)
		}
		if len(s.X) != len(s.Y) {
			return fmt.Errorf("page: series %q of chart %q has %d X and %d Y; they have to be as many", s.Name, c.ID, len(s.X), len(s.Y))
		}
		for i := 1; i < len(s.X); i++ {
			if s.X[i] < s.X[i-1] {
				return fmt.Errorf("page: series %q of chart %q goes back at point %d; sort its points by X", s.Name, c.ID, i)
			}
		}
	}
	return nil
}

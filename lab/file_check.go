package lab

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// check looks at a scenario as its file has it: each part, then the whole on a machine
// on which everything can run, then that at each scale.
func (d *decoder) check(s *Scenario) error {
	if s.Name == "" || len(s.Name) > 40 || strings.ContainsAny(s.Name, "/\\: \t\r\n") {
		return d.errorAt("name", "scenario name %q; expected 1 to 40 bytes without spaces, slashes and colons, as name = %q", s.Name, "mine")
	}
	if s.Question == "" {
		return d.errorAt("question", "question is missing; expected a sentence, as question = %q", "Is mine as fast as others?")
	}
	seen := make(map[string]bool)
	for i, subject := range s.Subjects {
		if err := cmp.Or(subject.check(), unlike(seen, "subject", subject.Name)); err != nil {
			return d.at(element("subject", i), err)
		}
	}
	clear(seen)
	for i, w := range s.Workloads {
		if err := cmp.Or(w.check(), unlike(seen, "workload", w.Name)); err != nil {
			return d.at(element("workload", i), err)
		}
	}
	whole := s.expanded(ideal)
	if err := whole.check(); err != nil {
		return err
	}
	if s.Baseline == "" {
		s.Baseline = whole.Subjects[0].Name
	}
	names := whole.names()
	for i, subject := range s.Subjects {
		for _, w := range subject.Workloads {
			if !names.workloads[w] {
				return d.errorAt(join(element("subject", i), "workloads"), "subject %s: workload %q; expected some of %s", subject.Name, w, names.list(names.workloads))
			}
		}
	}
	for i, key := range []string{"baseline", "auto"} {
		if name := []string{s.Baseline, s.Auto}[i]; name != "" && !names.subjects[name] {
			return d.errorAt(key, "%s is %q; expected one of the subjects: %s", key, name, names.list(names.subjects))
		}
	}
	if err := d.checkPublished(s, names); err != nil {
		return err
	}
	return d.checkScales(s, &whole, names)
}

// element is the path of a table in a list of them.
func element(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// nameSet are the names that others refer to.
type nameSet struct{ subjects, workloads map[string]bool }

func (s *Scenario) names() nameSet {
	n := nameSet{map[string]bool{}, map[string]bool{}}
	for _, x := range s.Subjects {
		n.subjects[x.Name] = true
	}
	for _, w := range s.Workloads {
		n.workloads[w.Name] = true
	}
	return n
}

func (n nameSet) list(names map[string]bool) string {
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

// checkPublished looks at published tables, and at the names in them.
func (d *decoder) checkPublished(s *Scenario, names nameSet) error {
	for i, p := range s.Published {
		path := element("published", i)
		if err := p.check(); err != nil {
			return d.at(path, err)
		}
		for j, c := range p.Columns {
			if c.Relative != "" && !names.subjects[c.Relative] {
				return d.errorAt(join(path, element("column", j)), "published column %q: relative to %q; expected one of %s", c.Name, c.Relative, names.list(names.subjects))
			}
		}
		for j, row := range p.Rows {
			if err := names.check(row); err != nil {
				return d.at(join(path, element("rows", j)), err)
			}
		}
	}
	return nil
}

// check looks at the names in a published row.
func (n nameSet) check(row PublishedRow) error {
	for _, w := range append([]string{row.Workload}, row.Else...) {
		if w != "" && !n.workloads[w] {
			return wrong("published row %q: workload %q; expected one of %s", row.Name, w, n.list(n.workloads))
		}
	}
	for _, subject := range append([]string{row.Design}, row.Ours...) {
		if subject != "" && !n.subjects[subject] {
			return wrong("published row %q: subject %q; expected one of %s", row.Name, subject, n.list(n.subjects))
		}
	}
	return nil
}

var scaleName = regexp.MustCompile(`^[a-z][a-z-]{0,39}$`)

// checkScales looks at each scale, and at what the scenario is at it.
func (d *decoder) checkScales(s, whole *Scenario, names nameSet) error {
	for _, name := range slices.Sorted(maps.Keys(s.Scales)) {
		path := join("scale", name)
		if !scaleName.MatchString(name) || name == fullScale {
			return d.errorAt(path, "scale name %q; expected 1 to 40 small letters and dashes, and not %s, which is the scenario as it is written", name, fullScale)
		}
		x := s.Scales[name]
		for _, without := range x.Without {
			if !names.subjects[without] && !names.workloads[without] {
				return d.errorAt(join(path, "without"), "scale %s is without %q; expected workloads (%s) or subjects (%s)",
					name, without, names.list(names.workloads), names.list(names.subjects))
			}
		}
		if x.Connections < 0 || x.Duration < 0 || x.WarmUp < 0 || x.Hold < 0 {
			return d.errorAt(path, "scale %s has a number or a time below 0; expected more", name)
		}
		small, changes, err := whole.at(name)
		if err == nil {
			small = small.resized(changes)
			err = small.check()
		}
		if err != nil {
			return d.at(path, wrong("scale %s: %v", name, err))
		}
	}
	return nil
}

// ideal is a machine on which every model can run.
var ideal = host{forbids: func(string) error { return nil }}

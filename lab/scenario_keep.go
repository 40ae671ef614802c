package lab

import (
	"slices"
	"strings"
)

// Keep returns the scenario with only the subjects of these names, or with all if there
// are none; s stays as it is. Of a subject with models it keeps those that are named. It
// fails with a ScenarioError when there is no such subject.
func (s Scenario) Keep(names ...string) (Scenario, error) {
	if len(names) == 0 {
		return s, nil
	}
	var all []string
	var kept []Subject
	for _, x := range s.Subjects {
		var models []string
		for _, m := range x.Models {
			name := strings.ReplaceAll(x.Name, modelMark, m)
			if all = append(all, name); slices.Contains(names, name) {
				models = append(models, m)
			}
		}
		if len(x.Models) == 0 {
			all = append(all, x.Name)
		}
		if len(models) > 0 || len(x.Models) == 0 && slices.Contains(names, x.Name) {
			x.Models = models
			kept = append(kept, x)
		}
	}
	for _, name := range names {
		if !slices.Contains(all, name) {
			return s, wrong("subject %q; expected some of %v", name, all)
		}
	}
	s.Subjects = kept
	return s, nil
}

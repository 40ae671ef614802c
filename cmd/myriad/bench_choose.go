package main

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/lab"
)

// all names every built-in scenario.
const all = "all"

// scenariosOf are some scenarios and those that the command line names.
func scenariosOf(names []string, chosen ...lab.Scenario) ([]lab.Scenario, error) {
	if i := slices.Index(names, all); i >= 0 {
		names = slices.Concat(names[:i], lab.BuiltIns(), names[i+1:])
	}
	known := make(map[string]bool)
	for _, s := range chosen {
		known[s.Name] = true
	}
	for _, name := range names {
		read := lab.BuiltIn
		if isFile(name) {
			read = lab.OpenScenario
		}
		s, err := read(name)
		if err != nil {
			return nil, usageError{err}
		}
		if known[s.Name] {
			return nil, usagef("two scenarios are named %q; expected each once, and in each file a name of its own", s.Name)
		}
		known[s.Name] = true
		chosen = append(chosen, s)
	}
	return chosen, nil
}

// isFile says whether an argument is meant as a file's name.
func isFile(name string) bool {
	return filepath.Ext(name) == ".toml" || strings.ContainsAny(name, `/\`)
}

// directoryTime is how a directory's name has the time.
const directoryTime = "20060102-150405"

// directory is where the report goes to.
func (f *benchFlags) directory(names []string) string {
	if f.out != "" {
		return f.out
	}
	var short []string
	for _, name := range names {
		short = append(short, strings.TrimSuffix(filepath.Base(name), ".toml"))
	}
	return "bench-" + strings.Join(short, "-") + "-" + time.Now().Format(directoryTime)
}

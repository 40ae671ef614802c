package scenario

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

//go:embed files
var files embed.FS

// Reader reads scenarios. It uses the function Figures to look up a figure by name. Figures returns ok if the figure
// exists. It returns better if higher or lower values of the figure are better.
type Reader struct {
	Figures func(name string) (better, ok bool)
}

const maxFileBytes = 1 << 20

// ReadScenario reads a scenario from up to 1 MiB of TOML, and checks it with each of its scales.
func (r Reader) ReadScenario(in io.Reader) (s Scenario, err error) {
	text, err := io.ReadAll(io.LimitReader(in, maxFileBytes+1))
	if err != nil {
		return s, err
	}
	if len(text) > maxFileBytes {
		return s, Errorf("file is longer than %d bytes; expected a scenario", maxFileBytes)
	}
	d := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, newErrorFromTOMLError(err)
	}
	s.Rounds = cmp.Or(s.Rounds, 3)
	return s, r.validateWithScalesAndSetBaseline(&s, tomlTableLineNumbers(text))
}

// tomlTableLineNumbers returns the line numbers of all TOML tables in text. The map's keys are table names.
func tomlTableLineNumbers(text []byte) map[string][]int {
	lines := make(map[string][]int)
	var p unstable.Parser
	for p.Reset(text); p.NextExpression(); {
		e := p.Expression()
		if e.Kind != unstable.ArrayTable && e.Kind != unstable.Table {
			continue
		}
		var words []string
		line := 0
		for key := e.Key(); key.Next(); {
			if line == 0 {
				line = p.Shape(key.Node().Raw).Start.Line
			}
			words = append(words, string(key.Node().Data))
		}
		name := strings.Join(words, ".")
		lines[name] = append(lines[name], line)
	}
	return lines
}

func newErrorFromTOMLError(err error) error {
	if e, ok := errors.AsType[*toml.StrictMissingError](err); ok && len(e.Errors) > 0 {
		line, _ := e.Errors[0].Position()
		return Errorf("line %d: unknown key %q; expected a key as described in docs/scenarios.md", line, strings.Join(e.Errors[0].Key(), "."))
	}
	if e, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, _ := e.Position()
		what := strings.TrimPrefix(e.Error(), "toml: ")
		if key := e.Key(); len(key) > 0 {
			what = strings.Join(key, ".") + ": " + what
		}
		return Errorf("line %d: %s; expected TOML as described in docs/scenarios.md", line, what)
	}
	return Errorf("%v; expected TOML as described in docs/scenarios.md", err)
}

// validateWithScalesAndSetBaseline checks a scenario as written, and with each of its scales applied. It assumes a
// machine without limits. If the scenario has no baseline, it sets the baseline to the first subject. lines contains
// the line numbers of TOML tables, for error messages.
func (r Reader) validateWithScalesAndSetBaseline(s *Scenario, lines map[string][]int) error {
	at := func(table string, i int, err error) error {
		if err != nil && i < len(lines[table]) {
			return Errorf("line %d: %v", lines[table][i], err)
		}
		return err
	}
	switch {
	case s.Name == "" || len(s.Name) > 40 || strings.ContainsAny(s.Name, "/\\: \t\r\n"):
		return Errorf("scenario name is %q; expected 1 to 40 bytes without spaces, slashes and colons, such as name = %q", s.Name, "mine")
	case s.Question == "":
		return Errorf("question is missing; expected a sentence, such as question = %q", "Is mine as fast as others?")
	}
	for i, x := range s.Subjects {
		if err := x.validateSubject(); err != nil {
			return at("subject", i, err)
		}
	}
	for i, w := range s.Workloads {
		if err := w.validateWorkload(); err != nil {
			return at("workload", i, err)
		}
	}
	whole := s.selectRunnableSubjectsPerModel(anyHost)
	if err := whole.Validate(); err != nil {
		return err
	}
	s.Baseline = cmp.Or(s.Baseline, whole.Subjects[0].Name)
	if err := s.checkCrossReferences(&whole, r.Figures, at); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(s.Scales)) {
		x := s.Scales[name]
		err := x.validateScaleAndName(name)
		if err == nil {
			small := x.reduceScenario(whole)
			err = small.Validate()
		}
		if err != nil {
			return at("scale."+name, 0, Errorf("scale %s: %v", name, err))
		}
	}
	return nil
}

func (r Reader) ReadFile(name string) (s Scenario, err error) {
	f, err := os.Open(name)
	if err != nil {
		return s, err
	}
	defer f.Close()
	s, err = r.ReadScenario(f)
	return s, addFileNameToError(name, err)
}

func addFileNameToError(name string, err error) error {
	if e, ok := errors.AsType[Error](err); ok {
		return Errorf("%s: %s", name, e)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// builtInOrder lists names of built-in scenarios in the order in which they are shown. Built-in scenarios that are not
// in the list are shown after those in the list.
var builtInOrder = []string{"quick", "tenk", "idle", "million", "websockets", "models", "overload", "pool", "hub", "heartbeat", "peers", "tls", "capacity", "soak"}

const extension = ".toml"

func BuiltInNames() (inFixedOrder []string) {
	entries, err := files.ReadDir("files")
	if err != nil {
		panic("scenario: no scenarios are embedded: " + err.Error())
	}
	for _, e := range entries {
		inFixedOrder = append(inFixedOrder, strings.TrimSuffix(e.Name(), extension))
	}
	rank := func(name string) int {
		if i := slices.Index(builtInOrder, name); i >= 0 {
			return i
		}
		return len(builtInOrder)
	}
	slices.SortStableFunc(inFixedOrder, func(a, b string) int { return rank(a) - rank(b) })
	return inFixedOrder
}

func BuiltInFile(name string) ([]byte, error) {
	text, err := files.ReadFile(path.Join("files", name+extension))
	if err != nil {
		return nil, Errorf("unknown scenario %q; expected one of %s, or a file such as ./mine.toml",
			name, strings.Join(BuiltInNames(), ", "))
	}
	return text, nil
}

func (r Reader) ReadBuiltIn(name string) (s Scenario, err error) {
	text, err := BuiltInFile(name)
	if err != nil {
		return s, err
	}
	s, err = r.ReadScenario(bytes.NewReader(text))
	return s, addFileNameToError(name+extension, err)
}

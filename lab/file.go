package lab

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

//go:embed scenarios
var scenarios embed.FS

// maxFile is the most that a scenario's file has, in bytes.
const maxFile = 1 << 20

// ReadScenario reads a scenario from its file, in TOML, of 1 MiB at most. It is checked
// as it is written, with all that each of its scales makes of it. A ScenarioError says on
// which line what is wrong.
func ReadScenario(in io.Reader) (Scenario, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return Scenario{}, err
	}
	if len(text) > maxFile {
		return Scenario{}, wrong("it has more than %d bytes; expected a scenario, which has fewer", maxFile)
	}
	var raw map[string]any
	if err := toml.Unmarshal(text, &raw); err != nil {
		return Scenario{}, notTOML(err)
	}
	var s Scenario
	d := decoder{lines: linesOf(text)}
	if err := d.decode(&s, raw); err != nil {
		return Scenario{}, err
	}
	return s, d.check(&s)
}

// notTOML says where a file is no TOML.
func notTOML(err error) error {
	if e, ok := errors.AsType[toml.ParseError](err); ok {
		return wrong("line %d: %s; expected TOML", e.Position.Line, cmp.Or(e.Message, strings.TrimPrefix(err.Error(), "toml: ")))
	}
	return wrong("%v; expected TOML", err)
}

// OpenScenario reads a scenario from the file of that name, as ReadScenario does.
func OpenScenario(name string) (Scenario, error) {
	f, err := os.Open(name)
	if err != nil {
		return Scenario{}, err
	}
	defer f.Close()
	s, err := ReadScenario(f)
	return s, inFile(name, err)
}

// inFile says of which file an error is.
func inFile(name string, err error) error {
	if e, ok := errors.AsType[ScenarioError](err); ok {
		return wrong("%s: %s", name, e)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// builtInOrder is that of the built-in scenarios; one that it doesn't name comes behind.
var builtInOrder = []string{"quick", "tenk", "idle", "million", "models", "overload", "heartbeat", "peers", "tls", "soak"}

const extension = ".toml"

// BuiltIns are the names of the scenarios that Myriad brings along.
func BuiltIns() []string {
	entries, err := scenarios.ReadDir("scenarios")
	if err != nil {
		panic("lab: no scenarios are embedded: " + err.Error())
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), extension); ok {
			names = append(names, name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	return names
}

// rank is where a name stands in the order.
func rank(name string) int {
	if i := slices.Index(builtInOrder, name); i >= 0 {
		return i
	}
	return len(builtInOrder)
}

// BuiltInFile is the file of a built-in scenario. A ScenarioError says that there is none
// of that name.
func BuiltInFile(name string) ([]byte, error) {
	text, err := scenarios.ReadFile(path.Join("scenarios", name+extension))
	if err != nil {
		return nil, wrong("no scenario %q is built in; expected one of %s, or a file such as ./mine.toml",
			name, strings.Join(BuiltIns(), ", "))
	}
	return text, nil
}

// BuiltIn is a built-in scenario.
func BuiltIn(name string) (Scenario, error) {
	text, err := BuiltInFile(name)
	if err != nil {
		return Scenario{}, err
	}
	s, err := ReadScenario(bytes.NewReader(text))
	return s, inFile("scenarios/"+name+extension, err)
}

package lab

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestDocs has docs/scenarios.md name every key of a file and every placeholder, and its
// example be a scenario.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../docs/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, of := range []any{Scenario{}, Subject{}, Workload{}, Scale{}, Published{}, PublishedColumn{}, PublishedRow{}} {
		for key, field := range fieldsOf(reflect.ValueOf(of)) {
			if k := field.Kind(); k == reflect.Pointer || k == reflect.Map || key == "subject" || key == "workload" {
				continue // a table of its own
			}
			if !strings.Contains(text, "`"+key+"`") && !strings.Contains(text, key+" = ") && !strings.Contains(text, "[["+key+"]]") {
				t.Errorf("%T: docs/scenarios.md does not name %s", of, key)
			}
		}
	}
	for _, p := range append([]string{modelMark, peersMark}, placeholders...) {
		if !strings.Contains(text, "`"+p+"`") {
			t.Errorf("docs/scenarios.md does not name %s", p)
		}
	}
	for _, k := range allKinds {
		if !strings.Contains(text, "`"+string(k)+"`") {
			t.Errorf("docs/scenarios.md does not name the kind %s", k)
		}
	}
	_, example, _ := strings.Cut(text, "```toml\n")
	example, _, _ = strings.Cut(example, "```")
	s, err := ReadScenario(strings.NewReader(example))
	if err != nil || s.Name != "mine" || len(s.Subjects) != 2 {
		t.Errorf("the example: %v, got %+v", err, s)
	}
	misspelt := strings.Replace(example, "\nconnections = 50\n", "\nconections = 50\n", 1)
	_, err = ReadScenario(strings.NewReader(misspelt))
	joined := strings.ReplaceAll(text, "\n", " ")
	if err == nil || !strings.Contains(joined, "mine.toml: "+err.Error()) {
		t.Errorf("what is said of a key that is misspelt is not in the text: %v", err)
	}
}

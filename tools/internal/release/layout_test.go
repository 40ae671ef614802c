package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// layers are the parts of the repository, lowest first. A package may import its own layer and those below it.
var layers = [][]string{
	{"internal", "pool"},
	{"tcp"},
	{"web"},
	{"hub"},
	{"tools"},
	{"examples"},
}

// kits are packages for tests only, which may import upward.
var kits = []string{"internal/testkit/testserver"}

// forbidden are imports within the layers' rule that are not allowed either: from a package, to packages.
var forbidden = map[string][]string{
	"hub":        {"internal/engine", "internal/sock", "internal/admission", "internal/secure"}, // public API only
	"pool":       {"internal/engine"},
	"tools/load": {"tcp", "web", "hub"}, // the load generator does not know the server
}

type sourcePackage struct {
	name    string // the path below the repository's root
	files   []string
	imports []string // of the repository, in the same form
}

func listSourcePackages(t *testing.T) (all []sourcePackage) {
	t.Helper()
	list := exec.Command("go", "list", "-f", `{{.ImportPath}}|{{join .GoFiles " "}}|{{join .Imports " "}}`, "work")
	list.Dir = checkout
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), "|")
		p := sourcePackage{name: strings.TrimPrefix(fields[0], root+"/"), files: strings.Fields(fields[1])}
		for _, i := range strings.Fields(fields[2]) {
			if strings.HasPrefix(i, root+"/") {
				p.imports = append(p.imports, strings.TrimPrefix(i, root+"/"))
			}
		}
		all = append(all, p)
	}
	return all
}

func isInFolder(name, folder string) bool {
	return name == folder || strings.HasPrefix(name, folder+"/")
}

func layerOf(name string) int {
	return slices.IndexFunc(layers, func(folders []string) bool {
		return slices.ContainsFunc(folders, func(f string) bool { return isInFolder(name, f) })
	})
}

// importViolation returns why p may not import i, or "".
func importViolation(p, i string) string {
	if slices.Contains(kits, p) {
		return ""
	}
	from, to := layerOf(p), layerOf(i)
	switch {
	case from < 0:
		return p + " belongs to no layer; add it to layers"
	case to > from:
		return p + " imports " + i + ", which is above it; imports point from " + layers[from][0] + " downward"
	case slices.Contains(kits, i):
		return p + " imports " + i + ", which is for tests only"
	}
	for folder, not := range forbidden {
		if isInFolder(p, folder) && slices.ContainsFunc(not, func(f string) bool { return isInFolder(i, f) }) {
			return p + " may not import " + i
		}
	}
	return ""
}

func TestImportsPointDownward(t *testing.T) {
	for _, p := range listSourcePackages(t) {
		for _, i := range p.imports {
			if why := importViolation(p.name, i); why != "" {
				t.Error(why)
			}
		}
	}
}

// maxFiles and maxEntries limit the Go files of a package, without tests, and the visible files and
// folders at the top level.
const maxFiles, maxEntries = 35, 18

func TestSizes(t *testing.T) {
	for _, p := range listSourcePackages(t) {
		if len(p.files) > maxFiles {
			t.Errorf("%s has %d Go files; expected at most %d: split it", p.name, len(p.files), maxFiles)
		}
	}
	entries, err := os.ReadDir(checkout)
	testkit.RequireNoError(t, err)
	visible := slices.DeleteFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), ".") })
	if len(visible) > maxEntries {
		t.Errorf("%d entries at the top level, %v; expected at most %d", len(visible), visible, maxEntries)
	}
}

// TestWebUsesOneFile checks that web reaches behind the public API of tcp in engine.go only.
func TestWebUsesOneFile(t *testing.T) {
	grep := exec.Command("grep", "-l", `"`+root+`/internal/engine"`, "-r", "--include=*.go", "--exclude=*_test.go", "web")
	grep.Dir = checkout
	out, err := grep.Output()
	if err != nil || strings.TrimSpace(string(out)) != "web/engine.go" {
		t.Errorf("files of web that import internal/engine: %q, %v; want web/engine.go", out, err)
	}
}

// TestOneReaderOfProc checks that tools reads /proc and /sys with package procfs only.
func TestOneReaderOfProc(t *testing.T) {
	grep := exec.Command("grep", "-lE", `"(/proc|/sys|github.com/prometheus/procfs)\b`, "-r", "--include=*.go", "--exclude=*_test.go", "--exclude-dir=procfs", "tools")
	grep.Dir = checkout
	if out, _ := grep.Output(); len(out) > 0 { // grep fails where it finds nothing
		t.Errorf("these files read /proc or /sys; call tools/internal/procfs instead:\n%s", out)
	}
}

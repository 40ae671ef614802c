package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// readDocuments returns the documents of the repository by path.
func readDocuments(t *testing.T) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/articles/*.md", "../peers/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v, want files", pattern, files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			testkit.RequireNoError(t, err)
			texts[file] = string(text)
		}
	}
	return texts
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|href)="([^"]+)"`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	named   = regexp.MustCompile(`<a id="([^"]+)">`)
	fence   = regexp.MustCompile("(?s)```.*?```")
	notWord = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// headingAnchors returns the anchors of a document's headings, as the usual renderers generate
// them, and explicit ones.
func headingAnchors(text string) map[string]bool {
	found := make(map[string]bool)
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		found[strings.ReplaceAll(notWord.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	for _, m := range named.FindAllStringSubmatch(text, -1) {
		found[m[1]] = true
	}
	return found
}

// Every link of the documents leads to a file that there is, and to a heading in it.
func TestDocumentsLinks(t *testing.T) {
	texts := readDocuments(t)
	for file, text := range texts {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			target := m[1] + m[2]
			if strings.Contains(target, "://") {
				continue
			}
			path, anchor, _ := strings.Cut(target, "#")
			to := file
			if path != "" {
				to = filepath.Join(filepath.Dir(file), path)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: %v", file, target, err)
			} else if anchor != "" && !headingAnchors(texts[to])[anchor] {
				t.Errorf("%s links to %s, where there is no such heading", file, target)
			}
		}
	}
}

var (
	benchScenario = regexp.MustCompile("(?m)(?:^|`)myriad bench ([a-z]+)[` ]")
	commandLine   = regexp.MustCompile(`(?m)^(?:\$ |\s*)?(?:go run \./cmd/)?myriad ((?:[a-z]+ ?)*)([^\n#|]*(?:\\\n[^\n#|]*)*)`)
	flagName      = regexp.MustCompile(`(?:^|\s)--([a-z][a-z0-9-]*)`)
	quoted        = regexp.MustCompile(`\$?'[^']*'|"[^"]*"`) // it is for other commands
)

// Every flag that the documents give to a command, it has; every scenario that they name exists.
func TestDocumentsFlags(t *testing.T) {
	seen := 0
	scenarios := append(scenario.BuiltInNames(), "list", "show", "all")
	for file, text := range readDocuments(t) {
		for _, m := range benchScenario.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(scenarios, m[1]) {
				t.Errorf("%s: %s, which is no scenario", file, m[0])
			}
		}
		if strings.HasSuffix(file, "CHANGELOG.md") {
			continue // which also has what there was
		}
		for _, block := range fence.FindAllString(text, -1) {
			for _, m := range commandLine.FindAllStringSubmatch(block, -1) {
				cmd, _, _ := newRootCommandWithNamedSubcommand().Find(strings.Fields(m[1]))
				for _, f := range flagName.FindAllStringSubmatch(quoted.ReplaceAllString(m[2], "Q"), -1) {
					seen++
					if cmd.Flags().Lookup(f[1]) == nil && cmd.InheritedFlags().Lookup(f[1]) == nil && f[1] != "help" {
						t.Errorf("%s: %q has no flag --%s: %s", file, cmd.CommandPath(), f[1], m[0])
					}
				}
			}
		}
	}
	if seen < 100 {
		t.Errorf("%d flags found in the documents, want hundreds: the test looks past them", seen)
	}
}

package main

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// quoted matches text that may contain any phrase: code spans, code blocks and quotations.
var quoted = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`|\"[^\"\n]*\"|“[^”]*”")

func readPhrases(t *testing.T) *regexp.Regexp {
	t.Helper()
	list, err := os.ReadFile("phrases.txt")
	testkit.RequireNoError(t, err)
	var all []string
	for line := range strings.Lines(string(list)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			all = append(all, strings.ReplaceAll(line, " ", `[\s/]+`)) // a phrase may be broken over two lines
		}
	}
	return regexp.MustCompile("(?i)" + strings.Join(all, "|"))
}

// passage is a piece of text and the line on which it begins.
type passage struct {
	text string
	line int
}

// goPassages returns the comments, strings and identifiers of a Go file, each identifier once, with a
// parenthesis. Comments on consecutive lines are one passage.
func goPassages(source []byte) (all []passage) {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	commentEnd, seen := -1, map[string]bool{}
	for {
		pos, tok, text := s.Scan()
		line := file.Line(pos)
		switch tok {
		case token.EOF:
			return all
		case token.COMMENT:
			text = quoted.ReplaceAllString(text, "")
			if commentEnd == line-1 {
				last := &all[len(all)-1]
				last.text += "\n" + text
			} else {
				all = append(all, passage{text, line})
			}
			commentEnd = line
		case token.STRING:
			all = append(all, passage{regexp.MustCompile(`\\"[^"]*\\"`).ReplaceAllString(text, ""), line})
			commentEnd = -1
		case token.IDENT:
			if !seen[text] {
				seen[text] = true
				all = append(all, passage{text + "(", line})
			}
			commentEnd = -1
		}
	}
}

// TestPhrases checks that no comment, message, identifier or document has what phrases.txt lists.
func TestPhrases(t *testing.T) {
	phrases := readPhrases(t)
	list := func(name string, entry fs.DirEntry, err error) error {
		isText := filepath.Ext(name) == ".go" || filepath.Ext(name) == ".md"
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "node_modules" || strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".ci" && name != "."):
			return fs.SkipDir
		case entry.IsDir() || !isText || name == "tools/internal/release/phrases_test.go":
			return nil
		}
		source, err := os.ReadFile(filepath.Join(checkout, name))
		if err != nil {
			return err
		}
		var all []passage
		if filepath.Ext(name) == ".go" {
			all = goPassages(source)
		} else {
			blank := func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) }
			all = []passage{{quoted.ReplaceAllStringFunc(string(source), blank), 1}}
		}
		for _, p := range all {
			for _, f := range findPhrases(phrases, p) {
				t.Errorf("%s:%d: %q, which phrases.txt lists; see CONTRIBUTING.md", name, f.line, f.text)
			}
		}
		return nil
	}
	testkit.RequireNoError(t, fs.WalkDir(os.DirFS(checkout), ".", list))
}

func findPhrases(phrases *regexp.Regexp, p passage) (all []passage) {
	for _, at := range phrases.FindAllStringIndex(p.text, -1) {
		all = append(all, passage{p.text[at[0]:at[1]], p.line + strings.Count(p.text[:at[0]], "\n")})
	}
	return all
}

func TestFindPhrases(t *testing.T) {
	phrases := readPhrases(t)
	source := "package p\n\n// f says\n// whether \"it says whether\" g.\nfunc f() { turnedAway(\"sees to it\", \"a \\\"sees to it\\\"\") }\n"
	var got []int
	for _, p := range goPassages([]byte(source)) {
		for _, f := range findPhrases(phrases, p) {
			got = append(got, f.line)
		}
	}
	if len(got) != 3 || got[0] != 3 || got[1] != 5 || got[2] != 5 {
		t.Errorf("found on lines %v; want 3, 5 and 5", got)
	}
}

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// begun makes the journal of a test scenario in a new directory.
func begun(t *testing.T) (dir string, j *journal) {
	t.Helper()
	o := Options{Command: "myriad bench test", Only: regexp.MustCompile("one/"), Repeats: 3}
	b, err := newBook([]Scenario{testScenario()}, o)
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), "out")
	j, err = createJournal(dir, headOf(b, o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.close() })
	return dir, j
}

// TestJournal is read as it was written, whatever was cut off at its end.
func TestJournal(t *testing.T) {
	dir, j := begun(t)
	for i, a := range attempts(0.5, 0) {
		if err := j.add(entry{Elapsed: time.Duration(i+1) * time.Minute, Run: &a}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(j.add(entry{Note: "a note", Elapsed: time.Hour}), j.close()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, journalName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(whole, `{"report":0,"run":{"work`...), 0o600); err != nil {
		t.Fatal(err)
	}
	j, found, err := openJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := found.runs[stepKey{0, "one", "a", 1}]; len(got) != 2 || len(found.runs) != 1 || got[1].Attempt != 2 || got[0].foreign() != 0.5 {
		t.Errorf("got %+v, want two attempts", found.runs)
	}
	if found.elapsed != time.Hour || len(found.notes) != 1 || found.head.Book.Command != "myriad bench test" {
		t.Errorf("got %v, %q, %+v", found.elapsed, found.notes, found.head.Book)
	}
	o, err := found.head.options(dir, Options{Self: "self"})
	if err != nil || o.Only.String() != "one/" || o.Trace != nil || o.Repeats != 3 || o.Self != "self" || o.Dir != dir {
		t.Errorf("got %+v, %v", o, err)
	}
	if err := errors.Join(j.add(entry{Note: "more"}), j.close()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got[:len(whole)], whole) || !bytes.HasSuffix(got, []byte(`"note":"more"}`+"\n")) {
		t.Errorf("got %s, %v, want it to go on where it was cut off", got[len(whole):], err)
	}
}

// TestJournalCut is cut off at every byte: what there is of whole lines is read.
func TestJournalCut(t *testing.T) {
	var all bytes.Buffer
	dir, j := begun(t)
	a := attempt(0)
	if err := j.add(entry{Run: &a}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, journalName))
	if err != nil {
		t.Fatal(err)
	}
	all.Write(text)
	head := bytes.IndexByte(text, '\n') + 1
	for n := range len(text) + 1 {
		found, err := readJournal(bytes.NewReader(text[:n]), maxEntry, maxJournal)
		switch {
		case n < head:
			if err == nil || !strings.Contains(err.Error(), "no whole line") {
				t.Fatalf("%d bytes: got %v", n, err)
			}
		case err != nil:
			t.Fatalf("%d bytes: got %v", n, err)
		case n < len(text) && (len(found.runs) != 0 || found.whole != int64(head)), n == len(text) && len(found.runs) != 1:
			t.Fatalf("%d of %d bytes: got %+v", n, len(text), found.runs)
		}
	}
}

// TestJournalBounds reaches the bounds, when it is written and when it is read.
func TestJournalBounds(t *testing.T) {
	_, j := begun(t)
	j.most = 100
	if err := j.add(entry{Note: strings.Repeat("x", 100)}); err == nil || !strings.Contains(err.Error(), "expected lines of up to 100 bytes") {
		t.Errorf("a long line: got %v", err)
	}
	j.mostAll = j.size + 50
	if err := j.add(entry{Note: "x"}); err != nil {
		t.Errorf("a line that fits: got %v", err)
	}
	if err := j.add(entry{Note: "x"}); err == nil {
		t.Error("a line beyond the bound: got no error")
	}
	for text, want := range map[string]string{
		strings.Repeat("x", 101):                                                    "line 1: more than 100 bytes",
		strings.Repeat("x\n", 1) + "y\n":                                            `line 1: format ""; expected "myriad-journal-1"`,
		`{"format":"other"}` + "\n":                                                 `format "other"`,
		`{"format":"myriad-journal-1"}` + "\n":                                      "no plan",
		`{"format":"myriad-journal-1","book":{"reports":[null]}}` + "\n":            "an empty report",
		`{"format":"myriad-journal-1","book":{"reports":[{"scenario":{}}]}}` + "\n": "0 rounds",
	} {
		if _, err := readJournal(strings.NewReader(text), 100, 1000); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want %q", text, err, want)
		}
	}
	if _, err := readJournal(strings.NewReader(strings.Repeat("\n", 20)), 100, 10); err == nil {
		t.Error("a long journal: got no error")
	}
}

func TestJournalLines(t *testing.T) {
	dir, j := begun(t)
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, journalName)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"{\n":                               "line 2: unexpected end",
		`{"report":1}` + "\n":               "report 1; expected 0 to 0",
		`{"report":-1}` + "\n":              "report -1",
		fmt.Sprintf("%v\n", "\"a string\""): "line 2",
	} {
		if err := os.WriteFile(path, append(bytes.Clone(text), line...), 0o600); err != nil {
			t.Fatal(err)
		}
		var wrong ScenarioError
		if book, err := Resume(t.Context(), dir, Options{}); book != nil || !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", line, err, want)
		}
	}
}

func TestDirRefused(t *testing.T) {
	var wrong ScenarioError
	dir, j := begun(t)
	if runtime.GOOS == "linux" {
		if _, err := Resume(t.Context(), dir, Options{}); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "is in use") {
			t.Errorf("one that is being written: got %v", err)
		}
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	below := filepath.Join(file, "below")
	for dir, want := range map[string]string{file: "is a file, or below one; expected an empty directory", dir: "--resume", filepath.Dir(file): "is not empty", "a\nb": "without line ends"} {
		if b, err := RunAll(t.Context(), []Scenario{testScenario()}, Options{Dir: dir}); b != nil || !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", dir, err, want)
		}
	}
	if runtime.GOOS != "windows" { // there what is below a file does not exist, and no more is said
		if b, err := RunAll(t.Context(), []Scenario{testScenario()}, Options{Dir: below}); b != nil || !errors.As(err, &wrong) {
			t.Errorf("below a file: got %v", err)
		}
		for _, path := range []string{file, below} {
			if b, err := Resume(t.Context(), path, Options{}); b != nil || !errors.As(err, &wrong) || !strings.Contains(err.Error(), "is a file, or below one; expected the directory of a report") {
				t.Errorf("%s: got %v", path, err)
			}
		}
	}
	if b, err := Resume(t.Context(), t.TempDir(), Options{}); b != nil || !errors.As(err, &wrong) || !strings.Contains(err.Error(), "has no journal.jsonl") {
		t.Errorf("nothing to resume: got %v", err)
	}
}

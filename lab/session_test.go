package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// twoScenarios have four runs in all.
func twoScenarios() []Scenario {
	first, second := testScenario(), testScenario()
	first.Workloads, first.Subjects = first.Workloads[:1], first.Subjects[:1]
	second.Name, second.Rounds = "second", 1
	second.Workloads, second.Subjects = second.Workloads[:1], second.Subjects[:2]
	return []Scenario{first, second}
}

// orderOfRuns names the runs of a book.
func orderOfRuns(b *Book) (names []string) {
	for _, r := range b.Reports {
		for _, run := range r.Runs {
			names = append(names, fmt.Sprint(r.Scenario.Name, " ", run.Workload, run.Round, " ", run.Subject, run.Attempt))
		}
	}
	return names
}

var twoInOrder = []string{"test one1 a1", "test one2 a1", "second one1 a1", "second one1 b1"}

// TestResume cuts a journal off, on another machine, and has the rest made.
func TestResume(t *testing.T) {
	o := children(t)
	o.Dir = filepath.Join(t.TempDir(), "out")
	t.Setenv("TMPDIR", t.TempDir())
	made, err := RunAll(t.Context(), twoScenarios(), o)
	if err != nil || !slices.Equal(orderOfRuns(made), twoInOrder) || made.Failed() > 0 {
		t.Fatalf("got %q, %v, want %q", orderOfRuns(made), err, twoInOrder)
	}
	path := filepath.Join(o.Dir, journalName)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	if len(lines) != 6 || len(lines[5]) != 0 {
		t.Fatalf("got %d lines, want a head and four runs", len(lines)-1)
	}
	cpus := fmt.Sprintf(`"cpus":%d`, made.Machine.CPUs)
	head := bytes.Replace(lines[0], []byte(cpus), []byte(`"cpus":1000`), 1)
	cut := bytes.Join([][]byte{head, lines[1], lines[2], lines[3], lines[4][:50]}, nil)
	if err := os.WriteFile(path, cut, 0o600); err != nil {
		t.Fatal(err)
	}
	var kept entry // the last one
	if err := json.Unmarshal(lines[3], &kept); err != nil || kept.Elapsed <= 0 {
		t.Fatalf("got %s, %v, want how long it took so far", lines[3], err)
	}
	book, err := Resume(t.Context(), o.Dir, Options{Self: o.Self})
	if err != nil || !slices.Equal(orderOfRuns(book), twoInOrder) || book.Failed() > 0 {
		t.Fatalf("got %q, %v, want %q", orderOfRuns(book), err, twoInOrder)
	}
	for i := range 2 {
		if got, want := book.Reports[i].Runs[0].Started, made.Reports[i].Runs[0].Started; !got.Equal(want) {
			t.Errorf("report %d: the first run was made again", i)
		}
	}
	if !book.Reports[1].Runs[1].Started.After(made.Reports[1].Runs[1].Started) {
		t.Error("the last run was not made")
	}
	if got, want := book.Reports[0].Date, made.Reports[0].Runs[0].Started; !got.Equal(want) {
		t.Errorf("the first report is of %v, want %v, when its first run began", got, want)
	}
	if book.Took <= 0 || len(book.Notes) != 2 || !strings.Contains(book.Notes[0], "after 3 of 4 steps") || !strings.Contains(book.Notes[1], "another machine") {
		t.Errorf("it took %v, notes %q", book.Took, book.Notes)
	}
	var said strings.Builder
	again, err := Resume(t.Context(), o.Dir, Options{Self: "/does/not/exist", Progress: &said})
	if err != nil || !slices.Equal(orderOfRuns(again), twoInOrder) || !slices.Equal(again.Notes, book.Notes) || again.Took <= kept.Elapsed {
		t.Errorf("nothing missing: got %q, %q, %v, %v", orderOfRuns(again), again.Notes, again.Took, err)
	}
	if said.String() != "nothing is left to do: all 4 runs are in "+o.Dir+"\n" {
		t.Errorf("nothing missing: it said %q", said.String())
	}
	checkEmpty(t)
}

// TestRunAllInterrupted ends before the first run: the plan is there, and is resumed.
func TestRunAllInterrupted(t *testing.T) {
	o := children(t)
	o.Dir = filepath.Join(t.TempDir(), "out")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var said strings.Builder
	o.Progress = &said
	book, err := RunAll(ctx, twoScenarios(), o)
	if want := "interrupted in run 1 of 4; myriad bench --resume " + o.Dir + " finishes the rest"; !errors.Is(err, context.Canceled) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if book.Runs() != 0 || len(book.Notes) != 1 || len(bookIn(t, o.Dir).Reports) != 2 {
		t.Errorf("got %d runs, %q", book.Runs(), book.Notes)
	}
	if want := "report in " + o.Dir + "\n"; said.String() != want {
		t.Errorf("it said %q, want %q", said.String(), want)
	}
	o.Progress = nil
	if book, err = Resume(t.Context(), o.Dir, o); err != nil || !slices.Equal(orderOfRuns(book), twoInOrder) {
		t.Errorf("got %q, %v", orderOfRuns(book), err)
	}
}

// TestRunAllOnly leaves out the scenarios of which nothing is asked for.
func TestRunAllOnly(t *testing.T) {
	o := children(t)
	o.Only = regexp.MustCompile("/b$")
	book, err := RunAll(t.Context(), twoScenarios(), o)
	if err != nil || !slices.Equal(orderOfRuns(book), twoInOrder[3:]) {
		t.Errorf("got %v, want %q", err, twoInOrder[3:])
	}
	var wrong ScenarioError
	if book, err := RunAll(t.Context(), nil, o); book != nil || !errors.As(err, &wrong) {
		t.Errorf("no scenario: got %v", err)
	}
}

// TestStepRepeats has the attempts of a step that the journal has be taken over, and
// another made.
func TestStepRepeats(t *testing.T) {
	o := children(t)
	o.Repeats = 1
	all := twoScenarios()[:1]
	all[0].Rounds = 8 // so that a quarter of the time is enough for one more
	b, err := newBook(all, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSession(b, o)
	if err != nil {
		t.Fatal(err)
	}
	noisy := attempts(1e6) // noisier than any machine is
	s.found.runs = map[stepKey][]RunRecord{{0, "one", "a", 1}: noisy, {0, "one", "a", 2}: append(attempts(0.5), attempts(0.3)...)}
	s.launcher = newLauncher()
	defer s.launcher.close()
	s.self = o.Self
	for i := range 2 {
		if err := s.step(t.Context(), i, 0, s.plans[0][i]); err != nil {
			t.Fatal(err)
		}
	}
	runs := b.Reports[0].Runs
	if len(runs) != 4 || runs[1].Attempt != 2 || runs[1].Error != "" || !runs[0].Superseded || runs[1].Superseded || !runs[2].Superseded || runs[3].Superseded {
		t.Errorf("got %+v, want one attempt of two count", runs)
	}
}

package lab

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCapture has a trace and a profile taken of the server that shows its figures.
func TestCapture(t *testing.T) {
	o := children(t)
	o.Dir = filepath.Join(t.TempDir(), "out")
	o.Trace, o.Profile = regexp.MustCompile("one/"), regexp.MustCompile("/shows$")
	s := testScenario()
	shows := acting("shows", "plain")
	shows.Command = append(shows.Command, "", "", "", "{admin}")
	s.Subjects = []Subject{shows, acting("mute", "plain")}
	s.Rounds, s.Workloads = 1, s.Workloads[:1]
	report, err := Run(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	r := report.Runs[0]
	if want := []string{"captured/test-one-shows-1.pprof", "captured/test-one-shows-1.trace"}; r.Error != "" || !slices.Equal(r.Captured, want) {
		t.Fatalf("got %q, %q, %v, want %q", r.Captured, r.Error, r.Marks, want)
	}
	for _, name := range r.Captured {
		if info, err := os.Stat(filepath.Join(o.Dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: got %v, want a file with something in it", name, err)
		}
	}
	const want = "a CPU profile of 1 s, a trace of 1 s: the figures are disturbed"
	if !slices.Contains(r.Marks, Mark{RuleCaptured, want}) {
		t.Errorf("got %v, want %q", r.Marks, want)
	}
	if mute := report.Runs[1]; mute.Captured != nil || slices.ContainsFunc(mute.Marks, func(m Mark) bool { return m.Rule == RuleCaptured }) {
		t.Errorf("mute: got %q, %v", mute.Captured, mute.Marks)
	}
	if !slices.Contains(report.Notes, "Not captured, for want of {admin} in the command or of a window: one/mute.") {
		t.Errorf("got %q", report.Notes)
	}
	bookIn(t, o.Dir)
	book, err := Resume(t.Context(), o.Dir, o)
	if err != nil || !slices.Equal(book.Reports[0].Notes, report.Notes) || !slices.Equal(book.Reports[0].Runs[0].Captured, r.Captured) {
		t.Errorf("resumed: got %v, %q, want %q", err, book.Reports[0].Notes, report.Notes)
	}
}

// TestCaptureFails has a server that says no: the run goes on, and says so.
func TestCaptureFails(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	dir := t.TempDir()
	s := step{workload: small("one"), subject: Subject{Name: "a", Command: []string{"{admin}"}}, round: 2, attempt: 3, scenario: "a/b"}
	rec := &RunRecord{}
	all := (&capture{dir: dir, trace: regexp.MustCompile(".")}).of(s, strings.TrimPrefix(server.URL, "http://"), rec)
	all.begin(t.Context())
	all.end()
	if all.name != "a_b-one-a-2-3" {
		t.Errorf("got %q", all.name)
	}
	if len(rec.Captured) > 0 || len(rec.Marks) != 1 || !strings.Contains(rec.Marks[0].Detail, "no trace: ") || !strings.Contains(rec.Marks[0].Detail, "404 Not Found") {
		t.Errorf("got %q, %v", rec.Captured, rec.Marks)
	}
	if left, err := os.ReadDir(filepath.Join(dir, capturedDir)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	for _, other := range []step{{workload: Workload{Name: "idle", Kind: Idle}, subject: s.subject}, {workload: s.workload, subject: acting("a", "plain")}} {
		if got := (&capture{dir: dir, trace: regexp.MustCompile(".")}).of(other, "", rec); got != nil {
			t.Errorf("%+v: got %+v, want nothing to be captured", other, got)
		}
	}
}

// TestDownload reaches the bound of a file.
func TestDownload(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, strings.Repeat("x", 100))
	}))
	defer server.Close()
	var got strings.Builder
	if err := download(t.Context(), server.URL, &got, 100); err != nil || got.Len() != 100 {
		t.Errorf("as much as may be: got %d bytes, %v", got.Len(), err)
	}
	if err := download(t.Context(), server.URL, io.Discard, 99); err == nil || !strings.Contains(err.Error(), "more than 99 bytes") {
		t.Errorf("more: got %v", err)
	}
	dir := t.TempDir()
	if err := writeFile(dir, "new", func(io.Writer) error { return errors.New("no") }); err == nil {
		t.Error("a file that could not be written: got no error")
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("a file that could not be written is there")
	}
}

package page

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func newTextPage() *Page {
	t := &Table{Caption: strings.Repeat("A long caption. ", 10)}
	t.AddRow("what", "figure", "remark")
	t.AddRow("one", "1.0", "first")
	t.AddRow("twenty", "20.0", "")
	return &Page{
		Title: "bench", Lead: "How fast?", Facts: [][2]string{{"machine", "a small one"}, {"Go", "1.26"}},
		Sections: []Section{{Title: "Größe", Lead: "What it is about.", Parts: []Part{
			{Text: "Some text\nof two lines."},
			{Remarks: []Remark{{Tone: Bad, Text: "failed: one\ntwo"}, {Text: "a note"}}},
			{Heading: "echo"}, {Table: t}, {Table: t},
			{Heading: "not drawn"}, {Chart: &Chart{Title: "not drawn"}},
		}}, {Title: "not drawn", Parts: []Part{{Chart: &Chart{}}}}},
	}
}

func TestWriteText(t *testing.T) {
	var b strings.Builder
	if err := newTextPage().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	for _, want := range []string{
		"bench: How fast?\n\n  machine  a small one\n  Go       1.26\n",
		"\nGröße\n=====\n  What it is about.\n",
		"\n  Some text of two lines.\n",
		"    failed: one\n      two\n    a note\n",
		"\necho\n  A long caption.",
		"  what    figure  remark\n  one        1.0  first\n  twenty    20.0\n\n  A long caption.",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "not drawn") {
		t.Errorf("a chart in\n%s", got)
	}
	if err := newTextPage().WriteText(failingWriter{}); err == nil {
		t.Error("written to what takes nothing")
	}
	for line := range strings.Lines(got) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > textWidth {
			t.Errorf("%d characters: %s", n, line)
		}
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("full") }

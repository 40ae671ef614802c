package lab

import (
	"bytes"
	"strings"
	"testing"
)

func TestReadBook(t *testing.T) {
	var out bytes.Buffer
	b := bookOf(map[string][]float64{"net": {1, 2}})
	if err := b.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	if !IsBook([]byte(text[:200])) {
		t.Errorf("%q is not a book", text[:200])
	}
	got, err := ReadBook(strings.NewReader(text))
	if err != nil || got.Runs() != 2 || got.Reports[0].Runs[1].Throughput.TPS != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := readBookUpTo(strings.NewReader(text), int64(len(text))); err != nil {
		t.Errorf("as large as it may be: %v", err)
	}
	if _, err := readBookUpTo(strings.NewReader(text), 100); err == nil || !strings.Contains(err.Error(), "more than 100 bytes") {
		t.Errorf("too large: got %v", err)
	}
	for in, want := range map[string]string{
		"":                             "expected the report.json",
		text[:300]:                     "unexpected EOF",
		text + "{}":                    "something follows",
		`{"format": "myriad-bench-9"}`: `format "myriad-bench-9"; expected "myriad-bench-1"`,
		`{"format": 1}`:                "expected the report.json",
		`{"format": "myriad-bench-1", "reports": [null]}`: "a report is null",
	} {
		if _, err := ReadBook(strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got %v, want an error with %q", in, err, want)
		}
	}
}

func TestIsBook(t *testing.T) {
	for in, want := range map[string]bool{
		`{"format": "myriad-bench-1", "reports": [`:                true,
		`{"command": "x", "machine": {"format": 1}, "format": "y"`: true, // sorted by somebody
		`{"phase":"began","snapshot":{"open":0}}`:                  false,
		`{"machine": {"format": "x"}}`:                             false,
		`{"machine": {"cut`:                                        false,
		`["format"]`:                                               false,
		"":                                                         false,
		"format":                                                   false,
	} {
		if got := IsBook([]byte(in)); got != want {
			t.Errorf("%s: got %v", in, got)
		}
	}
}

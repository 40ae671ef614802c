package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

func TestReadAndWrite(t *testing.T) {
	s := &Set{Format: Format, Reports: []*Report{{Runs: []Run{
		{Workload: "w", Figures: map[string]float64{"tps": 1}, Error: "first\nsecond"},
		{Workload: "w", Skipped: "x"},
	}, Verdicts: []Verdict{{Failed: true}}}}}
	var b bytes.Buffer
	testkit.RequireNoError(t, s.WriteJSON(&b))
	if !BeginsLikeSet(b.Bytes()[:20]) || BeginsLikeSet([]byte(`{"phase": "began"}`)) {
		t.Error("a set is not told from a load")
	}
	got, err := ReadSet(bytes.NewReader(b.Bytes()))
	if err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("got %+v, %v, want %+v", got, err, s)
	}
	if runs, claims := s.CountFailedRunsAndClaims(); runs != 1 || claims != 1 || s.CountRuns() != 2 || s.Reports[0].Runs[0].FirstErrorLine() != "first" {
		t.Errorf("%d runs and %d claims failed, of %d", runs, claims, s.CountRuns())
	}
	for text, says := range map[string]string{
		"x": "expected the report.json of a bench", `{"format": "y"}`: `format is "y"; expected`, `{"format": "` + Format + `"} 1`: "data after the report",
		`{"format": "` + Format + `", "reports": [null]}`: "a report in the file is null",
	} {
		_, err := ReadSet(strings.NewReader(text))
		testkit.ExpectError(t, text, err, says)
	}
	if m := (Machine{OS: "linux", CPUs: 2, Memory: 3 << 30, Go: "go1"}); m.String() != "2 CPUs; 3.0 GiB; linux; go1" {
		t.Errorf("the machine is %q", m)
	}
	if p := (Pinning{Server: []int{0, 1}, Load: []int{2}}); p.String() != "server on CPU 0,1, load on CPU 2" {
		t.Errorf("the pinning is %q", p)
	}
	if _, err := json.Marshal(DescribeThisMachine()); err != nil {
		t.Error(err)
	}
}

// A report that was written before figures, options of scenarios and fields were removed is read.
func TestReadRecorded(t *testing.T) {
	s, err := ReadSet(strings.NewReader(`{"format": "` + Format + `", "notes": ["Interrupted."], "reports": [{
		"scenario": {"claims": [{"against": ["tps"]}], "published": [{"rows": [{"workload": "w", "else": ["v"]}]}]},
		"runs": [{"figures": {"pss": 1}, "jobs": {"shape": "cpu", "load": "1x", "rate": 5, "warm_up": 7},
			"samples": [{"server": {"user": 1, "system": 2, "rss": 3, "pss": 4, "anonymous": 5, "processes": 6, "sockets": 7, "voluntary": 8}}]}]}]}`))
	testkit.RequireNoError(t, err)
	side, run := &s.Reports[0].Runs[0].Samples[0].Server, s.Reports[0].Runs[0]
	if side.CPU() != 3 || side.RSS != 3 || side.PSS != 4 || side.Anonymous != 5 || side.Processes != 6 || side.Sockets != 7 || side.Voluntary != 8 || run.Jobs.Rate != 5 {
		t.Errorf("got %+v", run)
	}
}

// A file is written at once, or not at all.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	write := func(text string, err error) error {
		return WriteFileAtomically(dir, "f", func(w io.Writer) error { io.WriteString(w, text); return err })
	}
	testkit.RequireNoError(t, write("one", nil))
	if err := write("two", errors.New("broken")); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("got %v, want what was broken", err)
	}
	text, _ := os.ReadFile(filepath.Join(dir, "f"))
	names, _ := os.ReadDir(dir)
	if string(text) != "one" || len(names) != 1 {
		t.Errorf("got %q and %d files, want the first one only", text, len(names))
	}
}

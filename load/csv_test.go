package load

import (
	"bytes"
	"encoding/csv"
	"errors"
	"os"
	"testing"
	"time"
)

// TestWriteCSV compares the table of testdata/stream.jsonl with
// testdata/stream.csv.
func TestWriteCSV(t *testing.T) {
	file, err := os.Open("testdata/stream.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s, err := ReadStream(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/stream.csv")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := s.WriteCSV(&got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("got\n%s\nwant\n%s", got.Bytes(), want)
	}
}

// Texts of the stream stay in their fields, whatever they are.
func TestCSVQuotes(t *testing.T) {
	const cause = "a \"quoted\", odd\ncause"
	s := Stream{Intervals: []Interval{{To: time.Second, Stage: "win,dow", Errors: map[string]int64{cause: 2}}}}
	var b bytes.Buffer
	if err := s.WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&b).ReadAll()
	if err != nil || len(rows) != 2 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	fields := make(map[string]string)
	for i, name := range rows[0] {
		fields[name] = rows[1][i]
	}
	for name, want := range map[string]string{"causes": "2 × " + cause, "stage": "win,dow", "errors": "2", "p99_us": "", "server_cpu_s": "", "count": "0"} {
		if got, ok := fields[name]; got != want || !ok {
			t.Errorf("%s: got %q, %v; want %q", name, got, ok, want)
		}
	}
	if len(fields) != len(csvColumns) {
		t.Errorf("%d names of %d csvColumns; expected each to be different", len(fields), len(csvColumns))
	}
}

func TestCSVWriteError(t *testing.T) {
	s := Stream{Intervals: make([]Interval, 1000)}
	if err := s.WriteCSV(fullDisk{}); err == nil {
		t.Error("a full disk is no error")
	}
}

// fullDisk is a disk that is full.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("full") }

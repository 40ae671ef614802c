package load

import (
	"bytes"
	"errors"
	"os"
	"testing"
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

func TestCSVWriteError(t *testing.T) {
	s := Stream{Intervals: make([]Interval, 1000)}
	if err := s.WriteCSV(fullDisk{}); err == nil {
		t.Error("a full disk is no error")
	}
}

// fullDisk is a disk that is full.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("full") }

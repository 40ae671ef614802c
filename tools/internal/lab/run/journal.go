package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// The journal of a set is a file in its directory, of JSON values, a line each: the head,
// which is the set without a run and the options, then an entry for each run as soon as it has
// ended. Each line is on the disk before the next run begins, so that whatever ends the lab
// costs the run that is under way, and nothing else.

const (
	journalName   = "journal.jsonl"
	journalFormat = "myriad-journal-2"
	maxJournal    = 1 << 30 // bytes
)

// head is the first line.
type head struct {
	Format string      `json:"format"`
	Set    *result.Set `json:"set"`
	Only   string      `json:"only,omitempty"`
}

// entry is a line after it: a run of a report, or a note of the set.
type entry struct {
	Report int `json:"report"`
	// Elapsed is the time that the sessions so far have taken.
	Elapsed time.Duration `json:"elapsed"`
	Run     *result.Run   `json:"run,omitempty"`
	Note    string        `json:"note,omitempty"`
}

// journal is a journal that is written to. A nil one keeps nothing.
type journal struct {
	f    *os.File
	size int64 // bytes so far
}

// checkDir returns an Error when a directory can't become that of a report.
func checkDir(dir string) error {
	if strings.ContainsAny(dir, "\r\n") {
		return scenario.Errorf("directory %q; expected a name without line ends", dir)
	}
	names, err := os.ReadDir(dir)
	switch {
	case isFile(dir):
		return scenario.Errorf("%s is a file, or below one; expected an empty directory, or one that does not exist yet", dir)
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("cannot write the report: %w", err)
	case len(names) == 0:
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, journalName)); err == nil {
		return scenario.Errorf("directory %s has a report; expected an empty one, or one that does not exist yet: "+
			"\"myriad bench --resume %s\" finishes a report that was interrupted", dir, dir)
	}
	return scenario.Errorf("directory %s is not empty; expected an empty one, or one that does not exist yet", dir)
}

// isFile says whether a path is that of a file, or below one.
func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir() || errors.Is(err, syscall.ENOTDIR)
}

// createJournal makes the directory, which has to be empty, and the journal in it.
func createJournal(dir string, h head) (*journal, error) {
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	h.Format = journalFormat
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("cannot write the report: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, journalName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, fmt.Errorf("cannot write the report: %w", err)
	}
	j := &journal{f: f}
	if err := errors.Join(lockFile(f), j.write(h)); err != nil {
		return nil, errors.Join(err, j.close())
	}
	return j, nil
}

// write writes a line. It is on the disk when write returns.
func (j *journal) write(line any) error {
	if j == nil {
		return nil
	}
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if j.size += int64(len(b)); j.size > maxJournal {
		return fmt.Errorf("the journal would have %d bytes; expected up to %d", j.size, maxJournal)
	}
	if _, err = j.f.Write(b); err == nil {
		err = j.f.Sync()
	}
	if err != nil {
		return fmt.Errorf("cannot write the journal: %w", err)
	}
	return nil
}

func (j *journal) close() error {
	if j == nil {
		return nil
	}
	return j.f.Close()
}

// found is what a journal says.
type found struct {
	head    head
	runs    map[stepKey]result.Run
	notes   []string
	elapsed time.Duration
	whole   int64 // bytes of the lines that are whole
}

// stepKey names a step of a set.
type stepKey struct {
	report            int
	workload, subject string
	round             int
}

// openJournal reads the journal of a directory and opens it, for what is still to come. A last
// line that was cut off is dropped. The caller has to close it.
func openJournal(dir string) (*journal, *found, error) {
	path := filepath.Join(dir, journalName)
	const expected = "expected the directory of a report that \"myriad bench --out DIR\" has begun"
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil, scenario.Errorf("%s has no %s; %s", dir, journalName, expected)
	case err != nil && isFile(dir):
		return nil, nil, scenario.Errorf("%s is a file, or below one; %s", dir, expected)
	case err != nil:
		return nil, nil, fmt.Errorf("cannot resume: %w", err)
	}
	j := &journal{f: f}
	if err := lockFile(f); err != nil {
		return nil, nil, errors.Join(scenario.Errorf("%s is in use: %v; expected that the bench that writes it has ended", path, err), j.close())
	}
	seen, err := readJournal(f)
	if err != nil {
		return nil, nil, errors.Join(scenario.Errorf("%s: %v", path, err), j.close())
	}
	j.size = seen.whole + 1
	err = f.Truncate(seen.whole)
	if err == nil {
		_, err = f.WriteAt([]byte("\n"), seen.whole)
	}
	if err == nil {
		_, err = f.Seek(j.size, io.SeekStart)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("cannot resume: %w", err), j.close())
	}
	return j, seen, nil
}

// readJournal reads a journal. What there is of a last line that was cut off is left out.
func readJournal(in io.Reader) (*found, error) {
	limited := &io.LimitedReader{R: in, N: maxJournal + 1}
	values := json.NewDecoder(limited)
	f := &found{runs: make(map[stepKey]result.Run)}
	for n := 1; ; n++ {
		var err error
		if n == 1 {
			if err = values.Decode(&f.head); err == nil {
				err = f.head.check()
			}
		} else {
			var e entry
			if err = values.Decode(&e); err == nil {
				err = f.add(&e)
			}
		}
		switch {
		case limited.N == 0:
			return nil, fmt.Errorf("more than %d bytes; expected a journal of \"myriad bench\"", maxJournal)
		case n == 1 && errors.Is(err, io.EOF), n == 1 && errors.Is(err, io.ErrUnexpectedEOF):
			return nil, errors.New("there is no whole line; expected the plan of a report: it ended before its first run, so begin again with another directory")
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return f, nil
		case err != nil:
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		f.whole = values.InputOffset()
	}
}

// check says what is wrong with the first line.
func (h *head) check() error {
	if h.Format != journalFormat {
		return fmt.Errorf("format %q; expected %q: another version of Myriad has written it, or another program", h.Format, journalFormat)
	}
	if h.Set == nil || len(h.Set.Reports) == 0 || slices.Contains(h.Set.Reports, nil) {
		return errors.New("no plan; expected a scenario at least")
	}
	for _, r := range h.Set.Reports {
		if err := r.Scenario.Check(); err != nil {
			return err
		}
	}
	return nil
}

// add takes a line after the first.
func (f *found) add(e *entry) error {
	if e.Report < 0 || e.Report >= len(f.head.Set.Reports) {
		return fmt.Errorf("report %d; expected 0 to %d", e.Report, len(f.head.Set.Reports)-1)
	}
	f.elapsed = e.Elapsed
	if e.Note != "" {
		f.notes = append(f.notes, e.Note)
	}
	if e.Run != nil {
		f.runs[stepKey{e.Report, e.Run.Workload, e.Run.Subject, e.Run.Round}] = *e.Run
	}
	return nil
}

// only is Options.Only that the set was begun with.
func (h *head) only(dir string) (*regexp.Regexp, error) {
	if h.Only == "" {
		return nil, nil
	}
	only, err := regexp.Compile(h.Only)
	if err != nil {
		return nil, scenario.Errorf("%s: %v", filepath.Join(dir, journalName), err)
	}
	return only, nil
}

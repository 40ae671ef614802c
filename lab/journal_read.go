package lab

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// foundJournal is what a journal says.
type foundJournal struct {
	head    journalHead
	runs    map[stepKey][]RunRecord // attempts, in their order
	notes   []string
	elapsed time.Duration
	whole   int64 // bytes of the lines that are whole
}

// stepKey names a step of a book.
type stepKey struct {
	report            int
	workload, subject string
	round             int
}

func keyOf(report int, s step) stepKey {
	return stepKey{report, s.workload.Name, s.subject.Name, s.round}
}

// openJournal reads the journal of a directory and opens it, for what is still to come. A
// last line that was cut off is dropped. The caller has to close it.
func openJournal(dir string) (*journal, *foundJournal, error) {
	path := filepath.Join(dir, journalName)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, wrong("%s has no %s; expected the directory of a report that \"myriad bench --out DIR\" has begun", dir, journalName)
	}
	if err != nil && isFile(dir) {
		return nil, nil, wrong("%s is a file, or below one; expected the directory of a report that \"myriad bench --out DIR\" has begun", dir)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot resume: %w", err)
	}
	j := &journal{f: f, most: maxEntry, mostAll: maxJournal}
	if err := lockFile(f); err != nil {
		return nil, nil, errors.Join(wrong("%s is in use: %v; expected that the bench that writes it has ended", path, err), j.close())
	}
	found, err := readJournal(f, j.most, j.mostAll)
	if err != nil {
		return nil, nil, errors.Join(wrong("%s: %v", path, err), j.close())
	}
	j.size = found.whole
	_, err = f.Seek(found.whole, io.SeekStart)
	if err = errors.Join(err, f.Truncate(found.whole)); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("cannot resume: %w", err), j.close())
	}
	return j, found, nil
}

// readJournal reads a journal of at most mostAll bytes, with lines of at most most.
func readJournal(in io.Reader, most, mostAll int64) (*foundJournal, error) {
	found := &foundJournal{runs: make(map[stepKey][]RunRecord)}
	all := &io.LimitedReader{R: in, N: mostAll + 1}
	lines := bufio.NewReader(all)
	for n := 1; ; n++ {
		line, err := readLine(lines, most)
		if all.N == 0 {
			return nil, fmt.Errorf("more than %d bytes; expected a journal of \"myriad bench\"", mostAll)
		}
		if errors.Is(err, io.EOF) {
			break // what there is of a line was cut off
		}
		if err == nil {
			err = found.take(n, line)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		found.whole += int64(len(line))
	}
	if found.whole == 0 {
		return nil, errors.New("there is no whole line; expected the plan of a report: it ended before its first run, so begin again with another directory")
	}
	return found, nil
}

// readLine reads a line with its end, which has to be there.
func readLine(r *bufio.Reader, most int64) ([]byte, error) {
	var line []byte
	for {
		piece, err := r.ReadSlice('\n')
		if int64(len(line)+len(piece)) > most {
			return nil, fmt.Errorf("more than %d bytes; expected a line of a journal", most)
		}
		line = append(line, piece...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// take takes line n over.
func (f *foundJournal) take(n int, line []byte) error {
	if n == 1 {
		return f.takeHead(line)
	}
	var e entry
	if err := json.Unmarshal(line, &e); err != nil {
		return err
	}
	if e.Report < 0 || e.Report >= len(f.head.Book.Reports) {
		return fmt.Errorf("report %d; expected 0 to %d", e.Report, len(f.head.Book.Reports)-1)
	}
	f.elapsed = e.Elapsed
	if e.Note != "" {
		f.notes = append(f.notes, e.Note)
	}
	if e.Run != nil {
		key := stepKey{e.Report, e.Run.Workload, e.Run.Subject, e.Run.Round}
		f.runs[key] = append(f.runs[key], *e.Run)
	}
	return nil
}

func (f *foundJournal) takeHead(line []byte) error {
	var is struct{ Format string }
	if err := json.Unmarshal(line, &is); err != nil || is.Format != journalFormat {
		return fmt.Errorf("format %q; expected %q: another version of Myriad has written it, or another program", is.Format, journalFormat)
	}
	if err := json.Unmarshal(line, &f.head); err != nil {
		return err
	}
	if f.head.Book == nil || len(f.head.Book.Reports) == 0 {
		return errors.New("no plan; expected a report at least")
	}
	for _, r := range f.head.Book.Reports {
		if r == nil {
			return errors.New("an empty report; expected a scenario")
		}
		if err := r.Scenario.check(); err != nil {
			return err
		}
	}
	return nil
}

// options are those that the book was begun with. Progress and Self are of o.
func (h *journalHead) options(dir string, o Options) (Options, error) {
	begun := Options{Dir: dir, Repeats: h.Repeats, Progress: o.Progress, Self: o.Self}
	for _, one := range []struct {
		text string
		to   **regexp.Regexp
	}{{h.Only, &begun.Only}, {h.Trace, &begun.Trace}, {h.Profile, &begun.Profile}} {
		if one.text == "" {
			continue
		}
		expression, err := regexp.Compile(one.text)
		if err != nil {
			return begun, wrong("%s: %v", filepath.Join(dir, journalName), err)
		}
		*one.to = expression
	}
	return begun, nil
}

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The journal of a book is a file in its directory, of JSON values, a line each: the head,
// which is the book without a run and the options, then an entry for each run as soon as
// it has ended. Each line is on the disk before the next run begins, so that whatever ends
// the lab costs the run that is under way, and nothing else.

const (
	journalName   = "journal.jsonl"
	journalFormat = "myriad-journal-1"
	// maxEntry bounds a line of a journal, and maxJournal the whole of it, in bytes: when
	// it is written and when it is read.
	maxEntry   = 64 << 20
	maxJournal = 1 << 30
)

// journalHead is the first line.
type journalHead struct {
	Format  string `json:"format"`
	Book    *Book  `json:"book"`
	Only    string `json:"only,omitempty"`
	Trace   string `json:"trace,omitempty"`
	Profile string `json:"profile,omitempty"`
	Repeats int    `json:"repeats,omitempty"`
}

// entry is a line after it: a run of a report, or a note of the book.
type entry struct {
	Report int `json:"report"`
	// Elapsed is the time that the sessions so far have taken.
	Elapsed time.Duration `json:"elapsed"`
	Run     *RunRecord    `json:"run,omitempty"`
	Note    string        `json:"note,omitempty"`
}

// journal is a journal that is written to. A nil one keeps nothing.
type journal struct {
	f    *os.File
	size int64 // bytes so far
	// maxEntry and maxJournal, but for tests
	most, mostAll int64
}

// headOf is the head for a book that is made with these options.
func headOf(b *Book, o Options) journalHead {
	head := journalHead{Format: journalFormat, Book: b, Repeats: o.Repeats}
	if o.Only != nil {
		head.Only = o.Only.String()
	}
	if o.Trace != nil {
		head.Trace = o.Trace.String()
	}
	if o.Profile != nil {
		head.Profile = o.Profile.String()
	}
	return head
}

// checkDir returns a ScenarioError when a directory can't become that of a report.
func checkDir(dir string) error {
	if strings.ContainsAny(dir, "\r\n") {
		return wrong("directory %q; expected a name without line ends", dir)
	}
	names, err := os.ReadDir(dir)
	switch {
	case isFile(dir):
		return wrong("%s is a file, or below one; expected an empty directory, or one that does not exist yet", dir)
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("cannot write the report: %w", err)
	case len(names) == 0:
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, journalName)); err == nil {
		return wrong("directory %s has a report; expected an empty one, or one that does not exist yet: "+
			"\"myriad bench --resume %s\" finishes a report that was interrupted", dir, dir)
	}
	return wrong("directory %s is not empty; expected an empty one, or one that does not exist yet", dir)
}

// isFile says whether a path is that of a file, or below one.
func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir() || errors.Is(err, syscall.ENOTDIR)
}

// createJournal makes the directory and the journal in it.
func createJournal(dir string, head journalHead) (*journal, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("cannot write the report: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, journalName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, fmt.Errorf("cannot write the report: %w", err)
	}
	j := &journal{f: f, most: maxEntry, mostAll: maxJournal}
	if err := errors.Join(lockFile(f), j.write(head)); err != nil {
		return nil, errors.Join(err, j.close())
	}
	return j, nil
}

// add writes an entry. It is on the disk when add returns.
func (j *journal) add(e entry) error {
	if j == nil {
		return nil
	}
	return j.write(e)
}

func (j *journal) write(line any) error {
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	n := int64(len(b))
	if n > j.most || j.size+n > j.mostAll {
		return fmt.Errorf("the journal has %d bytes and %d were to follow; expected lines of up to %d bytes, %d in all",
			j.size, n, j.most, j.mostAll)
	}
	j.size += n
	_, err = j.f.Write(b)
	if err == nil {
		err = j.f.Sync()
	}
	if err != nil {
		return fmt.Errorf("cannot write the journal: %w", err)
	}
	return nil
}

func (j *journal) close() error { return j.f.Close() }

package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/myriad-go/myriad/internal/lab/result"
)

// reportFile is a file to report, of which the beginning was looked at.
type reportFile struct {
	name  string
	in    *bufio.Reader
	close func() error
	book  bool // of a bench; otherwise it is of a load
}

// expectedReport is what can be reported.
const expectedReport = "expected the report.json of a bench, or its directory, or the events of a load as --json writes them"

// openReported opens all files, which are of one kind. Of a directory it is report.json.
func openReported(stdin io.Reader, names []string) (all []reportFile, err error) {
	for _, name := range names {
		f := reportFile{name: name, close: func() error { return nil }}
		in := stdin
		if name != "-" {
			file, err := openPath(name)
			if err != nil {
				return all, err
			}
			in, f.close = file, file.Close
		}
		f.in = bufio.NewReader(in)
		beginning, err := f.in.Peek(4096)
		f.book = result.IsSet(beginning)
		all = append(all, f)
		switch {
		case err != nil && !errors.Is(err, io.EOF): // it comes again where it is read
		case len(beginning) == 0:
			return all, usagef("%s: it is empty; %s", name, expectedReport)
		case !f.book && !bytes.Contains(beginning, []byte(`"phase"`)):
			return all, usagef("%s: it is neither of a bench nor of a load; %s", name, expectedReport)
		}
		if f.book != all[0].book {
			return all, usagef("%s and %s: one is of a bench and one of a load; expected files of one kind", names[0], name)
		}
	}
	return all, nil
}

// openPath opens a file, or the report in a directory.
func openPath(name string) (*os.File, error) {
	path := name
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		path = filepath.Join(name, "report.json")
	}
	f, err := os.Open(path)
	if path != name && errors.Is(err, os.ErrNotExist) {
		return nil, usagef("%s has no report.json; %s", name, expectedReport)
	}
	if err != nil {
		return nil, usagef("%s: %w", path, errors.Unwrap(err)) // its name is said already
	}
	return f, nil
}

func closeReported(all []reportFile) {
	for _, f := range all {
		f.close() // it was only read
	}
}

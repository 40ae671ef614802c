package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/myriad-go/myriad/lab"
)

// reportFile is a file to report, of which the beginning was looked at.
type reportFile struct {
	name  string
	in    *bufio.Reader
	close func() error
	book  bool // of a bench; otherwise it is of a load
}

// openReported opens all files, which are of one kind.
func openReported(stdin io.Reader, names []string) (all []reportFile, err error) {
	for _, name := range names {
		f := reportFile{name: name, close: func() error { return nil }}
		in := stdin
		if name != "-" {
			file, err := os.Open(name)
			if err != nil {
				return all, fmt.Errorf("%s: %w", name, errors.Unwrap(err)) // its name is said already
			}
			in, f.close = file, file.Close
		}
		f.in = bufio.NewReader(in)
		beginning, _ := f.in.Peek(4096) // an error comes again where it is read
		f.book = lab.IsBook(beginning)
		all = append(all, f)
		if f.book != all[0].book {
			return all, usagef("%s and %s: one is of a bench and one of a load; expected files of one kind", names[0], name)
		}
	}
	return all, nil
}

func closeReported(all []reportFile) {
	for _, f := range all {
		f.close() // it was only read
	}
}

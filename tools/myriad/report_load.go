package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/tools/load"
)

type namedStream struct {
	name   string
	stream *load.Stream
}

// writeLoadReportAndVerdicts writes a report of the load run in files. If there are several files, it compares their
// runs or, with --merge, reports their runs as one. It then prints which expectations are met, and returns an error if
// one is not met.
func (f *reportFlags) writeLoadReportAndVerdicts(cmd *cobra.Command, files []reportFile) error {
	expectations, err := f.validateLoadFlags(len(files))
	if err != nil {
		return err
	}
	all, err := readStreams(files)
	if err != nil {
		return err
	}
	var names []string
	var streams []*load.Stream
	for _, r := range all {
		names, streams = append(names, r.name), append(streams, r.stream)
	}
	if f.merge {
		if all, err = mergeIntoOneStream(all); err != nil {
			return err
		}
	}
	write := func(w io.Writer) error {
		if len(all) > 1 {
			return load.WriteComparisonToFirst(w, names, streams)
		}
		return f.writeLoadInFormatOrText(w, all[0].stream, expectations)
	}
	if err := f.writeToOutFileOrStdout(cmd.OutOrStdout(), write); err != nil {
		return err
	}
	return checkExpectationsAndPrintVerdicts(cmd.ErrOrStderr(), all, expectations)
}

func (f *reportFlags) validateLoadFlags(fileCount int) ([]load.Expectation, error) {
	if f.merge && fileCount < 2 {
		return nil, usagef("--merge is given with one file; expected two or more")
	}
	if f.merge && f.format == "csv" {
		return nil, usagef("--format is csv with --merge; expected text, html or json, because merged results have no intervals")
	}
	if !f.merge && fileCount > 1 && f.format != "text" {
		return nil, usagef("--format is %s with %d files; expected one file, --merge, or --format text to compare them", f.format, fileCount)
	}
	return parseExpectations(f.expect)
}

func readStreams(files []reportFile) ([]namedStream, error) {
	var all []namedStream
	for _, f := range files {
		s, err := load.ReadStream(f.in)
		if err != nil {
			return nil, usagef("%s: %s", f.name, strings.TrimPrefix(err.Error(), "load: "))
		}
		all = append(all, namedStream{f.name, s})
	}
	return all, nil
}

func mergeIntoOneStream(all []namedStream) ([]namedStream, error) {
	var results []*load.Result
	for _, r := range all {
		if !r.stream.Complete() {
			return nil, usagef("%s has no final result; expected complete runs with --merge", r.name)
		}
		results = append(results, r.stream.Result)
	}
	merged, err := load.Merge(results...)
	if err != nil {
		return nil, usageError{err}
	}
	return []namedStream{{fmt.Sprintf("%d generators", len(all)), &load.Stream{Result: merged}}}, nil
}

func (f *reportFlags) writeLoadInFormatOrText(w io.Writer, s *load.Stream, htmlExpectations []load.Expectation) error {
	switch f.format {
	case "csv":
		return s.WriteCSV(w)
	case "html":
		return s.WriteHTML(w, htmlExpectations...)
	case "json":
		if !s.Complete() {
			return errors.New("the run has no final result to write as JSON; expected a complete run, or --format text, html or csv")
		}
		lines := json.NewEncoder(w)
		lines.SetIndent("", "  ")
		return lines.Encode(s.Result)
	}
	return s.WriteText(w)
}

// checkExpectationsAndPrintVerdicts prints a line for each expectation. It returns an error if one is not met.
func checkExpectationsAndPrintVerdicts(w io.Writer, all []namedStream, expectations []load.Expectation) error {
	failed := 0
	for _, r := range all {
		prefix := ""
		if len(all) > 1 {
			prefix = r.name + ": "
		}
		for _, e := range expectations {
			got, ok := e.Check(r.stream.Result)
			verdict := "ok  "
			if !ok {
				verdict = "FAIL"
				failed++
			}
			fmt.Fprintf(w, "%s%s %v: %s\n", prefix, verdict, e, got)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d expectations were not met", failed, len(all)*len(expectations))
	}
	return nil
}

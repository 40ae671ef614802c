package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/load"
)

// reportFormats are what a report can be written as.
var reportFormats = []string{"text", "csv", "html", "json"}

// maxReported bounds the streams of a comparison.
const maxReported = 64

// reportFlags are the flags of the command report.
type reportFlags struct {
	format string
	out    string
	expect []string
	merge  bool
}

// reported is a stream with its name.
type reported struct {
	name   string
	stream *load.Stream
}

func newReport() *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "report [flags] RESULTS.jsonl [MORE.jsonl...]",
		Short: "Write the results of a load again: as text, CSV, HTML or JSON; compare or merge several",
		Long: `Write the results of a load again, from the events that it wrote as JSON.

One file is reported as the run reported itself; "-" is standard input. CSV has a
row an interval, HTML is one page that needs nothing else, JSON is the result.
Two or more files are compared, side by side, with ratios to the first. With
--merge they are reported as one: generators that loaded a server together.

It exits with 1 if an expectation isn't met; --expect is a name, a comparison and
a bound, such as "p99<5ms", "rate>=100k" or "errors==0".`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.format, "format", "text", "write it as `FORMAT`: text, csv, html or json")
	flags.StringVar(&f.out, "out", "-", "write it to `FILE`; - is standard output")
	flags.StringArrayVar(&f.expect, "expect", nil, "fail unless this `EXPECTATION` is met, such as p99<5ms (repeatable)")
	flags.BoolVar(&f.merge, "merge", false, "report several generators that ran at the same time as one")
	return cmd
}

func (f *reportFlags) run(cmd *cobra.Command, files []string) error {
	expectations, err := f.check(files)
	if err != nil {
		return err
	}
	all, err := readReported(cmd.InOrStdin(), files)
	if err != nil {
		return err
	}
	if f.merge {
		if all, err = mergeReported(all); err != nil {
			return err
		}
	}
	if err := f.writeOut(cmd.OutOrStdout(), all); err != nil {
		return err
	}
	return checkReported(cmd.ErrOrStderr(), all, expectations)
}

// check says how the flags were wrong, before anything is read.
func (f *reportFlags) check(files []string) ([]load.Expectation, error) {
	if !slices.Contains(reportFormats, f.format) {
		return nil, usagef("--format is %q; expected one of %s", f.format, strings.Join(reportFormats, ", "))
	}
	if len(files) > maxReported {
		return nil, usagef("%d files; expected at most %d", len(files), maxReported)
	}
	if f.merge && len(files) < 2 {
		return nil, usagef("--merge of one file; expected two or more")
	}
	if !f.merge && len(files) > 1 && f.format != "text" {
		return nil, usagef("--format %s of %d files; expected one file, or --merge, or text, which compares them", f.format, len(files))
	}
	var all []load.Expectation
	for _, text := range f.expect {
		e, err := load.ParseExpectation(text)
		if err != nil {
			return nil, usagef("--expect: %s", strings.TrimPrefix(err.Error(), "load: "))
		}
		all = append(all, e)
	}
	return all, nil
}

// readReported reads the streams of all files.
func readReported(stdin io.Reader, files []string) ([]reported, error) {
	var all []reported
	for _, name := range files {
		s, err := readStream(stdin, name)
		if err != nil {
			return nil, fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "load: "))
		}
		all = append(all, reported{name, s})
	}
	return all, nil
}

func readStream(stdin io.Reader, name string) (*load.Stream, error) {
	if name == "-" {
		return load.ReadStream(stdin)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, errors.Unwrap(err) // its name is said already
	}
	defer file.Close()
	return load.ReadStream(file)
}

func mergeReported(all []reported) ([]reported, error) {
	var streams []*load.Stream
	for _, r := range all {
		streams = append(streams, r.stream)
	}
	s, err := load.MergeStreams(streams...)
	if err != nil {
		return nil, err
	}
	return []reported{{fmt.Sprintf("%d generators", len(all)), s}}, nil
}

// writeOut writes to standard output or to the file that was asked for, which
// isn't touched before the whole report is there.
func (f *reportFlags) writeOut(stdout io.Writer, all []reported) error {
	if f.out == "-" {
		return f.write(stdout, all)
	}
	var report bytes.Buffer
	if err := f.write(&report, all); err != nil {
		return err
	}
	if err := os.WriteFile(f.out, report.Bytes(), 0o644); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	return nil
}

func (f *reportFlags) write(w io.Writer, all []reported) error {
	if len(all) > 1 {
		var names []string
		var streams []*load.Stream
		for _, r := range all {
			names, streams = append(names, r.name), append(streams, r.stream)
		}
		return load.WriteComparison(w, names, streams)
	}
	s := all[0].stream
	switch f.format {
	case "csv":
		return s.WriteCSV(w)
	case "html":
		return s.WriteHTML(w)
	case "json":
		if !s.Complete() {
			return errors.New("the stream is cut off; expected a result to write as JSON")
		}
		lines := json.NewEncoder(w)
		lines.SetIndent("", "  ")
		return lines.Encode(s.Result)
	}
	return s.WriteText(w)
}

// checkReported writes a line for each expectation that isn't met.
func checkReported(w io.Writer, all []reported, expectations []load.Expectation) error {
	failed := 0
	for _, r := range all {
		prefix := ""
		if len(all) > 1 {
			prefix = r.name + ": "
		}
		for _, e := range expectations {
			if got, ok := e.Check(r.stream.Result); !ok {
				failed++
				fmt.Fprintf(w, "%sFAIL %v: %s\n", prefix, e, got)
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d expectations not met", failed, len(all)*len(expectations))
	}
	return nil
}

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/tools/internal/lab/result"
)

var (
	loadFormats  = []string{"text", "csv", "html", "json"}
	benchFormats = []string{"text", "html", "json", "benchstat"}
)

const maxReportFiles = 64

type reportFlags struct {
	format string
	out    string
	expect []string
	merge  bool
}

func newReportCommand() *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "report [flags] FILE|DIR [MORE...]",
		Short: "Convert the results of a load or bench, or compare several loads",
		Long: `Convert the results of a load or bench, or compare several loads.
The kind of a file is detected from its content; "-" is standard input, and a
directory that "bench" has written stands for its report.json.

The events of a load ("myriad load --json") are reported as the load itself reported
them. CSV has a row per interval, HTML is one self-contained page, and JSON is the final
result as one object. Two or more files are compared side by side as text, with ratios
to the first. --merge combines generators that loaded a server together, as text, HTML
or JSON. --expect is a name, a
comparison and a bound, such as "p99<5ms", "rate>=100k" or "errors==0". The exit status
is 1 if an expectation is not met.

The report.json of a bench is reported as the bench itself reported it; CSV is not available.
To compare two benches, write each with --format benchstat, one line per run, for
benchstat (golang.org/x/perf/cmd/benchstat):

  myriad report before --format benchstat --out before.txt
  myriad report after --format benchstat --out after.txt
  benchstat before.txt after.txt`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.openAndConvertReports(cmd, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.format, "format", "text", "output `FORMAT`: text, html, json, csv (loads only) or benchstat (benches only)")
	flags.StringVar(&f.out, "out", "-", "write to `FILE`; - is standard output")
	flags.StringArrayVar(&f.expect, "expect", nil, "fail unless this `EXPECTATION`, such as p99<5ms, errors==0 or rate>=10k, is met by each load, or by the result of --merge (repeatable)")
	flags.BoolVar(&f.merge, "merge", false, "combine the results of generators that ran at the same time into one result")
	return cmd
}

func (f *reportFlags) openAndConvertReports(cmd *cobra.Command, fileNames []string) error {
	if len(fileNames) > maxReportFiles {
		return usagef("%d files are given; expected at most %d", len(fileNames), maxReportFiles)
	}
	var files []reportFile
	for _, name := range fileNames {
		file, err := openReportAndDetectKind(cmd.InOrStdin(), name)
		if err != nil {
			return err
		}
		defer file.Close()
		files = append(files, file)
		if file.isBench != files[0].isBench {
			return usagef("%s and %s: one contains a bench and the other a load; expected files of one kind", fileNames[0], name)
		}
	}
	formats, report := loadFormats, f.writeLoadReportAndVerdicts
	if files[0].isBench {
		formats, report = benchFormats, f.writeSingleBenchReport
	}
	if !slices.Contains(formats, f.format) {
		return usagef("--format is %q; expected one of %s", f.format, strings.Join(formats, ", "))
	}
	return report(cmd, files)
}

type reportFile struct {
	io.Closer
	name    string
	in      *bufio.Reader
	isBench bool // otherwise of a load run
}

// expectedReport is the end of error messages about files that are not reports.
const expectedReport = "expected the report.json of a bench, its directory, or the events of a load as written by --json"

func openReportAndDetectKind(stdin io.Reader, name string) (f reportFile, err error) {
	in := io.NopCloser(stdin)
	if name != "-" {
		if in, err = openFileOrDirReport(name); err != nil {
			return f, err
		}
	}
	f = reportFile{Closer: in, name: name, in: bufio.NewReader(in)}
	beginning, err := f.in.Peek(4096)
	f.isBench = result.BeginsLikeSet(beginning)
	switch {
	case err != nil && !errors.Is(err, io.EOF): // the next read returns it again
	case len(beginning) == 0:
		in.Close()
		return f, usagef("%s: empty file; %s", name, expectedReport)
	case !f.isBench && !bytes.Contains(beginning, []byte(`"phase"`)):
		in.Close()
		return f, usagef("%s: neither a bench report nor the events of a load; %s", name, expectedReport)
	}
	return f, nil
}

// openFileOrDirReport opens a file, or the file report.json in a directory.
func openFileOrDirReport(name string) (io.ReadCloser, error) {
	path := name
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		path = filepath.Join(name, "report.json")
	}
	f, err := os.Open(path)
	if path != name && errors.Is(err, os.ErrNotExist) {
		return nil, usagef("%s has no report.json; %s", name, expectedReport)
	}
	if err != nil {
		return nil, usagef("%s: %w", path, errors.Unwrap(err)) // the message already contains the path
	}
	return f, nil
}

func (f *reportFlags) writeToOutFileOrStdout(stdout io.Writer, write func(io.Writer) error) error {
	if f.out == "-" {
		return write(stdout)
	}
	file, err := createAtomicFile(f.out)
	if err != nil {
		return usagef("--out: %w", err)
	}
	if err := file.commitUnlessFailed(write(file.temp)); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	return nil
}

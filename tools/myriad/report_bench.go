package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/tools/internal/lab/report"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
)

func (f *reportFlags) writeSingleBenchReport(cmd *cobra.Command, files []reportFile) error {
	switch {
	case f.merge || len(f.expect) > 0:
		return usagef("--merge or --expect is given with a bench report; expected the events of a load")
	case len(files) > 1:
		return usagef("%d bench reports; expected one (to compare two, write each with --format benchstat and run benchstat)", len(files))
	}
	set, err := result.ReadSet(files[0].in)
	if err != nil {
		return usagef("%s: %w", files[0].name, err)
	}
	if err := f.writeToOutFileOrStdout(cmd.OutOrStdout(), func(w io.Writer) error { return f.writeBenchInFormatOrText(w, set) }); err != nil {
		return err
	}
	if f.format == "benchstat" {
		printMissingOrInvalidRunCount(cmd.ErrOrStderr(), set)
	}
	return nil
}

// printMissingOrInvalidRunCount prints the number of runs that failed or were not made. If there are no such runs, it
// prints nothing.
func printMissingOrInvalidRunCount(w io.Writer, set *result.Set) {
	skipped := 0
	for _, r := range set.Reports {
		skipped += max(r.Planned-len(r.Runs), 0)
		for i := range r.Runs {
			if !r.Runs[i].IsValid() {
				skipped++
			}
		}
	}
	if skipped > 0 {
		fmt.Fprintf(w, "left out: %d runs that failed or were not made\n", skipped)
	}
}

func (f *reportFlags) writeBenchInFormatOrText(w io.Writer, set *result.Set) error {
	switch f.format {
	case "json":
		return set.WriteJSON(w)
	case "benchstat":
		return report.WriteBenchstat(w, set)
	case "html":
		p := report.NewReportPage(set)
		return p.WriteHTML(w)
	}
	return report.WriteTextReport(w, set)
}

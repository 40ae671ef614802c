package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/report"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// benches reports a bench, or compares several.
func (f *reportFlags) benches(cmd *cobra.Command, files []reportFile) error {
	only, bound, err := f.checkBenches(len(files))
	if err != nil {
		return err
	}
	var names []string
	var all []*result.Set
	for _, file := range files {
		b, err := result.Read(file.in)
		if err != nil {
			return usagef("%s: %w", file.name, err)
		}
		names, all = append(names, file.name), append(all, b)
	}
	if len(all) == 1 {
		return f.writeOut(cmd.OutOrStdout(), func(w io.Writer) error { return f.writeBench(w, report.Page(all[0]), all[0]) })
	}
	c, err := report.Compare(names, all, only)
	if wrong, ok := errors.AsType[scenario.Error](err); ok {
		return usageError{wrong}
	}
	if err != nil {
		return err
	}
	if err := f.writeOut(cmd.OutOrStdout(), func(w io.Writer) error { return f.writeBench(w, c.Page(), c) }); err != nil {
		return err
	}
	if f.regression == "" {
		return nil
	}
	return failOn(cmd.ErrOrStderr(), c, bound)
}

// failOn writes a line for each regression, and fails if there is one, or if there could be
// none as all figures have too few rounds.
func failOn(w io.Writer, c *report.Comparison, bound float64) error {
	few, all := c.Undecided()
	if few > 0 {
		fmt.Fprintf(w, "%d of %d figures have too few rounds to be judged; expected 2 in each report, better 4\n", few, all)
	}
	regressions := c.Regressions(bound)
	for _, text := range regressions {
		fmt.Fprintf(w, "FAIL %s\n", text)
	}
	if n := len(regressions); n > 0 {
		return fmt.Errorf("regressions: %d", n)
	}
	if few == all {
		return errors.New("no figure could be judged")
	}
	return nil
}

// checkBenches says how the flags were wrong for reports of benches.
func (f *reportFlags) checkBenches(files int) (only *regexp.Regexp, bound float64, err error) {
	switch {
	case f.merge || len(f.expect) > 0:
		return nil, 0, usagef("--merge and --expect are for results of a load; expected none of them with reports of a bench")
	case files < 2 && (f.only != "" || f.regression != ""):
		return nil, 0, usagef("--only and --fail-on-regression are for a comparison; expected two or more reports")
	}
	if f.only != "" {
		if only, err = regexp.Compile(f.only); err != nil {
			return nil, 0, usagef("--only: %v", err)
		}
	}
	if f.regression != "" {
		digits, ok := strings.CutSuffix(f.regression, "%")
		percent, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if !ok || err != nil || !(percent >= 0 && percent <= 1000) {
			return nil, 0, usagef("--fail-on-regression is %q; expected a percentage from 0%% to 1000%%, such as 5%%", f.regression)
		}
		bound = percent / 100
	}
	return only, bound, nil
}

// writeBench writes a report, or a comparison: its page, or as JSON itself.
func (f *reportFlags) writeBench(w io.Writer, p page.Page, of interface{ WriteJSON(io.Writer) error }) error {
	switch f.format {
	case "json":
		return of.WriteJSON(w)
	case "html":
		return p.WriteHTML(w)
	}
	return p.WriteText(w)
}

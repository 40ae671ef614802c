package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/internal/lab/report"
	"github.com/myriad-go/myriad/internal/lab/result"
	"github.com/myriad-go/myriad/internal/lab/scenario"
	"github.com/myriad-go/myriad/internal/page"
)

// bookFormats are what the report of a bench, and a comparison, can be written as.
var bookFormats = []string{"text", "markdown", "html", "json"}

// books reports a bench, or compares several.
func (f *reportFlags) books(cmd *cobra.Command, files []reportFile) error {
	only, bound, err := f.checkBooks(len(files))
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
		return f.writeOut(cmd.OutOrStdout(), func(w io.Writer) error { return f.writeBook(w, setReport{all[0]}) })
	}
	c, err := report.Compare(names, all, only)
	if wrong, ok := errors.AsType[scenario.Error](err); ok {
		return usageError{wrong}
	}
	if err != nil {
		return err
	}
	if err := f.writeOut(cmd.OutOrStdout(), func(w io.Writer) error { return f.writeBook(w, c) }); err != nil {
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

// checkBooks says how the flags were wrong for reports of benches.
func (f *reportFlags) checkBooks(files int) (only *regexp.Regexp, bound float64, err error) {
	switch {
	case f.merge || len(f.expect) > 0:
		return nil, 0, usagef("--merge and --expect are for results of a load; expected none of them with reports of a bench")
	case !slices.Contains(bookFormats, f.format):
		return nil, 0, usagef("--format is %q; expected one of %s", f.format, strings.Join(bookFormats, ", "))
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

// setReport is a report of a bench as a page.
type setReport struct{ *result.Set }

func (s setReport) Page() page.Page { return report.Page(s.Set) }

// book is a report of a bench, or a comparison.
type book interface {
	WriteJSON(w io.Writer) error
	Page() page.Page
}

func (f *reportFlags) writeBook(w io.Writer, b book) error {
	p := b.Page()
	switch f.format {
	case "json":
		return b.WriteJSON(w)
	case "html":
		return p.WriteHTML(w)
	case "markdown":
		return p.WriteMarkdown(w)
	}
	return p.WriteText(w)
}

package main

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/load"
)

// search looks for the highest rate at which the goal is met, and tells of each rate
// that is tried. --duration is how long that takes.
func (f *loadFlags) search(cmd *cobra.Command) error {
	f.spare()
	t, err := f.results.open(cmd)
	if err != nil {
		return err
	}
	cfg, g := f.cfg, f.goal()
	goal := load.Goal{Percentile: g.percent, Under: g.under, Step: cfg.Duration}
	cfg.Duration, cfg.Rate.Each, cfg.Rate.PerSecond = 0, false, 0
	cfg.Observe = func(e load.Event) {
		t.observe(e)
		if e.Step != nil && t.text && t.live == nil {
			fmt.Fprintln(t.stdout, stepLine(e.Step, goal))
		}
	}
	found, err := load.Search(cmd.Context(), cfg, goal)
	if found == nil {
		return cmp.Or(err, t.finish(nil))
	}
	outErr := t.finish(found.Result)
	if t.text {
		outErr = cmp.Or(outErr, writeFound(t.stdout, found))
	}
	switch {
	case err != nil:
		err = fmt.Errorf("the search ended early: %w", err)
	case found.Rate == 0:
		err = fmt.Errorf("no rate kept %v of the latency under %v", format.Percentile(goal.Percentile), goal.Under)
		if wall(found).Limited {
			err = fmt.Errorf("%w: the generator was late", err)
		}
	}
	return cmp.Or(outErr, err, found.Result.Err())
}

// stepLine is a rate that was tried.
func stepLine(s *load.Step, goal load.Goal) string {
	verdict := "too slow"
	switch {
	case s.Kept:
		verdict = "kept"
	case s.Limited:
		verdict = "the generator was late"
	case s.Latency <= goal.Under:
		verdict = "fell behind"
	}
	line := fmt.Sprintf("tried %.0f/s: %.0f/s answered, %s %v, %s", s.Rate, s.Answered, format.Percentile(goal.Percentile), s.Latency.Round(time.Microsecond), verdict)
	if s.Unsent > 0 {
		line += fmt.Sprintf(", %d never sent or answered", s.Unsent)
	}
	if s.Late > goal.Under/10 {
		line += fmt.Sprintf("; the generator itself was %v late", s.Late.Round(time.Microsecond))
	}
	return line
}

// wall is the last try of the lowest rate above the one that was found, the zero Step
// if there is none.
func wall(found *load.Found) (lowest load.Step) {
	for _, s := range found.Steps {
		if s.Rate > found.Rate && (lowest.Rate == 0 || s.Rate <= lowest.Rate) {
			lowest = s
		}
	}
	return lowest
}

// writeFound writes what was found in a line.
func writeFound(w io.Writer, found *load.Found) error {
	if found.Rate == 0 {
		return nil
	}
	more := "5% more did not"
	switch {
	case found.Most:
		more = "the search went no further"
	case wall(found).Limited:
		more = "at 5% more the generator was late"
	}
	_, err := fmt.Fprintf(w, "found %.0f/s on %d connections, %.4g/s on each, with %s under %v; %s\n",
		found.Rate, found.Result.Connected, found.Rate/float64(max(found.Result.Connected, 1)), format.Percentile(found.Goal.Percentile), found.Goal.Under, more)
	return err
}

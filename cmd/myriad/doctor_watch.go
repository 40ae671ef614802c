package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/doctor"
)

// doctorWatch are the flags of doctor --watch.
type doctorWatch struct {
	on       bool
	pid      int
	interval time.Duration
}

func (w *doctorWatch) add(flags *pflag.FlagSet) {
	flags.BoolVar(&w.on, "watch", false, "follow the machine, and the server at --target or with --pid, and warn before a wall is reached, until Ctrl-C")
	flags.IntVar(&w.pid, "pid", 0, "with --watch, follow the process `PID` (default: those that listen at --target)")
	flags.DurationVar(&w.interval, "interval", doctor.DefaultWatchInterval, "with --watch, look as often")
}

// check says which flags do not go together.
func (w *doctorWatch) check(given given) error {
	for _, other := range []string{"fix", "print"} {
		if w.on && given(other) {
			return usagef("--watch and --%s are given; expected one of the two", other)
		}
	}
	for _, name := range []string{"pid", "interval"} {
		if !w.on && given(name) {
			return usagef("--%s is given without --watch; expected both", name)
		}
	}
	return nil
}

// run prints a line for each reading and for each warning, or with --json each
// reading as a line. Ctrl-C is how it ends.
func (w *doctorWatch) run(cmd *cobra.Command, plan doctor.Plan) error {
	cfg, err := w.config(plan.Targets)
	if err != nil {
		return err
	}
	tell := printReading
	if asJSON, err := cmd.Flags().GetBool("json"); err == nil && asJSON {
		tell = printReadingJSON
	}
	unknown := make(map[string]bool) // what was said before
	var failed error
	err = doctor.Watch(cmd.Context(), cfg, func(r doctor.Reading) {
		if failed == nil {
			failed = tell(cmd, &r, unknown)
		}
	})
	if failed != nil {
		return failed
	}
	return err
}

// config is what the flags describe.
func (w *doctorWatch) config(targets []netip.AddrPort) (doctor.WatchConfig, error) {
	cfg := doctor.WatchConfig{PID: w.pid, Interval: w.interval}
	switch {
	case w.interval < doctor.MinWatchInterval || w.interval > doctor.MaxWatchInterval:
		return cfg, usagef("--interval is %v; expected %v to %v", w.interval, doctor.MinWatchInterval, doctor.MaxWatchInterval)
	case w.pid < 0:
		return cfg, usagef("--pid is %d; expected a process", w.pid)
	case len(targets) > 1:
		return cfg, usagef("--target is given %d times with --watch; expected one", len(targets))
	case len(targets) == 1:
		cfg.Target = targets[0]
	}
	if err := cfg.Validate(); err != nil {
		return cfg, usageError{err}
	}
	return cfg, nil
}

// printReading prints a reading for people. What can't be known is said once.
func printReading(cmd *cobra.Command, r *doctor.Reading, unknown map[string]bool) error {
	for _, what := range r.Unknown {
		if !unknown[what] && len(unknown) < maxUnknown {
			unknown[what] = true
			fmt.Fprintf(cmd.ErrOrStderr(), "myriad: %s\n", what)
		}
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), r)
	for _, warning := range r.Warnings {
		fmt.Fprintf(cmd.OutOrStdout(), "%s WARNING %s\n", r.At.Format(time.TimeOnly), warning.Text)
	}
	return err
}

// maxUnknown bounds what is remembered of that.
const maxUnknown = 100

func printReadingJSON(cmd *cobra.Command, r *doctor.Reading, _ map[string]bool) error {
	return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
}

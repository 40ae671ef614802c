package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/tools/doctor"
	"github.com/myriad-go/myriad/tools/internal/quantity"
	"github.com/myriad-go/myriad/tools/load"
)

const doctorExamples = `  myriad doctor -n 1000000
  myriad doctor -n 100000 --fix
  myriad doctor -n 100k --side server --print sysctl > /etc/sysctl.d/90-myriad.conf
  myriad doctor -n 200k --side client --src 10.0.0.10-10.0.0.20 --target 10.0.0.7:9000`

const defaultDoctorConns = 1_000_000

type doctorFlags struct {
	plan doctor.Plan
	side string

	fix, yes, json bool
	format         string
}

func newDoctorCommand() *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Predict which limits of this machine stop connections, and raise them",
		Long: `Predict which limits of this machine stop connections, and raise them.

For each wall (a limit of the machine), the report shows its value, the number of connections at
which it stops the plan, the value that the plan needs, the command that sets it, and
its documentation. --fix applies the changes, which last until the next reboot; --print
prints a file that makes them permanent.

The exit status is 0 if the machine can hold the plan, 1 if it cannot, and 2 if the
flags are wrong. Without -n it predicts for 1,000,000 connections and exits with 0.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.examinePrintAndFix(cmd) },
	}
	var g flagGroups
	g.addFlagGroup("Plan", "", f.addPlanFlags)
	g.addFlagGroup("Output", "", f.addFixAndOutputFlags)
	g.addFlagsAndGroupedHelp(cmd)
	return cmd
}

func (f *doctorFlags) examinePrintAndFix(cmd *cobra.Command) error {
	if err := f.validateAndComplete(cmd.Flags().Changed); err != nil {
		return err
	}
	report, err := examineMachine(f.plan)
	if err != nil {
		return err
	}
	switch out := cmd.OutOrStdout(); {
	case f.format != "":
		return doctor.WriteSettings(out, f.format, report)
	case f.json:
		err = json.NewEncoder(out).Encode(report)
	default:
		err = report.WriteText(out)
	}
	if err == nil && f.fix {
		report, err = f.confirmAndApplyChanges(cmd, report)
	}
	if err != nil || !cmd.Flags().Changed("connections") {
		return err
	}
	return errIfCapacityTooLow(report)
}

func examineMachine(plan doctor.Plan) (*doctor.Report, error) {
	facts, err := doctor.Read(0)
	if err != nil {
		return nil, err
	}
	return doctor.Examine(facts, plan)
}

func errIfCapacityTooLow(r *doctor.Report) error {
	if r.Holds >= int64(r.Plan.Connections) {
		return nil
	}
	return fmt.Errorf("this machine can hold only %d of %d connections; the first limit that it reaches is %s", r.Holds, r.Plan.Connections, r.First)
}

func (f *doctorFlags) validateAndComplete(isFlagSet func(flag string) bool) error {
	for _, pair := range [][2]string{{"json", "print"}, {"fix", "print"}, {"fix", "json"}} {
		if isFlagSet(pair[0]) && isFlagSet(pair[1]) {
			return usagef("--%s and --%s are both given; expected one of the two", pair[0], pair[1])
		}
	}
	switch {
	case f.yes && !f.fix:
		return usagef("--yes is given without --fix; expected both")
	case (f.fix || f.format != "") && !isFlagSet("connections"):
		return usagef("-n is missing; expected the number of connections to prepare the machine for, such as -n 100k")
	case f.plan.Connections == 0:
		f.plan.Connections = defaultDoctorConns
	}
	f.plan.Side = doctor.Side(f.side)
	if _, err := doctor.Examine(&doctor.Facts{}, f.plan); err != nil {
		return usageError{fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "doctor: "))}
	}
	return nil
}

func (f *doctorFlags) addPlanFlags(flags *pflag.FlagSet) {
	p := &f.plan
	addParsedFlag(flags, &p.Connections, quantity.ParsePositive, "connections", "n", "plan for `N` connections, such as 100k (default 1000000)")
	addParsedFlag(flags, &f.side, newOneOfParser(string(doctor.Server), string(doctor.Client), string(doctor.Both)), "side", "", "examine this `SIDE`: server, client or both (default both)")
	flags.StringVar(&p.Model, "model", "", "I/O `MODEL` of the server, or of the client with --side client: auto, goroutine, epoll or uring (default auto)")
	addParsedFlag(flags, &p.Processes, quantity.ParsePositive, "processes", "", "`N` worker processes of the server (default 0: none)")
	addParsedFlag(flags, &p.Unread, quantity.ParseCount, "unread", "", "unread or unsent `BYTES` in the kernel per connection (default 0: idle)")
	addParsedFlag(flags, &p.UserMemory, quantity.ParsePositive, "user-memory", "", "process memory per connection in `BYTES` (default: Myriad's)")
	addParsedFlag(flags, &p.Backlog, quantity.ParsePositive, "backlog", "", "backlog `N` that the listener requests (default: net.core.somaxconn)")
	addParsedFlag(flags, &p.Burst, quantity.ParsePositive, "burst", "", "`N` connections may arrive before the server accepts one (default 512)")
	addParsedFlag(flags, &p.Closing, quantity.ParsePositive, "closing", "", "the examined side closes `N` connections per second in an orderly way (default 0)")
	sources := func(text string) ([]netip.Addr, error) {
		return load.ExpandSourceRange(text, load.MaxSources-len(p.Sources))
	}
	target := func(text string) ([]netip.AddrPort, error) {
		at, err := netip.ParseAddrPort(text)
		if err != nil {
			return nil, quantity.Error("an IP address and a port, such as 10.0.0.7:9000")
		}
		return []netip.AddrPort{at}, nil
	}
	flags.Var(&parsedListFlag[netip.Addr]{&p.Sources, sources}, "src", "connect from this local `ADDRESS`, range A-B or network A/BITS (repeatable; default: chosen automatically)")
	flags.Var(&parsedListFlag[netip.AddrPort]{&p.Targets, target}, "target", "connect to this `ADDRESS`, an IP address and a port (repeatable; default 127.0.0.1:9000)")
}

func (f *doctorFlags) addFixAndOutputFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&f.fix, "fix", false, "apply the changes now and print how to undo them")
	flags.BoolVar(&f.yes, "yes", false, "apply the changes of --fix without asking")
	addParsedFlag(flags, &f.format, newOneOfParser(doctor.Formats...), "print", "", "print only a file that makes the changes permanent, in this `FORMAT`: sysctl, systemd, docker, kubernetes or limits")
	flags.BoolVar(&f.json, "json", false, "print the report as JSON")
}

// confirmAndApplyChanges applies the changes that the report r recommends. Without --yes, it first asks the user. After
// the changes, it examines the machine again and returns the new report. If no change was made, it returns r.
func (f *doctorFlags) confirmAndApplyChanges(cmd *cobra.Command, r *doctor.Report) (*doctor.Report, error) {
	out, changes := cmd.OutOrStdout(), r.Changes()
	if len(changes) == 0 {
		fmt.Fprintln(out, "\nThere is nothing to change.")
		return r, nil
	}
	fmt.Fprintln(out, "\nThese are the changes:")
	for i, c := range changes {
		fmt.Fprintf(out, "  %d. %s\n", i+1, c.Command())
	}
	if !f.yes {
		yes, err := askToApplyChanges(cmd.Context(), cmd.InOrStdin(), out, len(changes))
		if err != nil {
			return r, err
		}
		if !yes {
			fmt.Fprintln(out, "Nothing was changed.")
			return r, nil
		}
	}
	fmt.Fprintln(out, "\nChanged:")
	undo, failed := doctor.Apply(cmd.Context(), out, changes)
	if failed != nil {
		fmt.Fprintf(out, "\nNot done:\n  %s\n", strings.ReplaceAll(failed.Error(), "\n", "\n  "))
	}
	if len(undo) > 0 {
		fmt.Fprintln(out, "\nTo undo:")
	}
	for _, c := range undo {
		fmt.Fprintf(out, "  %s\n", c.Command())
	}
	after, err := examineMachine(r.Plan)
	if err != nil {
		return r, err
	}
	fmt.Fprintf(out, "\n%s\n", after.Summary())
	return after, nil
}

const maxReplyBytes = 64

// askToApplyChanges asks the user whether to apply the changes, and waits for the answer. If ctx ends before the user
// has answered, it returns an error. A goroutine then continues to wait for the answer.
func askToApplyChanges(ctx context.Context, in io.Reader, out io.Writer, changeCount int) (confirmed bool, _ error) {
	changes := fmt.Sprintf("these %d changes", changeCount)
	if changeCount == 1 {
		changes = "this change"
	}
	fmt.Fprintf(out, "Apply %s? [y/N] ", changes)
	type answer struct {
		text string
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		text, err := bufio.NewReader(io.LimitReader(in, maxReplyBytes)).ReadString('\n')
		answers <- answer{strings.ToLower(strings.TrimSpace(text)), err}
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(out)
		return false, errors.New("interrupted; nothing was changed")
	case a := <-answers:
		if a.err != nil && a.text == "" {
			fmt.Fprintln(out)
			return false, usagef("no answer to the question of --fix (%w); expected y or n on standard input, or --yes", a.err)
		}
		return a.text == "y" || a.text == "yes", nil
	}
}

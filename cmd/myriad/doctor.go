package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/doctor"
)

const doctorExamples = `  myriad doctor -n 1000000
  myriad doctor -n 100000 --fix
  myriad doctor -n 100k --side server --print sysctl > /etc/sysctl.d/90-myriad.conf
  myriad doctor -n 200k --side client --src 10.0.0.10-10.0.0.20 --target 10.0.0.7:9000`

// doctorAsked is how many connections the doctor looks at when nobody says.
const doctorAsked = 1_000_000

// doctorFlags are the flags of the command doctor.
type doctorFlags struct {
	plan             doctor.Plan
	side             string
	sources, targets []string

	fix, yes, json bool
	format         string
}

func newDoctor() *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Tell which walls of this machine stop how many connections, and move them",
		Long: `Tell which walls of this machine stop how many connections, and move them.

It reads the machine and prints for each wall its value, at how many connections it
stops what is planned, what it needs to be, the command that does it, and where this
is documented. With --fix it makes the changes, which last until the machine starts
again; --print writes a file that makes them last.

It exits with 0 if the machine holds what is planned, with 1 if it does not, and with
2 if the flags are wrong. Without -n it tells of 1,000,000 connections and exits with 0.`,
		Example: doctorExamples,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.add(cmd)
	return cmd
}

func (f *doctorFlags) run(cmd *cobra.Command) error {
	if err := f.complete(cmd.Flags().Changed); err != nil {
		return err
	}
	report, err := examine(f.plan)
	if err != nil {
		return err
	}
	switch out := cmd.OutOrStdout(); {
	case f.format != "":
		return doctor.Print(out, f.format, report)
	case f.json:
		err = json.NewEncoder(out).Encode(report)
	default:
		err = report.WriteText(out)
	}
	if err == nil && f.fix {
		report, err = f.repair(cmd, report)
	}
	if err != nil || !cmd.Flags().Changed("connections") {
		return err
	}
	return fits(report)
}

// examine asks the doctor what this machine holds of a plan.
func examine(plan doctor.Plan) (*doctor.Report, error) {
	facts, err := doctor.Read(0)
	if err != nil {
		return nil, err
	}
	return doctor.Examine(facts, plan)
}

// fits is nil if the machine holds what was planned.
func fits(r *doctor.Report) error {
	if r.Holds >= int64(r.Plan.Connections) {
		return nil
	}
	return fmt.Errorf("this machine holds %d of %d connections: the first wall is %s", r.Holds, r.Plan.Connections, r.First)
}

// complete fills in the plan and checks the flags.
func (f *doctorFlags) complete(given given) error {
	for _, pair := range [][2]string{{"json", "print"}, {"fix", "print"}, {"fix", "json"}} {
		if given(pair[0]) && given(pair[1]) {
			return usagef("--%s and --%s are given; expected one of the two", pair[0], pair[1])
		}
	}
	switch {
	case f.yes && !f.fix:
		return usagef("--yes is given without --fix; expected both")
	case (f.fix || f.format != "") && !given("connections"):
		return usagef("-n is missing; expected for how many connections the machine is to be made ready, such as -n 100k")
	case f.plan.Connections == 0:
		f.plan.Connections = doctorAsked
	}
	f.plan.Side = doctor.Side(f.side)
	f.plan.Sources, f.plan.Targets = nil, nil
	for _, text := range f.sources {
		some, err := parseSources(text, maxSources-len(f.plan.Sources))
		if err != nil {
			return usagef("--src is %q; %w", text, err)
		}
		f.plan.Sources = append(f.plan.Sources, some...)
	}
	for _, text := range f.targets {
		target, err := netip.ParseAddrPort(text)
		if err != nil {
			return usagef("--target is %q; expected an IP address and a port, such as 10.0.0.7:9000", text)
		}
		f.plan.Targets = append(f.plan.Targets, target)
	}
	if _, err := doctor.Examine(&doctor.Facts{}, f.plan); err != nil {
		return usageError{fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "doctor: "))}
	}
	return nil
}

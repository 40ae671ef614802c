package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/tools/load"
)

const holdExamples = `  myriad hold -n 1000000 127.0.0.1:9000
  myriad hold -n 1000000 --check --heartbeat ping --broadcast 'server ends at noon' -T 2m 127.0.0.1:9000
  myriad hold --ramp 0:200k:2m --src 10.0.0.10-10.0.0.20 --duration 10m 10.0.0.7:9000`

func newHoldCommand() *cobra.Command {
	var f loadFlags
	cmd := &cobra.Command{
		Use:   "hold [flags] HOST:PORT|unix:PATH...",
		Short: "Open connections to a TCP server and hold them idle",
		Long: `Open connections to a TCP server and hold them idle.

Reports the time to connect and the memory per connection on this side and, if the
server runs on this machine, on the server's. Connections are held until Ctrl-C or
for --duration.

A target such as ws://HOST:PORT/PATH uses WebSockets: each message is a line, and
pings are answered.

Nothing is sent without --check, which needs a server that echoes lines, or
--heartbeat. With these two and --broadcast, any other received line is an error.
The exit status is 1 if no connection succeeded, or if one was lost or received a wrong,
missing or duplicate line.`,
		Args: cobra.ArbitraryArgs, // checked by buildConfigFromFlags
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.buildConfigFromFlags(cmd.InOrStdin(), args); err != nil {
				return err
			}
			f.cfg.Duration = cmp.Or(f.cfg.Duration, maxHoldDuration)
			if err := f.agents.validateAndSetOptions(&f.cfg, cmd.Flags().Changed); err != nil {
				return err
			}
			f.warnAboutClientLimits(cmd)
			return f.holdConnsAndReport(cmd)
		},
	}
	f.cfg.Hold = true
	f.addFlagGroupsWithAliasesAndHelp(cmd, "Connections", "Lines", "Encryption", "Agents", "Results")
	return cmd
}

// maxHoldDuration is the default duration of the command "hold". It is also the longest duration that load.Config
// allows.
const maxHoldDuration = 30 * 24 * time.Hour

func (f *loadFlags) holdConnsAndReport(cmd *cobra.Command) error {
	t, err := f.results.startReporter(cmd)
	if err != nil {
		return err
	}
	held := &heldConnsReport{start: time.Now(), printf: t.printTextUnlessJSON}
	t.observers = append(t.observers, held.recordOrPrintHeldConns)
	f.cfg.Observe = t.raiseGOMAXPROCSOnPlanAndNotifyObservers
	result, err := f.runLoadHereOrOnAgents(cmd.Context(), t)
	if result != nil {
		held.printMemoryPerConnOfBothSides()
	}
	outErr := t.writeResultAndCheckExpectations(result)
	if result == nil {
		return cmp.Or(err, outErr)
	}
	if err != nil && cmd.Context().Err() == nil {
		err = fmt.Errorf("the run ended early: %w", err)
	} else {
		err = nil // Ctrl-C is a normal end
	}
	return cmp.Or(outErr, err, result.Err())
}

type heldConnsReport struct {
	printf   func(format string, args ...any)
	start    time.Time
	plan     load.Plan
	lastHeld *load.Interval // the latest interval with held connections
}

func (h *heldConnsReport) recordOrPrintHeldConns(e load.Event) {
	switch {
	case e.Plan != nil:
		h.plan = *e.Plan
	case e.Phase == load.Connected:
		h.printf("held: %d connections after %v", e.Snapshot.Open, time.Since(h.start).Round(time.Millisecond))
	case e.Phase == load.Progress && e.Interval != nil && e.Interval.Open > 0 && (e.Interval.Stage == "hold" || e.Interval.Stage == "window"):
		h.lastHeld = e.Interval
	}
}

func (h *heldConnsReport) printMemoryPerConnOfBothSides() {
	if h.lastHeld == nil {
		return
	}
	for _, p := range []struct {
		side        string
		now, before *load.Usage
	}{{"generator", &h.lastHeld.Generator, h.plan.Generator}, {"server", h.lastHeld.Server, h.plan.Server}} {
		if each := p.now.MemoryGrowthPerConn(p.before, h.lastHeld.Open); each > 0 {
			h.printf("%-9s  %d bytes of user memory a connection; resident %.1f MiB in all, %.1f MiB before", p.side, each, residentMiB(p.now), residentMiB(p.before))
		}
	}
}

func residentMiB(usage *load.Usage) float64 { return float64(usage.RSS) / (1 << 20) }

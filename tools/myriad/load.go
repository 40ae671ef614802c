package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/load"
)

const loadExamples = `  myriad load -c 10000 --connect-rate=2000 --duration=60s -m $'ping\n' 127.0.0.1:9000
  myriad load -c 1000 --rate 50k --arrivals poisson --out run.jsonl 127.0.0.1:9000
  myriad load -c 100 --rate @10ms,p99.9 127.0.0.1:9000
  myriad load -c 200 https://example.com/`

func newLoadCommand() *cobra.Command {
	var f loadFlags
	cmd := &cobra.Command{
		Use:   "load [flags] HOST:PORT|unix:PATH|URL...",
		Short: "Load a TCP server, verify every answer and measure",
		Long: `Load a TCP server, verify every answer and measure.

Opens all connections; each then keeps a number of messages in flight and sends
the next when an answer arrives (closed loop). With --rate or --message-rate,
messages are sent at planned times whether or not answers arrive (open loop), and
latencies count from the planned times. Every byte of every answer is compared with
the message, or with --answer; with --match or --http, answers are delimited by a rule
and not compared.

Numbers may end in k, M or G, or in ki, Mi or Gi for powers of 1024. Connections are
distributed over several targets in turn. A target can be a URL, which selects the
protocol: tcp:// or tls://, http:// or https:// (--http and a GET of its path), ws://
or wss:// (--ws).

The exit status is 1 if no connection succeeded, if answers were wrong or missing, if
connections were lost, if an expectation was not met, or if the run was interrupted;
the result so far is printed in any case. It is 2 if the arguments are invalid.`,
		Args: cobra.ArbitraryArgs, // checked by buildConfigFromFlags
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.buildConfigFromFlags(cmd.InOrStdin(), args); err != nil {
				return err
			}
			if err := f.agents.validateAndSetOptions(&f.cfg, cmd.Flags().Changed); err != nil {
				return err
			}
			f.warnAboutClientLimits(cmd)
			return f.runLoadAndReport(cmd)
		},
	}
	f.addFlagGroupsWithAliasesAndHelp(cmd, "Connections", "Traffic", "Messages", "Answers", "Encryption", "Publish/subscribe", "Agents", "Results", "tcpkali")
	return cmd
}

func (f *loadFlags) runLoadAndReport(cmd *cobra.Command) error {
	t, err := f.results.startReporter(cmd)
	if err != nil {
		return err
	}
	f.cfg.Observe = func(e load.Event) {
		t.raiseGOMAXPROCSOnPlanAndNotifyObservers(e)
		if e.Step != nil {
			t.printTextUnlessJSON("%s", formatSearchStep(e.Step, f.cfg.Rate.Goal))
		}
	}
	result, err := f.runLoadHereOrOnAgents(cmd.Context(), t)
	outErr := t.writeResultAndCheckExpectations(result)
	if result == nil {
		return cmp.Or(err, outErr)
	}
	if result.Search != nil && result.Search.Rate > 0 {
		t.printTextUnlessJSON("%s", formatFoundRate(result))
	}
	switch {
	case err != nil:
		err = fmt.Errorf("the run ended early: %w", err)
	case result.Search != nil && result.Search.Rate == 0:
		err = noRateFoundError(result.Search)
	case outErr == nil && isHTTPMismatch(result):
		return fmt.Errorf("the server speaks HTTP, but the messages are not HTTP; use a URL such as http://%s/, or --http with your own request", f.cfg.Target)
	}
	return cmp.Or(outErr, err, result.Err())
}

func isHTTPMismatch(r *load.Result) bool {
	m := r.FirstMismatch
	return m != nil && m.Byte == 0 && (strings.HasPrefix(m.Got, `"HTTP/1.`) || strings.HasPrefix(m.Got, `"<!DOCTYPE `))
}

func (f *loadFlags) raiseGOMAXPROCSIfTLS() {
	if f.cfg.TLS != nil { // handshakes do not run on the event loops
		raiseGOMAXPROCSUnlessSet(max(f.cfg.Loops, 1), false)
	}
}

func formatSearchStep(s *load.Step, goal load.Goal) string {
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

// lowestStepAboveFoundRate returns the step with the lowest rate above found.Rate. If several steps have this rate, it
// returns the last of them. If no step has a higher rate than found.Rate, it returns the zero Step.
func lowestStepAboveFoundRate(found *load.Found) (lowest load.Step) {
	for _, s := range found.Steps {
		if s.Rate > found.Rate && (lowest.Rate == 0 || s.Rate <= lowest.Rate) {
			lowest = s
		}
	}
	return lowest
}

func noRateFoundError(found *load.Found) error {
	err := fmt.Errorf("no tested rate kept %s latency under %v", format.Percentile(found.Goal.Percentile), found.Goal.Under)
	if lowestStepAboveFoundRate(found).Limited {
		err = fmt.Errorf("%w: the load generator fell behind; use more --loops or --agents", err)
	}
	return err
}

func formatFoundRate(r *load.Result) string {
	found := r.Search
	more := "5% more did not"
	switch {
	case found.Most:
		more = "the search went no further"
	case lowestStepAboveFoundRate(found).Limited:
		more = "at 5% more the generator was late"
	}
	return fmt.Sprintf("found %.0f/s on %d connections, %.4g/s on each, with %s under %v; %s",
		found.Rate, r.Connected, found.Rate/float64(max(r.Connected, 1)), format.Percentile(found.Goal.Percentile), found.Goal.Under, more)
}

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/myriad-go/myriad/tools/internal/quantity"
	"github.com/myriad-go/myriad/tools/load"
)

type outputFlags struct {
	out      string
	csv      string
	html     string
	json     bool
	quiet    bool
	metrics  string
	percents []float64
	expect   []string
}

func (f *outputFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.expect, "expect", nil, "fail unless this `EXPECTATION`, such as p99<5ms, errors==0 or rate>=10k, is met (repeatable)")
	flags.StringVar(&f.out, "out", "", "write events as lines of JSON to this `FILE`; - is standard output")
	flags.BoolVar(&f.json, "json", false, "same as --out -")
	flags.StringVar(&f.csv, "csv", "", "write a CSV table with a row per interval to this `FILE`")
	flags.StringVar(&f.html, "html", "", "write a self-contained page with charts to this `FILE`")
	flags.StringVar(&f.metrics, "metrics", "", "serve Prometheus metrics on this `ADDRESS` during the run, on loopback if it has no host")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "show no progress")
}

const maxPercentiles = 100

func parsePercentiles(text string) (list []float64, err error) {
	for part := range strings.SplitSeq(text, ",") {
		p, err := load.ParsePercentileNumber(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		if len(list) == maxPercentiles {
			return nil, quantity.Error("at most " + strconv.Itoa(maxPercentiles) + " percentiles")
		}
		list = append(list, p)
	}
	return list, nil
}

func parseExpectations(texts []string) (list []load.Expectation, err error) {
	for _, text := range texts {
		e, err := load.ParseExpectation(text)
		if err != nil {
			return nil, usagef("--expect: %s", strings.TrimPrefix(err.Error(), "load: "))
		}
		list = append(list, e)
	}
	return list, nil
}

// runReporter writes the results of a load run. Only the goroutine that calls load.Run may use it.
type runReporter struct {
	flags       *outputFlags
	expected    []load.Expectation
	stdout      io.Writer
	stderr      io.Writer
	textResult  bool // the result goes to stdout as text
	observers   []func(load.Event)
	live        *terminalView // nil for none
	outputs     []outputFile
	stopMetrics func() // stops serving metrics, nil for none
	err         error  // the first write error
}

// outputFile is a file with results of a load run. writeRest, if not nil, completes the file after the run.
type outputFile struct {
	file      *atomicFile
	writeRest func() error
}

func (f *outputFlags) startReporter(cmd *cobra.Command) (*runReporter, error) {
	t := &runReporter{flags: f, stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), textResult: !f.json && f.out != "-"}
	if err := cmp.Or(t.createOutputsAndParseExpectations(), t.startMetricsServer()); err != nil {
		t.stopMetricsAndDiscardFiles()
		return nil, err
	}
	if !t.textResult {
		t.addJSONLinesObserver(t.stdout)
	} else if !f.quiet && term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb" {
		t.live = newTerminalView(os.Stderr)
		t.observers = append(t.observers, t.live.updateAndThrottleRedraw)
	}
	return t, nil
}

func (t *runReporter) createOutputsAndParseExpectations() (err error) {
	if t.expected, err = parseExpectations(t.flags.expect); err != nil {
		return err
	}
	events := t.flags.out
	if !t.textResult {
		events = ""
	}
	paths := map[string]bool{}
	for _, o := range []struct {
		flag, path string
		begin      func(*outputFile)
	}{
		{"csv", t.flags.csv, t.addCSVObserver}, {"html", t.flags.html, t.addHTMLRecorder},
		{"out", events, func(o *outputFile) { t.addJSONLinesObserver(o.file.temp) }},
	} {
		if o.path == "" {
			continue
		}
		if paths[o.path] {
			return usagef("--%s is %q, which another output also uses; expected different files", o.flag, o.path)
		}
		paths[o.path] = true
		file, err := createAtomicFile(o.path)
		if err != nil {
			return usagef("--%s: %w", o.flag, err)
		}
		t.outputs = append(t.outputs, outputFile{file: file})
		o.begin(&t.outputs[len(t.outputs)-1])
	}
	return nil
}

func (t *runReporter) addCSVObserver(o *outputFile) {
	table := load.NewCSV(o.file.temp)
	t.observers = append(t.observers, table.Observe)
	o.writeRest = table.Flush
}

func (t *runReporter) addHTMLRecorder(o *outputFile) {
	recorder, out := new(load.StreamBuilder), o.file.temp
	t.observers = append(t.observers, recorder.Observe)
	o.writeRest = func() error { return cmp.Or(recorder.Err(), recorder.Stream.WriteHTML(out, t.expected...)) }
}

func (t *runReporter) addJSONLinesObserver(w io.Writer) {
	lines := json.NewEncoder(w)
	t.observers = append(t.observers, func(e load.Event) { t.err = cmp.Or(t.err, lines.Encode(e)) })
}

func (t *runReporter) startMetricsServer() error {
	if t.flags.metrics == "" {
		return nil
	}
	if err := validateHostPort("metrics", t.flags.metrics); err != nil {
		return err
	}
	observe, stop, err := startLoadMetricsServer(t.flags.metrics, func(at net.Addr) {
		fmt.Fprintf(t.stderr, "metrics on http://%v/metrics\n", at)
	})
	if err != nil {
		return fmt.Errorf("--metrics: %w", err)
	}
	t.stopMetrics = stop
	t.observers = append(t.observers, observe)
	return nil
}

// raiseGOMAXPROCSOnPlanAndNotifyObservers raises GOMAXPROCS if e contains a plan, and passes e to all observers.
func (t *runReporter) raiseGOMAXPROCSOnPlanAndNotifyObservers(e load.Event) {
	if e.Plan != nil {
		raiseGOMAXPROCSUnlessSet(e.Plan.Loops, false)
	}
	for _, o := range t.observers {
		o(e)
	}
}

func (t *runReporter) printTextUnlessJSON(format string, args ...any) {
	if !t.textResult {
		return
	}
	if t.live != nil {
		t.live.eraseDrawnLines()
	}
	fmt.Fprintf(t.stdout, format+"\n", args...)
}

// writeResultAndCheckExpectations prints the result, completes the output files, and checks the expectations. It does
// not print the result if standard output receives JSON. If resultOrNil is nil, it discards the output files instead.
func (t *runReporter) writeResultAndCheckExpectations(resultOrNil *load.Result) error {
	defer t.stopMetricsAndDiscardFiles()
	if t.live != nil {
		t.live.eraseDrawnLines() // in case the run ended early
	}
	if resultOrNil == nil {
		return t.err
	}
	if t.textResult {
		t.err = cmp.Or(t.err, resultOrNil.WriteText(t.stdout), writePercentiles(t.stdout, resultOrNil, t.flags.percents))
	}
	for _, o := range t.outputs {
		err := t.err
		if o.writeRest != nil {
			err = o.writeRest()
		}
		if err := o.file.commitUnlessFailed(err); err != nil {
			t.err = cmp.Or(t.err, fmt.Errorf("cannot write %s: %w", o.file.userPath, err))
		}
	}
	// If standard output contains events, the expectations go to standard error.
	where := t.stdout
	if !t.textResult {
		where = t.stderr
	}
	of := []namedStream{{stream: &load.Stream{Result: resultOrNil}}}
	return cmp.Or(t.err, checkExpectationsAndPrintVerdicts(where, of, t.expected))
}

func (t *runReporter) stopMetricsAndDiscardFiles() {
	if t.stopMetrics != nil {
		t.stopMetrics()
	}
	for _, o := range t.outputs {
		o.file.discard()
	}
}

func writePercentiles(w io.Writer, result *load.Result, percents []float64) error {
	for _, p := range percents {
		name := strconv.FormatFloat(p, 'f', -1, 64)
		// An expectation can compute any percentile of a result.
		latency, err := load.ParseExpectation("p" + name + ">=0s")
		if err != nil {
			return err
		}
		got, _ := latency.Check(result)
		if _, err := fmt.Fprintf(w, "latency %s%%  %s\n", name, got); err != nil {
			return err
		}
	}
	return nil
}

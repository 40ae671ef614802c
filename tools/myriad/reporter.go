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

// resultFlags say what is reported of a run, and where.
type resultFlags struct {
	out      string
	csv      string
	html     string
	json     bool
	quiet    bool
	metrics  string
	percents []float64
	expect   []string
}

func (f *resultFlags) add(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.expect, "expect", nil, "fail unless this `EXPECTATION` is met, such as p99<5ms, errors==0 or rate>=10k (repeatable)")
	flags.StringVar(&f.out, "out", "", "write an event a line as JSON to this `FILE`; - is standard output")
	flags.BoolVar(&f.json, "json", false, "the same as --out -")
	flags.StringVar(&f.csv, "csv", "", "write a table with a row an interval to this `FILE`")
	flags.StringVar(&f.html, "html", "", "write a self-contained page with charts to this `FILE`")
	flags.StringVar(&f.metrics, "metrics", "", "serve metrics for Prometheus on this `ADDRESS` while it runs, on loopback if it has no host")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "show nothing while it runs")
}

// maxPercentiles bounds what --latency-percentiles prints.
const maxPercentiles = 100

// parsePercentiles reads percentiles with commas between them.
func parsePercentiles(text string) (list []float64, err error) {
	for part := range strings.SplitSeq(text, ",") {
		p, err := load.ParsePercentile(strings.TrimSpace(part))
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

// parseExpectations reads what is expected of a result.
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

// reporter reports on a run: while it goes on, and at its end. It belongs to the
// goroutine that calls load.Run.
type reporter struct {
	flags     *resultFlags
	expected  []load.Expectation
	stdout    io.Writer
	stderr    io.Writer
	text      bool // the result is for people
	observers []func(load.Event)
	live      *liveView // nil for none
	outputs   []output
	stop      func() // ends serving the metrics, nil for none
	err       error  // the first of writing
}

// output is a file that is written from the events of a run; finish, if not nil, writes
// the rest when the run is over.
type output struct {
	file   *outFile
	finish func() error
}

// open opens what the flags name, so that it fails before the run if it does.
func (f *resultFlags) open(cmd *cobra.Command) (*reporter, error) {
	t := &reporter{flags: f, stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), text: !f.json && f.out != "-"}
	if err := cmp.Or(t.openOutputs(), t.serveMetrics()); err != nil {
		t.abandon()
		return nil, err
	}
	if !t.text {
		t.encode(t.stdout)
	} else if !f.quiet && term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb" {
		t.live = newLiveView(os.Stderr)
		t.observers = append(t.observers, t.live.observe)
	}
	return t, nil
}

// openOutputs creates the files for people and other programs.
func (t *reporter) openOutputs() (err error) {
	if t.expected, err = parseExpectations(t.flags.expect); err != nil {
		return err
	}
	events := t.flags.out
	if !t.text {
		events = ""
	}
	paths := map[string]bool{}
	for _, o := range []struct {
		flag, path string
		begin      func(*output)
	}{
		{"csv", t.flags.csv, t.table}, {"html", t.flags.html, t.page},
		{"out", events, func(o *output) { t.encode(o.file.file) }},
	} {
		if o.path == "" {
			continue
		}
		if paths[o.path] {
			return usagef("--%s is %q, and another result is to be written there; expected a file for each", o.flag, o.path)
		}
		paths[o.path] = true
		file, err := createOut(o.path)
		if err != nil {
			return usagef("--%s: %w", o.flag, err)
		}
		t.outputs = append(t.outputs, output{file: file})
		o.begin(&t.outputs[len(t.outputs)-1])
	}
	return nil
}

// table has the intervals written as CSV.
func (t *reporter) table(o *output) {
	table := load.NewCSV(o.file.file)
	t.observers = append(t.observers, table.Observe)
	o.finish = table.Flush
}

// page has a page written.
func (t *reporter) page(o *output) {
	recorder, out := new(load.Recorder), o.file.file
	t.observers = append(t.observers, recorder.Observe)
	o.finish = func() error { return cmp.Or(recorder.Err(), recorder.Stream.WriteHTML(out, t.expected...)) }
}

// encode has each event written as a line of JSON.
func (t *reporter) encode(w io.Writer) {
	lines := json.NewEncoder(w)
	t.observers = append(t.observers, func(e load.Event) { t.err = cmp.Or(t.err, lines.Encode(e)) })
}

func (t *reporter) serveMetrics() error {
	if t.flags.metrics == "" {
		return nil
	}
	if err := checkAddress("metrics", t.flags.metrics); err != nil {
		return err
	}
	observe, stop, err := serveLoadMetrics(t.flags.metrics, func(at net.Addr) {
		fmt.Fprintf(t.stderr, "metrics on http://%v/metrics\n", at)
	})
	if err != nil {
		return fmt.Errorf("--metrics: %w", err)
	}
	t.stop = stop
	t.observers = append(t.observers, observe)
	return nil
}

// observe is load.Config.Observe.
func (t *reporter) observe(e load.Event) {
	if e.Plan != nil {
		spareProcessors(e.Plan.Loops, false)
	}
	for _, o := range t.observers {
		o(e)
	}
}

// say writes a line for people while the run goes on, above the live view. It is not
// written where events are.
func (t *reporter) say(format string, args ...any) {
	if !t.text {
		return
	}
	if t.live != nil {
		t.live.close()
	}
	fmt.Fprintf(t.stdout, format+"\n", args...)
}

// finish writes the result, nil for none, says which expectations it does not
// meet, and closes what open has opened.
func (t *reporter) finish(result *load.Result) error {
	defer t.abandon()
	if t.live != nil {
		t.live.close() // also where the run has not come to its end
	}
	if result == nil {
		return t.err
	}
	if t.text {
		t.err = cmp.Or(t.err, result.WriteText(t.stdout), writePercents(t.stdout, result, t.flags.percents))
	}
	for _, o := range t.outputs {
		err := t.err
		if o.finish != nil {
			err = o.finish()
		}
		if err := o.file.finish(err); err != nil {
			t.err = cmp.Or(t.err, fmt.Errorf("%s is not written: %w", o.file.path, err))
		}
	}
	// On standard error where events are on standard output.
	where := t.stdout
	if !t.text {
		where = t.stderr
	}
	of := []reported{{stream: &load.Stream{Result: result}}}
	return cmp.Or(t.err, checkReported(where, of, t.expected))
}

// abandon ends what finish has not ended.
func (t *reporter) abandon() {
	if t.stop != nil {
		t.stop()
	}
	for _, o := range t.outputs {
		o.file.discard()
	}
}

// writePercents writes a line for each percentile of the latency.
func writePercents(w io.Writer, result *load.Result, percents []float64) error {
	for _, p := range percents {
		name := strconv.FormatFloat(p, 'f', -1, 64)
		// An expectation is how a result tells any of its figures.
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

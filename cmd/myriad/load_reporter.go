package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/myriad-go/myriad/load"
)

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
	out       *outFile  // the events that were asked for, nil for none
	documents []document
	stop      func() // ends serving the metrics, nil for none
	err       error  // the first of writing
}

// document is a file that is written from the events of a run; finish ends it when the
// run is over.
type document struct {
	file   *outFile
	finish func() error
}

// open opens what the flags name, so that it fails before the run if it does.
func (f *resultFlags) open(cmd *cobra.Command) (*reporter, error) {
	t := &reporter{flags: f, stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), text: !f.json && f.out != "-"}
	for _, step := range []func() error{t.readExpected, t.openDocuments, t.openStream, t.serveMetrics} {
		if err := step(); err != nil {
			t.abandon()
			return nil, err
		}
	}
	if !t.text {
		t.encode(t.stdout)
	} else if !f.quiet && term.IsTerminal(int(os.Stderr.Fd())) {
		t.live = newLiveView(os.Stderr)
		t.observers = append(t.observers, t.live.observe)
	}
	return t, nil
}

func (t *reporter) readExpected() (err error) {
	t.expected, err = parseExpectations(t.flags.expect)
	return err
}

// openDocuments creates the files for people and other programs.
func (t *reporter) openDocuments() error {
	for _, d := range []struct{ flag, path string }{{"csv", t.flags.csv}, {"html", t.flags.html}} {
		if d.path == "" {
			continue
		}
		if d.path == t.flags.out || d.flag == "html" && d.path == t.flags.csv {
			return usagef("--%s is %q, and another result is to be written there; expected a file for each", d.flag, d.path)
		}
		file, err := createOut(d.path)
		if err != nil {
			return usagef("--%s: %w", d.flag, err)
		}
		of := document{file: file}
		if d.flag == "csv" {
			table := load.NewCSV(file.file)
			t.observers = append(t.observers, table.Observe)
			of.finish = table.Flush
		} else {
			recorder := new(load.Recorder)
			t.observers = append(t.observers, recorder.Observe)
			of.finish = func() error {
				return cmp.Or(recorder.Err(), recorder.Stream.WriteHTML(file.file, t.expected...))
			}
		}
		t.documents = append(t.documents, of)
	}
	return nil
}

// openStream creates the file of events.
func (t *reporter) openStream() (err error) {
	if t.text && t.flags.out != "" {
		if t.out, err = createOut(t.flags.out); err != nil {
			return usagef("--out: %w", err)
		}
		t.encode(t.out.file)
	}
	return nil
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
		return err
	}
	t.stop = stop
	t.observers = append(t.observers, observe)
	return nil
}

// encode has each event written as a line of JSON.
func (t *reporter) encode(w io.Writer) {
	lines := json.NewEncoder(w)
	t.observers = append(t.observers, func(e load.Event) { t.err = cmp.Or(t.err, lines.Encode(e)) })
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
	t.err = cmp.Or(t.err, t.writeDocuments())
	if t.out != nil {
		t.err = cmp.Or(t.err, t.out.finish(t.err))
	}
	// On standard error where events are on standard output.
	where := t.stdout
	if !t.text {
		where = t.stderr
	}
	of := []reported{{stream: &load.Stream{Result: result}}}
	return cmp.Or(t.err, checkReported(where, of, t.expected))
}

// writeDocuments ends the documents.
func (t *reporter) writeDocuments() error {
	for _, d := range t.documents {
		if err := d.file.finish(d.finish()); err != nil {
			return fmt.Errorf("%s is not written: %w", d.file.path, err)
		}
	}
	return nil
}

// abandon ends what finish has not ended.
func (t *reporter) abandon() {
	if t.stop != nil {
		t.stop()
	}
	for _, d := range t.documents {
		d.file.discard()
	}
	if t.out != nil {
		t.out.discard()
	}
}

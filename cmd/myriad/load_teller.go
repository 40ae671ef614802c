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

// teller tells of a run: while it goes on, and at its end. It belongs to the
// goroutine that calls load.Run.
type teller struct {
	flags     *resultFlags
	expected  []load.Expectation
	stdout    io.Writer
	stderr    io.Writer
	text      bool // the result is for people
	observers []func(load.Event)
	live      *liveView // nil for none
	out       *outFile  // the events that were asked for, nil for none
	scratch   *os.File  // those that nobody asked for, nil for none
	stream    *os.File  // of the two that which documents are written from, nil for none
	documents []document
	stop      func() // ends serving the metrics, nil for none
	err       error  // the first of writing
}

// document is a file that is written from the events of a run when it is over.
type document struct {
	file  *outFile
	write func(*load.Stream, io.Writer) error
}

// open opens what the flags name, so that it fails before the run if it does.
func (f *resultFlags) open(cmd *cobra.Command) (*teller, error) {
	t := &teller{flags: f, stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), text: !f.json && f.out != "-"}
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

func (t *teller) readExpected() (err error) {
	t.expected, err = parseExpectations(t.flags.expect)
	return err
}

// openDocuments creates the files that are written in the end.
func (t *teller) openDocuments() error {
	for _, d := range []struct {
		flag, path string
		write      func(*load.Stream, io.Writer) error
	}{
		{"csv", t.flags.csv, (*load.Stream).WriteCSV},
		{"html", t.flags.html, func(s *load.Stream, w io.Writer) error { return s.WriteHTML(w, t.expected...) }},
	} {
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
		t.documents = append(t.documents, document{file, d.write})
	}
	return nil
}

// openStream creates the file of events: the one that was asked for, or one to
// write documents from, so that a long run needs no memory for its events.
func (t *teller) openStream() (err error) {
	if t.text && t.flags.out != "" {
		if t.out, err = createOut(t.flags.out); err != nil {
			return usagef("--out: %w", err)
		}
		t.encode(t.out.file)
	}
	switch {
	case len(t.documents) == 0:
	case t.out != nil && t.out.name != "": // a file that can be read
		t.stream = t.out.file
	default:
		if t.scratch, err = os.CreateTemp("", "myriad-*.jsonl"); err != nil {
			return err
		}
		t.stream = t.scratch
		t.encode(t.stream)
	}
	return nil
}

func (t *teller) serveMetrics() error {
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
func (t *teller) encode(w io.Writer) {
	lines := json.NewEncoder(w)
	t.observers = append(t.observers, func(e load.Event) { t.err = cmp.Or(t.err, lines.Encode(e)) })
}

// observe is load.Config.Observe.
func (t *teller) observe(e load.Event) {
	if e.Plan != nil {
		spareProcessors(e.Plan.Loops, false)
	}
	for _, o := range t.observers {
		o(e)
	}
}

// finish writes the result, nil for none, says which expectations it does not
// meet, and closes what open has opened.
func (t *teller) finish(result *load.Result) error {
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

// writeDocuments writes the documents from the events.
func (t *teller) writeDocuments() error {
	if len(t.documents) == 0 {
		return nil
	}
	if _, err := t.stream.Seek(0, io.SeekStart); err != nil {
		return err
	}
	stream, err := load.ReadStream(t.stream)
	if err != nil {
		return err
	}
	for _, d := range t.documents {
		if err := d.file.write(func(w io.Writer) error { return d.write(stream, w) }); err != nil {
			return fmt.Errorf("%s is not written: %w", d.file.path, err)
		}
	}
	return nil
}

// abandon ends what finish has not ended.
func (t *teller) abandon() {
	if t.stop != nil {
		t.stop()
	}
	for _, d := range t.documents {
		d.file.discard()
	}
	if t.out != nil {
		t.out.discard()
	}
	if t.scratch != nil {
		t.scratch.Close()
		os.Remove(t.scratch.Name())
	}
}

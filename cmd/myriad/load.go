package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/load"
)

const loadExamples = `  myriad load -c 10000 --connect-rate=2000 --duration=60s -m $'ping\n' 127.0.0.1:9000
  myriad load -c 1000 --rate 50k --arrivals poisson --out run.jsonl 127.0.0.1:9000
  myriad load -c 100 -r @10ms,p99.9 127.0.0.1:9000
  myriad load -c 50 --pipeline 16 -em 'PING\r\n' --answer '+PONG\r\n' 127.0.0.1:6379
  myriad load -c 200 https://example.com/
  myriad load --ramp 0:100k:60s --lifetime 30s --src 10.0.0.10-10.0.0.20 10.0.0.7:9000`

func newLoad() *cobra.Command {
	var f loadFlags
	cmd := &cobra.Command{
		Use:   "load [flags] HOST:PORT|unix:PATH|URL...",
		Short: "Load a TCP server, check every answer and measure",
		Long: `Load a TCP server, check every answer and measure.

All connections are opened, then each keeps a number of messages in flight and
sends the next one when an answer is there: a closed loop. With --rate or
--message-rate messages are sent at planned times, whether answers come or not:
an open loop, whose latencies count from the planned times. Every byte of every
answer is compared with what was sent, or with --answer; with --http with the
server's answer to one request before the run, but for the value of a Date; with
--match answers are told apart by a rule and not compared.

Numbers take k, M and G, and ki, Mi and Gi for powers of 1024. Several targets
take the connections in turn. A target can be a URL, which says the protocol:
tcp:// or tls://, http:// or https:// (--http and a GET of its path), ws:// or
wss:// (--ws).

It exits with 1 if nothing could be connected, if answers were wrong or missing,
if connections were lost, if an expectation was not met, or if it was
interrupted; the result so far is printed all the same. It exits with 2 if it is
called wrongly.`,
		Example: loadExamples,
		Args:    cobra.ArbitraryArgs, // looked at by complete
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.complete(cmd, args); err != nil {
				return err
			}
			f.ask(cmd)
			if f.goal() != (goal{}) {
				return f.search(cmd)
			}
			return f.run(cmd)
		},
	}
	f.add(cmd)
	return cmd
}

// complete fills in the rest of the configuration and checks it.
func (f *loadFlags) complete(cmd *cobra.Command, targets []string) error {
	// Before files are read, which can be missing because of it.
	if err := checkForeign(cmd.Flags().Changed); err != nil {
		return err
	}
	files, err := f.files.read()
	if err != nil {
		return err
	}
	if f.cfg, err = f.config(cmd.Flags().Changed, files, targets); err != nil {
		return err
	}
	if f.cfg.TLS, err = f.tls.config(cmd); err != nil {
		return err
	}
	check := f.cfg
	if f.goal() != (goal{}) {
		check.Rate.PerSecond = 1 // the search will say how many
	}
	if err := check.Validate(); err != nil {
		return usageError{err}
	}
	return nil
}

// run runs the load and prints what there is to print.
func (f *loadFlags) run(cmd *cobra.Command) error {
	f.spare()
	t, err := f.results.open(cmd)
	if err != nil {
		return err
	}
	f.cfg.Observe = t.observe
	result, err := load.Run(cmd.Context(), f.cfg)
	outErr := t.finish(result)
	if result == nil {
		return cmp.Or(err, outErr)
	}
	if err != nil {
		err = fmt.Errorf("the run ended early: %w", err)
	}
	if outErr == nil && err == nil && !f.cfg.HTTP && answersHTTP(result) {
		return fmt.Errorf("the server answers HTTP, and what is sent is not; use a URL such as http://%s/, --http, or --match http with a request of your own", f.cfg.Target)
	}
	return cmp.Or(outErr, err, result.Err())
}

// answersHTTP says whether the first wrong answer is one of HTTP, or a page alone, as some
// servers send it to what they take for HTTP/0.9.
func answersHTTP(r *load.Result) bool {
	m := r.FirstMismatch
	return m != nil && m.Byte == 0 && (strings.HasPrefix(m.Got, `"HTTP/1.`) || strings.HasPrefix(m.Got, `"<!DOCTYPE `))
}

// spare keeps a processor for handshakes, which compute beside the loops.
func (f *loadFlags) spare() {
	if f.cfg.TLS != nil {
		spareProcessors(max(f.cfg.Loops, 1), false)
	}
}

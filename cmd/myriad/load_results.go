package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/internal/quantity"
	"github.com/myriad-go/myriad/load"
)

// resultFlags say what is told of a run, and where.
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
	flags.StringVar(&f.html, "html", "", "write a page with charts, which needs nothing else, to this `FILE`")
	flags.StringVar(&f.metrics, "metrics", "", "serve metrics for Prometheus on this `ADDRESS` while it runs, on loopback if it has no host")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "show nothing while it runs")
}

// maxPercentiles bounds what --latency-percentiles prints.
const maxPercentiles = 100

// parsePercentiles reads percentiles with commas between them.
func parsePercentiles(text string) ([]float64, error) {
	var list []float64
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

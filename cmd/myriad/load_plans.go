package main

import (
	"strconv"
	"strings"
	"time"

	"github.com/myriad-go/myriad/load"
)

// ratePlan is what --rate and --message-rate say: messages a second, or a
// latency for which the highest rate is searched.
type ratePlan struct {
	from, to float64 // to is 0 for a rate that does not change
	goal     goal
}

// goal is the latency of a search; the zero value is none.
type goal struct {
	under   time.Duration
	percent float64 // of the answers that have to come in less
}

// parseRatePlan reads "500", "1k:100k", "@10ms" or "@10ms,p99.9".
func parseRatePlan(text string) (p ratePlan, err error) {
	if latency, found := strings.CutPrefix(text, "@"); found {
		p.goal, err = parseGoal(latency)
		return p, err
	}
	from, to, changes := strings.Cut(text, ":")
	n, ok := parseNumber(from)
	if p.from = n; !ok || n == 0 {
		return ratePlan{}, wantRate
	}
	if !changes {
		return p, nil
	}
	n, ok = parseNumber(to)
	if p.to = n; !ok || n == 0 {
		return ratePlan{}, wantRate
	}
	return p, nil
}

// parseGoal reads a latency, and a percentile behind a comma; it is 99 if none
// is given.
func parseGoal(text string) (goal, error) {
	latency, percentile, found := strings.Cut(text, ",")
	g := goal{percent: 99}
	var err error
	if g.under, err = parsePeriod(latency); err != nil {
		return goal{}, wantRate
	}
	if !found {
		return g, nil
	}
	digits, found := strings.CutPrefix(percentile, "p")
	if g.percent, err = parsePercent(digits); !found || err != nil || g.percent == 100 {
		return goal{}, wantRate
	}
	return g, nil
}

// parsePercent reads a percentile above 0, at most 100.
func parsePercent(text string) (float64, error) {
	p, err := strconv.ParseFloat(text, 64)
	if strings.Trim(text, "0123456789.") != "" || err != nil || p <= 0 || p > 100 {
		return 0, wanted("percentiles above 0 and at most 100, such as 95,99,99.5")
	}
	return p, nil
}

// maxPercents bounds what --latency-percentiles prints.
const maxPercents = 100

// parsePercents reads percentiles with commas between them, as tcpkali's.
func parsePercents(text string) ([]float64, error) {
	var list []float64
	for part := range strings.SplitSeq(text, ",") {
		p, err := parsePercent(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		if len(list) == maxPercents {
			return nil, wanted("at most " + strconv.Itoa(maxPercents) + " percentiles")
		}
		list = append(list, p)
	}
	return list, nil
}

// parseRamp reads a time, or "0:100k:60s".
func parseRamp(text string) (r load.Ramp, err error) {
	over := text
	if numbers := strings.Split(text, ":"); len(numbers) == 3 {
		from, fromErr := parseCount(numbers[0])
		to, toErr := parseMore(numbers[1])
		if fromErr != nil || toErr != nil || from > to {
			return load.Ramp{}, wantRamp
		}
		r.From, r.To, over = from, to, numbers[2]
	}
	if r.Over, err = parsePeriod(over); err != nil {
		return load.Ramp{}, wantRamp
	}
	return r, nil
}

// sine is what --sine says.
type sine struct {
	swing  float64
	period time.Duration
}

// parseSine reads "0.5:10s".
func parseSine(text string) (sine, error) {
	share, period, _ := strings.Cut(text, ":")
	swing, ok := parseNumber(share)
	d, err := parsePeriod(period)
	if !ok || swing == 0 || swing > 1 || err != nil {
		return sine{}, wantSine
	}
	return sine{swing, d}, nil
}

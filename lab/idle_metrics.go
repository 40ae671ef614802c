package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const (
	// firstCollections is how often a server collects its garbage before the first
	// sample, from which on growth is counted. What it took to start goes back bit by
	// bit: after nine times nothing more of it did, and after two there were still up to
	// 500 KB, which the first connections would have used and seemed to take nothing.
	firstCollections = 12
	// laterCollections is the same before each later one: the second time takes back what
	// the first answer took.
	laterCollections = 2
)

// collect has the server collect its garbage and give that back to the system so many
// times, if it serves what package admin does; others are left alone.
func (m MetricsSource) collect(ctx context.Context, times int) {
	for range times {
		if m.Addr == "" {
			return
		}
		_ = m.fetch(ctx, "/debug/pprof/heap?gc=1&debug=1", func(in io.Reader) error {
			_, err := io.Copy(io.Discard, in)
			return err
		})
	}
}

// Values reads metrics that are plain numbers, by name. One that has labels is the
// sum over them. It fails if one is missing.
func (m MetricsSource) Values(ctx context.Context, names ...string) (values map[string]float64, err error) {
	err = m.get(ctx, func(in io.Reader) error {
		values, err = readValues(in, names)
		return err
	})
	return values, err
}

// known is Values for metrics of which some may be missing.
func (m MetricsSource) known(ctx context.Context, names ...string) (values map[string]float64, err error) {
	err = m.get(ctx, func(in io.Reader) error {
		values, err = readKnown(in, names)
		return err
	})
	return values, err
}

// readValues is readKnown, and fails if one is missing.
func readValues(in io.Reader, names []string) (map[string]float64, error) {
	values, err := readKnown(in, names)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, ok := values[name]; !ok {
			return nil, fmt.Errorf("metrics: no %s; expected a server that shows it", name)
		}
	}
	return values, nil
}

// readKnown reads lines such as name 12 and name{label="text"} 12.
func readKnown(in io.Reader, names []string) (map[string]float64, error) {
	wanted := make(map[string]bool, len(names))
	for _, name := range names {
		wanted[name] = true
	}
	values := make(map[string]float64, len(names))
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := lines.Text()
		name := line[:max(strings.IndexAny(line, "{ "), 0)]
		if !wanted[name] {
			continue
		}
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: %.100q; expected a line such as %s 12", line, name)
		}
		values[name] += v
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return values, nil
}

package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Values reads metrics that are plain numbers, by name. One that has labels is the
// sum over them. It fails if one is missing.
func (m MetricsSource) Values(ctx context.Context, names ...string) (values map[string]float64, err error) {
	err = m.get(ctx, func(in io.Reader) error {
		values, err = readValues(in, names)
		return err
	})
	return values, err
}

// readValues reads lines such as name 12 and name{label="text"} 12.
func readValues(in io.Reader, names []string) (map[string]float64, error) {
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
	for _, name := range names {
		if _, ok := values[name]; !ok {
			return nil, fmt.Errorf("metrics: no %s; expected a server that shows it", name)
		}
	}
	return values, nil
}

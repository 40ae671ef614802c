package doctor

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
)

// target is the value that a change gives to a setting that has the present one.
// What is more than was asked for stays: of settings that are amounts, and of lists,
// nothing is taken away. A change which itself does that, as an undo does, or which is
// of a choice, is made only if the setting is still what the change says that it was.
func (c Change) target(present string) (string, error) {
	to := c.normal(c.To)
	switch {
	case present == to:
		return to, nil
	case c.From == "" || c.adds():
		return c.widest(present, to), nil
	case present != c.normal(c.From):
		return "", fmt.Errorf("it is %s now, expected %s: it was changed since, and is left as it is", orNone(present), c.From)
	}
	return to, nil
}

// adds says whether the change is of something that there can be more of, and makes
// more of it.
func (c Change) adds() bool {
	adds := c.Kind != Link && c.Kind != Address
	if c.Kind == Sysctl {
		adds = settings[c.Name].amount || c.Name == reservedName
	}
	return adds && c.widest(c.From, c.To) == c.normal(c.To)
}

// normal is how a value is written that can be written in several ways.
func (c Change) normal(value string) string {
	switch c.Kind {
	case Nofile, Memlock:
		if r, err := parseRlimit(value); err == nil {
			return r.String()
		}
	case Address:
		if p, err := parsePrefix(value); err == nil {
			return p.String()
		}
	case Sysctl:
		if ports, ok := portList(value); ok && c.Name == reservedName {
			return portRuns(ports)
		}
	}
	return strings.Join(strings.Fields(value), " ")
}

// widest is a value that allows for what both values allow, in its normal form.
func (c Change) widest(present, to string) string {
	to = c.normal(to)
	switch c.Kind {
	case Nofile, Memlock:
		had, err := parseRlimit(present)
		want, wantErr := parseRlimit(to)
		if err == nil && wantErr == nil {
			return had.raised(want).String()
		}
	case Sysctl:
		had, ok := portList(present)
		want, wantOK := portList(to)
		if c.Name == reservedName && ok && wantOK {
			maps.Copy(want, had)
			return portRuns(want)
		}
		if s, ok := settings[c.Name]; ok && s.amount {
			return mostOf(present, to, c.Name == rangeName)
		}
	case Cgroup:
		return mostOf(present, to, false)
	}
	return to
}

// mostOf is, number for number, the higher of two values; "max" is the highest.
// Of a range the first number is the lower. If they are no such values it is the
// second.
func mostOf(present, to string, isRange bool) string {
	had, want := strings.Fields(present), strings.Fields(to)
	if len(had) != len(want) {
		return to
	}
	for i := range want {
		a, ok := parseAmount(had[i])
		b, wantOK := parseAmount(want[i])
		if !ok || !wantOK {
			return to
		}
		if lower := isRange && i == 0; a > b != lower && a != b {
			want[i] = had[i]
		}
	}
	return strings.Join(want, " ")
}

func parseAmount(field string) (int64, bool) {
	if field == "max" {
		return math.MaxInt64, true
	}
	n, err := strconv.ParseInt(field, 10, 64)
	return n, err == nil
}

package doctor

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// This file has the values of Changes of the kinds Nofile and Memlock. Such a
// value is the soft limit and the hard one, as "1024:4096", or one number: then
// it is both, and as To what both have to be at least. "unlimited", or -1, is no
// limit.

// parseRlimit reads such a value; one number is both limits.
func parseRlimit(text string) (Rlimit, error) {
	soft, hard, two := strings.Cut(text, ":")
	if !two {
		hard = soft
	}
	var r Rlimit
	var errs [2]error
	r.Soft, errs[0] = parseOneLimit(soft)
	r.Hard, errs[1] = parseOneLimit(hard)
	if errs[0] != nil || errs[1] != nil || below(r.Hard, r.Soft) {
		return Rlimit{}, fmt.Errorf("the limit %q; expected a number, SOFT:HARD with SOFT not above HARD, or unlimited", text)
	}
	return r, nil
}

func parseOneLimit(text string) (int64, error) {
	if text == "unlimited" || text == "-1" {
		return -1, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	return int64(n), err
}

// below says whether a limit is below another; -1 is above all.
func below(a, b int64) bool { return order(a) < order(b) }

func order(limit int64) int64 {
	if limit < 0 {
		return math.MaxInt64
	}
	return limit
}

// higher is the higher of two limits.
func higher(a, b int64) int64 {
	if below(a, b) {
		return b
	}
	return a
}

func (r Rlimit) String() string { return limitText(r.Soft) + ":" + limitText(r.Hard) }

func limitText(limit int64) string {
	if limit < 0 {
		return "unlimited"
	}
	return strconv.FormatInt(limit, 10)
}

// raised is what a limit becomes that has to be at least another.
func (r Rlimit) raised(to Rlimit) Rlimit {
	return Rlimit{Soft: higher(r.Soft, to.Soft), Hard: higher(r.Hard, to.Hard)}
}

// limitCommand is the command line that sets a limit in the shell which reads
// it. flag is the limit's, whose unit is so many of the change's.
func limitCommand(flag string, unit int64, from, to string) string {
	want, err := parseRlimit(to)
	if err != nil {
		return ""
	}
	in := func(limit int64) string {
		if limit > 0 {
			limit = (limit + unit - 1) / unit
		}
		return limitText(limit)
	}
	soft, hard := "ulimit -S"+flag+" "+in(want.Soft), "ulimit -H"+flag+" "+in(want.Hard)
	had, err := parseRlimit(from)
	known := err == nil && strings.Contains(from, ":")
	switch {
	case known && !below(had.Hard, want.Hard) && !strings.Contains(to, ":"), known && had.Hard == want.Hard:
		return soft // -n alone would lower the hard limit
	case want.Soft == want.Hard:
		return "ulimit -" + flag + " " + in(want.Soft)
	case known && below(want.Hard, had.Hard):
		return soft + " && " + hard // never above the hard one
	}
	return hard + " && " + soft
}

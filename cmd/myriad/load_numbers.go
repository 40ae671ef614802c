package main

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// wanted is the error of a value on the command line that can't be read. It
// says what was expected; loadFlagError puts the flag and the value before it.
type wanted string

func (w wanted) Error() string { return "expected " + string(w) }

const (
	wantCount     = wanted("a whole number such as 500, 20k or 1.5M")
	wantMore      = wanted("a whole number above 0, such as 500, 20k or 1.5M")
	wantBandwidth = wanted("bytes a second such as 500k, 64ki or 1M, or as 100Mbps or 1MBps")
	wantTime      = wanted("a time such as 1.5s, 100ms or 2m; a number alone is seconds")
	wantRate      = wanted("messages a second above 0, such as 500 or 20k; 1k:100k for a change from the first to the second; or @10ms or @10ms,p99.9 for a search")
	wantRamp      = wanted("a time such as 60s, or FROM:TO:TIME such as 0:100k:60s, with FROM not above TO")
	wantSine      = wanted("SHARE:PERIOD such as 0.5:10s, with a share above 0, at most 1, and a period above 0")
)

// maxNumber bounds every number of a flag: what is below it is exact in a
// float64 and fits an int64.
const maxNumber = 1 << 53

// multiples are what can stand behind a number, the longer ones first. They are
// tcpkali's, but that k is 1000 also for sizes, and ki is 1024.
var multiples = []struct {
	suffix string
	factor float64
}{
	{"ki", 1 << 10}, {"Ki", 1 << 10}, {"mi", 1 << 20}, {"Mi", 1 << 20}, {"gi", 1 << 30}, {"Gi", 1 << 30},
	{"k", 1e3}, {"K", 1e3}, {"m", 1e6}, {"M", 1e6}, {"g", 1e9}, {"G", 1e9},
}

// parseNumber reads a number of 0 to maxNumber with at most one point, and a
// multiple behind it.
func parseNumber(text string) (n float64, ok bool) {
	factor := 1.0
	for _, m := range multiples {
		if digits, found := strings.CutSuffix(text, m.suffix); found {
			text, factor = digits, m.factor
			break
		}
	}
	// ParseFloat reads more than that: signs, exponents, names.
	if strings.Trim(text, "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	n *= factor
	return n, err == nil && n <= maxNumber
}

// parseCount reads a whole number.
func parseCount(text string) (int, error) {
	n, ok := parseNumber(text)
	// An int can have 32 bits.
	if !ok || n != math.Trunc(n) || n > math.MaxInt {
		return 0, wantCount
	}
	return int(n), nil
}

// parseMore reads a whole number above 0.
func parseMore(text string) (int, error) {
	n, err := parseCount(text)
	if err != nil || n == 0 {
		return 0, wantMore
	}
	return n, nil
}

// parseLong reads a whole number above 0 that needs 64 bits.
func parseLong(text string) (int64, error) {
	n, ok := parseNumber(text)
	if !ok || n < 1 || n != math.Trunc(n) {
		return 0, wantMore
	}
	return int64(n), nil
}

// parseSeed reads any number of 64 bits.
func parseSeed(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, wanted("a whole number of 0 to 18446744073709551615")
	}
	return n, nil
}

// parseBandwidth reads bytes a second, with tcpkali's suffixes too: Bps for
// bytes, bps for bits.
func parseBandwidth(text string) (int, error) {
	share := 1.0
	if digits, found := strings.CutSuffix(text, "Bps"); found {
		text = digits
	} else if digits, found := strings.CutSuffix(text, "bps"); found {
		text, share = digits, 1.0/8
	}
	n, ok := parseNumber(text)
	n = math.Trunc(n * share)
	if !ok || n < 1 || n > math.MaxInt {
		return 0, wantBandwidth
	}
	return int(n), nil
}

// parseTime reads a time of at least 0: Go's, days, or a number alone, which is
// seconds as tcpkali has it.
func parseTime(text string) (time.Duration, error) {
	unit := time.Second
	digits, days := strings.CutSuffix(text, "d")
	if days {
		unit = 24 * time.Hour
	}
	if strings.Trim(digits, "0123456789.") == "" {
		n, err := strconv.ParseFloat(digits, 64)
		if n *= float64(unit); err != nil || n > maxNumber {
			return 0, wantTime
		}
		return time.Duration(n), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, wantTime
	}
	return d, nil
}

// parsePeriod reads a time above 0.
func parsePeriod(text string) (time.Duration, error) {
	d, err := parseTime(text)
	if err != nil || d == 0 {
		return 0, wanted("a time above 0, such as 1.5s, 100ms or 2m")
	}
	return d, nil
}

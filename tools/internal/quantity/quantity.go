// Package quantity parses numbers, rates and times in flags and configuration files. Its errors have the type Error and
// describe the expected format.
package quantity

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Error describes the expected format of text that could not be parsed.
type Error string

func (e Error) Error() string { return "expected " + string(e) }

const (
	WantCount    = Error("a whole number such as 500, 20k or 1.5M")
	WantPositive = Error("a whole number above 0, such as 500, 20k or 1.5M")
	WantDuration = Error("a time such as 1.5s, 100ms or 2m; a number alone is seconds")
	WantPeriod   = Error("a time above 0, such as 1.5s, 100ms or 2m")
	WantSeed     = Error("a whole number of 0 to 18446744073709551615")
)

// Max is the largest number that the functions of this package accept, except for seeds. A float64 represents all whole
// numbers up to Max exactly.
const Max = 1 << 53

// multiples lists the suffixes of numbers with their factors, longer suffixes first.
var multiples = []struct {
	suffix string
	factor float64
}{
	{"ki", 1 << 10}, {"Ki", 1 << 10}, {"mi", 1 << 20}, {"Mi", 1 << 20}, {"gi", 1 << 30}, {"Gi", 1 << 30},
	{"k", 1e3}, {"K", 1e3}, {"m", 1e6}, {"M", 1e6}, {"g", 1e9}, {"G", 1e9},
}

// ParseNumberWithSuffix parses a number from 0 to Max. The number may have a decimal point and a suffix. The suffixes
// k, M and G mean powers of 1000. The suffixes ki, Mi and Gi mean powers of 1024.
func ParseNumberWithSuffix(text string) (n float64, ok bool) {
	factor := 1.0
	for _, m := range multiples {
		if digits, found := strings.CutSuffix(text, m.suffix); found {
			text, factor = digits, m.factor
			break
		}
	}
	// ParseFloat would also accept signs, exponents and names.
	if strings.Trim(text, "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	n *= factor
	return n, err == nil && n <= Max
}

// ParseCount parses a whole number from 0 to Max, such as 500, 20k or 1.5M.
func ParseCount(text string) (int, error) {
	n, ok := ParseNumberWithSuffix(text)
	// An int may have only 32 bits.
	if !ok || n != math.Trunc(n) || n > math.MaxInt {
		return 0, WantCount
	}
	return int(n), nil
}

// ParsePositive parses a whole number above 0, such as 500, 20k or 1.5M.
func ParsePositive(text string) (int, error) {
	n, err := ParseCount(text)
	if err != nil || n == 0 {
		return 0, WantPositive
	}
	return n, nil
}

// ParsePositive64 parses a whole number above 0 like ParsePositive, but returns an int64.
func ParsePositive64(text string) (int64, error) {
	n, ok := ParseNumberWithSuffix(text)
	if !ok || n < 1 || n != math.Trunc(n) {
		return 0, WantPositive
	}
	return int64(n), nil
}

// ParseDecimalSeed parses a decimal number from 0 to 1<<64 - 1.
func ParseDecimalSeed(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, WantSeed
	}
	return n, nil
}

// ParseDurationOrSeconds parses a duration of 0 or more. It accepts Go durations such as 1m30s, days such as 2d, and
// numbers without a unit, which are seconds.
func ParseDurationOrSeconds(text string) (time.Duration, error) {
	unit := time.Second
	digits, days := strings.CutSuffix(text, "d")
	if days {
		unit = 24 * time.Hour
	}
	if strings.Trim(digits, "0123456789.") == "" {
		n, err := strconv.ParseFloat(digits, 64)
		if n *= float64(unit); err != nil || n > Max {
			return 0, WantDuration
		}
		return time.Duration(n), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, WantDuration
	}
	return d, nil
}

// ParsePositiveDurationOrSeconds parses a duration above 0, in the formats of ParseDurationOrSeconds.
func ParsePositiveDurationOrSeconds(text string) (time.Duration, error) {
	d, err := ParseDurationOrSeconds(text)
	if err != nil || d == 0 {
		return 0, WantPeriod
	}
	return d, nil
}

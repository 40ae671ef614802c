// Package procfs reads what the kernel says of a process and of the machine,
// from /proc and /sys. It is the one place in Myriad that knows these files.
//
// Each file has a parser, which is a pure function, and a thin reader. Sizes
// are bytes, times are durations, counts are plain integers: no caller sees
// pages, kibibytes or clock ticks. Every reader may be called from any
// goroutine at any time. On a system other than Linux every reader returns
// ErrNotAvailable.
package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// ErrNotAvailable is what every reader returns on a system without /proc.
var ErrNotAvailable = errors.New("procfs: not available on " + runtime.GOOS)

// tick is the unit of processor time in /proc: USER_HZ is 100 on every
// architecture that Go supports.
const tick = 10 * time.Millisecond

// ticks turns a decimal number of clock ticks into a duration.
func ticks(field string) (time.Duration, error) {
	n, err := strconv.ParseInt(field, 10, 64)
	if err != nil {
		return 0, err
	}
	if n < 0 || n > math.MaxInt64/int64(tick) {
		return 0, fmt.Errorf("%d ticks: out of range", n)
	}
	return time.Duration(n) * tick, nil
}

// sizes reads the lines "Name:   123 kB" of a file and returns bytes by name.
// Lines of any other form are passed over.
func sizes(b []byte) (map[string]int64, error) {
	found := make(map[string]int64)
	for line := range bytes.Lines(b) {
		name, rest, ok := strings.Cut(string(line), ":")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) != 2 || fields[1] != "kB" {
			continue
		}
		n, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if n < 0 || n > math.MaxInt64/1024 {
			return nil, fmt.Errorf("%s: %d kB: out of range", name, n)
		}
		found[name] = n * 1024
	}
	return found, nil
}

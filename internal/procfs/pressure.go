package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ReadCPUPressure reads for how long, since the machine started, some task of it has
// been ready to run but had to wait for a processor: the total of the line "some" of
// /proc/pressure/cpu (Linux 4.20, Documentation/accounting/psi.rst). Two readings
// tell of the time in between, to the moment. The time is the mean of the
// processors that had work, so it passes no faster than the clock. A kernel without
// pressure stall information has no such file.
func ReadCPUPressure() (time.Duration, error) {
	b, err := readFile("/proc/pressure/cpu")
	if err != nil {
		return 0, err
	}
	return parsePressure(b)
}

// parsePressure finds the total of "some avg10=0.00 avg60=0.00 avg300=0.00 total=0",
// which is microseconds.
func parsePressure(b []byte) (time.Duration, error) {
	for line := range bytes.Lines(b) {
		fields := strings.Fields(string(line))
		if len(fields) == 0 || fields[0] != "some" {
			continue
		}
		for _, field := range fields[1:] {
			digits, ok := strings.CutPrefix(field, "total=")
			if !ok {
				continue
			}
			n, err := strconv.ParseInt(digits, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("procfs: pressure: %w", err)
			}
			if n < 0 || n > math.MaxInt64/int64(time.Microsecond) {
				return 0, fmt.Errorf("procfs: pressure: %d µs: out of range", n)
			}
			return time.Duration(n) * time.Microsecond, nil
		}
	}
	return 0, errors.New("procfs: pressure: no line some with a total")
}

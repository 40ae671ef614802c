package cgroup

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// CPUPressure returns the total time for which tasks of the process's control group have waited for a CPU, as measured
// by Linux pressure stall information (PSI). If the kernel reports no pressure for the group, the time applies to all
// tasks of the system. supported is false if the kernel does not report pressure at all.
func CPUPressure() (total time.Duration, supported bool) {
	text, err := []byte(nil), error(nil)
	if g, groupErr := readCgroupPaths("", "self"); groupErr == nil && g.unified != "" {
		text, err = os.ReadFile("/sys/fs/cgroup" + g.unified + "/cpu.pressure")
	}
	if len(text) == 0 || err != nil {
		text, _ = os.ReadFile("/proc/pressure/cpu")
	}
	return parsePressureTotal(string(text))
}

// parsePressureTotal parses text such as "some avg10=0.00 avg60=0.00 avg300=0.00 total=123". The number after total= is
// in microseconds.
func parsePressureTotal(text string) (total time.Duration, ok bool) {
	line, _, _ := strings.Cut(text, "\n")
	_, digits, found := strings.Cut(line, "total=")
	n, err := strconv.ParseInt(digits, 10, 64)
	return time.Duration(n) * time.Microsecond, found && err == nil
}

package cgroup

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// CPUPressure returns how long, in total, tasks of the process's control group have waited for a CPU (PSI). If the
// group is unknown, all tasks of the system count. ok is false if the kernel does not report pressure.
func CPUPressure() (total time.Duration, ok bool) {
	text, err := []byte(nil), error(nil)
	if g, groupErr := readCgroupPaths("", "self"); groupErr == nil && g.unified != "" {
		text, err = os.ReadFile("/sys/fs/cgroup" + g.unified + "/cpu.pressure")
	}
	if len(text) == 0 || err != nil {
		text, _ = os.ReadFile("/proc/pressure/cpu")
	}
	return parsePressureTotal(string(text))
}

// parsePressureTotal parses text such as "some avg10=0.00 avg60=0.00 avg300=0.00 total=123". total is in µs.
func parsePressureTotal(text string) (total time.Duration, ok bool) {
	line, _, _ := strings.Cut(text, "\n")
	_, digits, found := strings.Cut(line, "total=")
	n, err := strconv.ParseInt(digits, 10, 64)
	return time.Duration(n) * time.Microsecond, found && err == nil
}

package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// CPUTime is what one CPU, or all of them together, did since the machine
// started, in steps of 10 ms.
type CPUTime struct {
	// Busy is time spent on processes, on the kernel and on interrupts.
	Busy time.Duration
	// Idle is time without work, waiting for a disk included.
	Idle time.Duration
	// Stolen is time in which a virtual machine wanted to run and the host
	// ran something else.
	Stolen time.Duration
}

// CPUs is /proc/stat: the time of every CPU that is online.
type CPUs struct {
	// All is the sum over the CPUs.
	All CPUTime
	// Each is the time by CPU number.
	Each map[int]CPUTime
}

// ReadCPUs reads what the machine's CPUs have done so far. Two readings tell
// what they did in between.
func ReadCPUs() (CPUs, error) {
	b, err := readFile("/proc/stat")
	if err != nil {
		return CPUs{}, err
	}
	return parseCPUs(b)
}

// parseCPUs parses the lines "cpu ..." and "cpuN ..." of /proc/stat.
func parseCPUs(b []byte) (CPUs, error) {
	c := CPUs{Each: make(map[int]CPUTime)}
	seen := false
	for line := range bytes.Lines(b) {
		fields := strings.Fields(string(line))
		if len(fields) == 0 || !strings.HasPrefix(fields[0], "cpu") {
			continue
		}
		t, err := parseCPUTime(fields[1:])
		if err != nil {
			return CPUs{}, fmt.Errorf("procfs: stat: %s: %w", fields[0], err)
		}
		if fields[0] == "cpu" {
			c.All, seen = t, true
			continue
		}
		n, err := strconv.Atoi(fields[0][len("cpu"):])
		if err != nil {
			return CPUs{}, fmt.Errorf("procfs: stat: %w", err)
		}
		c.Each[n] = t
	}
	if !seen {
		return CPUs{}, errors.New("procfs: stat: no line cpu")
	}
	return c, nil
}

// parseCPUTime adds up the columns user, nice, system, idle, iowait, irq,
// softirq and steal. The columns behind them, guest time, are part of user
// already. Kernels before 2.6.11 had fewer columns.
func parseCPUTime(fields []string) (CPUTime, error) {
	if len(fields) < 4 {
		return CPUTime{}, fmt.Errorf("%d columns, expected at least 4", len(fields))
	}
	var t CPUTime
	into := []*time.Duration{&t.Busy, &t.Busy, &t.Busy, &t.Idle, &t.Idle, &t.Busy, &t.Busy, &t.Stolen}
	for i, field := range fields[:min(len(fields), len(into))] {
		d, err := ticks(field)
		if err != nil {
			return CPUTime{}, err
		}
		if *into[i]+d < *into[i] {
			return CPUTime{}, errors.New("out of range")
		}
		*into[i] += d
	}
	return t, nil
}

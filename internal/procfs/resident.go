package procfs

import (
	"bytes"
	"errors"
	"fmt"
)

// Resident is how much of the machine's memory a process has, in bytes, with every
// shared page in full.
type Resident struct {
	// Peak is the most it has been since the process began its program. Both
	// may be off by some pages for each thread.
	Now, Peak int64
	// Anonymous is what of Now no file holds: heap and stacks. It is 0 where the
	// kernel doesn't tell (before Linux 4.5).
	Anonymous int64
}

// ReadResident reads /proc/PID/status. It takes some 20 µs however large the
// process is, where ReadMemory takes some 3 ms a gigabyte.
func ReadResident(pid int) (Resident, error) {
	b, err := readFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Resident{}, err
	}
	return parseResident(b)
}

// parseResident parses /proc/PID/status. It begins with the name of the process,
// which may look like anything, so it looks at what is behind that.
func parseResident(b []byte) (Resident, error) {
	if _, rest, ok := bytes.Cut(b, []byte("\n")); ok {
		b = rest
	}
	found, err := sizes(b)
	if err != nil {
		return Resident{}, fmt.Errorf("procfs: status: %w", err)
	}
	now, ok := found["VmRSS"]
	peak, too := found["VmHWM"]
	if !ok || !too { // a process that has ended, or one of the kernel's own
		return Resident{}, errors.New("procfs: status: no lines VmHWM and VmRSS")
	}
	return Resident{Now: now, Peak: max(now, peak), Anonymous: found["RssAnon"]}, nil
}

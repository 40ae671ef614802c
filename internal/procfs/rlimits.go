package procfs

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Rlimit is a resource limit of a process, see getrlimit(2); -1 is none.
type Rlimit struct{ Soft, Hard int64 }

// Rlimits are limits of a process.
type Rlimits struct {
	// Nofile is above the highest descriptor that can be opened in a table, Memlock
	// the bytes of memory that can be locked, Nproc how many tasks there can be of
	// the process's user.
	Nofile, Memlock, Nproc Rlimit
}

// ReadRlimits reads limits of a process, of which only its owner may.
func ReadRlimits(pid int) (Rlimits, error) {
	b, err := readFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return Rlimits{}, err
	}
	return parseRlimits(b)
}

// parseRlimits parses /proc/PID/limits, whose lines are like "Max open files 1024
// unlimited files".
func parseRlimits(b []byte) (Rlimits, error) {
	var r Rlimits
	missing := map[string]*Rlimit{"Max open files ": &r.Nofile, "Max locked memory ": &r.Memlock, "Max processes ": &r.Nproc}
	for line := range bytes.Lines(b) {
		for name, into := range missing {
			rest, ok := strings.CutPrefix(string(line), name)
			if !ok {
				continue
			}
			limit, err := parseRlimit(strings.Fields(rest))
			if err != nil {
				return Rlimits{}, fmt.Errorf("procfs: limits: %s: %w", strings.TrimSpace(name), err)
			}
			*into = limit
			delete(missing, name)
		}
	}
	if len(missing) > 0 {
		return Rlimits{}, fmt.Errorf("procfs: limits: %d of 3 expected lines are missing", len(missing))
	}
	return r, nil
}

func parseRlimit(fields []string) (Rlimit, error) {
	if len(fields) < 2 {
		return Rlimit{}, fmt.Errorf("%d fields, expected at least 2", len(fields))
	}
	var r Rlimit
	for i, into := range []*int64{&r.Soft, &r.Hard} {
		if fields[i] == "unlimited" {
			*into = -1
			continue
		}
		n, err := strconv.ParseUint(fields[i], 10, 63)
		if err != nil {
			return Rlimit{}, err
		}
		*into = int64(n)
	}
	return r, nil
}

package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Switches counts context switches: of a thread that had nothing to do or waited
// (Voluntary), and of one that could have gone on (Involuntary).
type Switches struct{ Voluntary, Involuntary int64 }

// ReadSwitches reads the context switches of all threads that a process has now, each
// since it began: those of threads that have ended are not among them, so the counts
// can become smaller. It takes a file for each thread, and fails for a process with more
// than 32 Ki of them.
func ReadSwitches(pid int) (Switches, error) {
	var all Switches
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads := 0
	err := eachName(dir, func(thread string) error {
		if threads++; threads > maxThreads {
			return fmt.Errorf("procfs: %s: more than %d threads", dir, maxThreads)
		}
		b, err := readFile(dir + "/" + thread + "/status")
		if err != nil {
			return ignoreGone(err)
		}
		s, err := parseSwitches(b)
		all.Voluntary += s.Voluntary
		all.Involuntary += s.Involuntary
		return err
	})
	return all, err
}

// parseSwitches parses the lines "voluntary_ctxt_switches:\t12" and
// "nonvoluntary_ctxt_switches:\t3" of /proc/PID/task/THREAD/status.
func parseSwitches(b []byte) (Switches, error) {
	var s Switches
	found := 0
	for line := range bytes.Lines(b) {
		name, value, _ := strings.Cut(string(line), ":")
		to := map[string]*int64{"voluntary_ctxt_switches": &s.Voluntary, "nonvoluntary_ctxt_switches": &s.Involuntary}[name]
		if to == nil {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 63)
		if err != nil {
			return Switches{}, fmt.Errorf("procfs: status: %s: %w", name, err)
		}
		*to = int64(n)
		found++
	}
	if found != 2 {
		return Switches{}, errors.New("procfs: status: no lines voluntary_ctxt_switches and nonvoluntary_ctxt_switches")
	}
	return s, nil
}

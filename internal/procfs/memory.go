package procfs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

// Memory is what a process holds of the machine's memory, in bytes.
type Memory struct {
	// RSS counts every resident page in full.
	RSS int64
	// PSS counts a page that n processes share as 1/n of it. It is 0 where
	// the kernel does not tell (see ReadMemory).
	PSS int64
}

// ReadMemory reads the memory of a process from /proc/PID/smaps_rollup, which
// is exact. Where the kernel has no such file or does not let us read it, RSS
// comes from /proc/PID/statm, which may be off by some pages for each thread,
// and PSS is 0.
func ReadMemory(pid int) (Memory, error) {
	b, err := readFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err == nil {
		return parseSmapsRollup(b)
	}
	b, statmErr := readFile(fmt.Sprintf("/proc/%d/statm", pid))
	if statmErr != nil {
		return Memory{}, statmErr
	}
	return parseStatm(b, int64(os.Getpagesize()))
}

// parseSmapsRollup parses /proc/PID/smaps_rollup.
func parseSmapsRollup(b []byte) (Memory, error) {
	found, err := sizes(b)
	if err != nil {
		return Memory{}, fmt.Errorf("procfs: smaps_rollup: %w", err)
	}
	rss, ok := found["Rss"]
	if !ok {
		return Memory{}, errors.New("procfs: smaps_rollup: no line Rss")
	}
	return Memory{RSS: rss, PSS: found["Pss"]}, nil
}

// parseStatm parses /proc/PID/statm, whose second number is the resident pages.
func parseStatm(b []byte, page int64) (Memory, error) {
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return Memory{}, fmt.Errorf("procfs: statm: %d fields, expected at least 2", len(fields))
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return Memory{}, fmt.Errorf("procfs: statm: %w", err)
	}
	if pages < 0 || pages > math.MaxInt64/page {
		return Memory{}, fmt.Errorf("procfs: statm: %d pages: out of range", pages)
	}
	return Memory{RSS: pages * page}, nil
}

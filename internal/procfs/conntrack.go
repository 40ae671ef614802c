package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ReadTrackerCounters reads what the kernel's tracker of connections (conntrack) has
// done in the network namespace of the calling thread, on all processors together, by
// the names of /proc/net/stat/nf_conntrack: "drop" counts packets that were dropped
// because the table was full. The file is missing where there is no tracker.
func ReadTrackerCounters() (map[string]int64, error) {
	b, err := readFile(networkDir + "stat/nf_conntrack")
	if err != nil {
		return nil, err
	}
	return parseTrackerCounters(b)
}

// parseTrackerCounters parses a line of names and one of hexadecimal numbers for each
// processor. The first column, the entries, is not of a processor and is left out.
func parseTrackerCounters(b []byte) (map[string]int64, error) {
	var names []string
	sums := make(map[string]int64)
	for line := range bytes.Lines(b) {
		fields := strings.Fields(string(line))
		if len(fields) == 0 {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		// Later kernels may have columns that have no name.
		for i := 1; i < min(len(names), len(fields)); i++ {
			n, err := strconv.ParseUint(fields[i], 16, 63)
			if err != nil {
				return nil, fmt.Errorf("procfs: nf_conntrack: %.60q: %w", names[i], err)
			}
			if sums[names[i]] > math.MaxInt64-int64(n) {
				return nil, fmt.Errorf("procfs: nf_conntrack: %.60q: out of range", names[i])
			}
			sums[names[i]] += int64(n)
		}
	}
	if len(sums) == 0 {
		return nil, errors.New("procfs: nf_conntrack: no counters")
	}
	return sums, nil
}

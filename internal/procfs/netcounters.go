package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// maxCounters bounds the counters that are read of a file; a kernel has some 400.
const maxCounters = 8192

// ReadNetCounters reads the kernel's counters of the network namespace of the calling
// thread, /proc/net/snmp and netstat, by the names that nstat(8) prints:
// "TcpCurrEstab", "TcpExtListenOverflows". They count since the namespace was
// made, but for a few that are levels, such as TcpCurrEstab.
func ReadNetCounters() (map[string]int64, error) {
	counters := make(map[string]int64)
	for _, file := range []string{"snmp", "netstat"} {
		b, err := readFile(networkDir + file)
		if err != nil {
			return nil, err
		}
		found, err := parseNetCounters(b)
		if err != nil {
			return nil, fmt.Errorf("procfs: %s: %w", file, err)
		}
		maps.Copy(counters, found)
	}
	return counters, nil
}

// parseNetCounters parses pairs of lines, of names and of numbers, that begin with
// the same word: "Tcp: RtoMin CurrEstab" and "Tcp: 200 17".
func parseNetCounters(b []byte) (map[string]int64, error) {
	counters := make(map[string]int64)
	var names []string
	for line := range bytes.Lines(b) {
		fields := strings.Fields(string(line))
		switch {
		case len(fields) == 0:
		case names == nil:
			names = fields
		default:
			if err := addCounters(counters, names, fields); err != nil {
				return nil, err
			}
			names = nil
		}
	}
	if names != nil {
		return nil, fmt.Errorf("names without numbers: %.60q", names[0])
	}
	if len(counters) == 0 {
		return nil, errors.New("no counters")
	}
	return counters, nil
}

// addCounters adds the numbers of a line to those that there are, by the names of
// another.
func addCounters(to map[string]int64, names, numbers []string) error {
	prefix, ok := strings.CutSuffix(names[0], ":")
	if !ok || len(names) != len(numbers) || names[0] != numbers[0] {
		return fmt.Errorf("%d names of %.60q and %d numbers of %.60q", len(names), names[0], len(numbers), numbers[0])
	}
	for i, name := range names[1:] {
		n, err := strconv.ParseInt(numbers[i+1], 10, 64) // Tcp's MaxConn is -1
		if err != nil {
			return fmt.Errorf("%.60q: %w", prefix+name, err)
		}
		if len(to) == maxCounters {
			return fmt.Errorf("more than %d counters", maxCounters)
		}
		to[prefix+name] = n
	}
	return nil
}

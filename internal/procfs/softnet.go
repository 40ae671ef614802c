package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ReadSoftnetDrops reads how many packets the machine has dropped because they came
// faster than a processor took them from its backlog (net.core.netdev_max_backlog):
// the second column of /proc/net/softnet_stat, which has a line for each processor.
func ReadSoftnetDrops() (int64, error) {
	b, err := readFile(networkDir + "softnet_stat")
	if err != nil {
		return 0, err
	}
	return parseSoftnetDrops(b)
}

func parseSoftnetDrops(b []byte) (drops int64, err error) {
	for line := range bytes.Lines(b) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 {
			return 0, fmt.Errorf("procfs: softnet_stat: a line of %d numbers, expected 2 at least", len(fields))
		}
		n, err := strconv.ParseUint(fields[1], 16, 32)
		if err != nil {
			return 0, fmt.Errorf("procfs: softnet_stat: %w", err)
		}
		drops += int64(n)
	}
	if len(b) == 0 {
		return 0, errors.New("procfs: softnet_stat: no lines")
	}
	return drops, nil
}

package procfs

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// CountNodes counts the NUMA nodes that have memory, 1 on a machine without such.
func CountNodes() (int, error) {
	b, err := readFile("/sys/devices/system/node/has_memory")
	if Gone(err) {
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	return parseCount(b)
}

// parseCount counts the numbers of a list such as "0-3,8".
func parseCount(b []byte) (int, error) {
	n := 0
	for part := range strings.SplitSeq(strings.TrimSpace(string(b)), ",") {
		first, last, several := strings.Cut(part, "-")
		if !several {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 31)
		if err != nil {
			return 0, fmt.Errorf("procfs: list of numbers: %w", err)
		}
		to, err := strconv.ParseUint(last, 10, 31)
		if err != nil {
			return 0, fmt.Errorf("procfs: list of numbers: %w", err)
		}
		if to < from || n > math.MaxInt32 {
			return 0, fmt.Errorf("procfs: list of numbers: %.60q: out of range", part)
		}
		n += int(to-from) + 1
	}
	return n, nil
}

// maxQueues bounds the queues that are counted of a network interface.
const maxQueues = 16 << 10

// CountQueues counts the queues in use of a network interface, for receiving and for
// sending. /sys shows the interfaces of the network namespace in which it was mounted,
// so an interface counts only if its number and hardware address there are those given;
// otherwise it fails.
func CountQueues(name string, index int, address string) (receive, send int, err error) {
	dir := "/sys/class/net/" + name
	for file, want := range map[string]string{"ifindex": strconv.Itoa(index), "address": address} {
		b, err := readFile(dir + "/" + file)
		if err != nil {
			return 0, 0, err
		}
		if got := strings.TrimSpace(string(b)); got != want && !(file == "address" && isZero(got) && want == "") {
			return 0, 0, fmt.Errorf("procfs: %s: %s is %.60q, of another network namespace; expected %q", dir, file, got, want)
		}
	}
	left := maxQueues
	err = eachName(dir+"/queues", func(queue string) error {
		if left--; left < 0 {
			return fmt.Errorf("procfs: %s: more than %d queues", dir, maxQueues)
		}
		switch {
		case strings.HasPrefix(queue, "rx-"):
			receive++
		case strings.HasPrefix(queue, "tx-"):
			send++
		}
		return nil
	})
	return receive, send, err
}

// isZero says whether a hardware address is all zeros, or none.
func isZero(address string) bool { return strings.Trim(address, "0:") == "" }

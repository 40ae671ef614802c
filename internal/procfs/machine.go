package procfs

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Machine is what does not change while the machine runs.
type Machine struct {
	// Kernel is the kernel's release, such as "6.18.4".
	Kernel string
	// CPUModel is the name of the first CPU, "" where the kernel does not report it (as on
	// most ARM machines).
	CPUModel string
	// CPUs is the number of CPUs that are online.
	CPUs int
	// Memory is the machine's memory in bytes.
	Memory int64
}

// ReadMachine reads what the machine is.
func ReadMachine() (m Machine, err error) {
	root, err := mounted()
	if err != nil {
		return m, err
	}
	kernel, err := readFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return m, err
	}
	m.Kernel = string(bytes.TrimSpace(kernel))
	info, err := readFile("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	m.CPUModel = modelName(info)
	stat, err := root.Stat()
	if err != nil {
		return m, err
	}
	m.CPUs = len(stat.CPU)
	memory, err := root.Meminfo()
	if err == nil && memory.MemTotalBytes != nil {
		m.Memory = int64(*memory.MemTotalBytes)
	}
	return m, err
}

// modelName returns the first "model name" of /proc/cpuinfo, or "".
func modelName(b []byte) string {
	for line := range bytes.Lines(b) {
		name, value, ok := strings.Cut(string(line), ":")
		if ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Core returns a name for the physical core that a CPU belongs to: the lowest number
// among the CPUs that share it.
func Core(cpu int) (int, error) {
	b, err := readFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	if err != nil {
		return 0, err
	}
	first, _, err := parseList(b)
	return first, err
}

// CountNodes counts the NUMA nodes that have memory, 1 on a machine without such.
func CountNodes() (int, error) {
	b, err := readFile("/sys/devices/system/node/has_memory")
	if Gone(err) {
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	_, count, err := parseList(b)
	return count, err
}

// parseList gives the first number of an ascending list such as "0-3,8", and how many
// there are.
func parseList(b []byte) (first, count int, err error) {
	for i, part := range strings.Split(strings.TrimSpace(string(b)), ",") {
		low, high, several := strings.Cut(part, "-")
		if !several {
			high = low
		}
		from, err := strconv.ParseUint(low, 10, 16)
		if err != nil {
			return 0, 0, fmt.Errorf("procfs: list of numbers: %w", err)
		}
		to, err := strconv.ParseUint(high, 10, 16)
		if err != nil {
			return 0, 0, fmt.Errorf("procfs: list of numbers: %w", err)
		}
		if to < from {
			return 0, 0, fmt.Errorf("procfs: list of numbers: %q is descending", part)
		}
		if i == 0 {
			first = int(from)
		}
		count += int(to-from) + 1
	}
	return first, count, nil
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
		got := strings.TrimSpace(string(b))
		none := file == "address" && want == "" && strings.Trim(got, "0:") == ""
		if got != want && !none {
			return 0, 0, fmt.Errorf("procfs: %s: %s is %q, of another network namespace; expected %q", dir, file, got, want)
		}
	}
	err = eachName(dir+"/queues", func(queue string) error {
		switch {
		case receive+send == maxQueues:
			return fmt.Errorf("procfs: %s: more than %d queues", dir, maxQueues)
		case strings.HasPrefix(queue, "rx-"):
			receive++
		case strings.HasPrefix(queue, "tx-"):
			send++
		}
		return nil
	})
	return receive, send, err
}

// CountAllTasks reads /proc/loadavg: how many tasks the whole machine has.
func CountAllTasks() (int64, error) {
	b, err := readFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	// 0.20 0.18 0.12 1/80 11206
	var all int64
	if _, after, ok := strings.Cut(string(b), "/"); ok {
		_, err = fmt.Sscan(after, &all)
	}
	if err != nil || all <= 0 {
		return 0, fmt.Errorf("procfs: loadavg is %q; expected RUNNING/ALL tasks", b)
	}
	return all, nil
}

package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Machine is what does not change while the machine runs.
type Machine struct {
	// Kernel is the kernel's release, such as "6.18.4".
	Kernel string
	// CPUModel is the name of the first CPU, "" where the kernel does not
	// tell it (as on most ARM machines).
	CPUModel string
	// CPUs is the number of CPUs that are online.
	CPUs int
	// Memory is the machine's memory in bytes.
	Memory int64
}

// ReadMachine reads what the machine is.
func ReadMachine() (Machine, error) {
	var m Machine
	kernel, err := readFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return Machine{}, err
	}
	m.Kernel = string(bytes.TrimSpace(kernel))
	info, err := readFile("/proc/cpuinfo")
	if err != nil {
		return Machine{}, err
	}
	m.CPUModel = parseCPUModel(info)
	cpus, err := ReadCPUs()
	if err != nil {
		return Machine{}, err
	}
	m.CPUs = len(cpus.Each)
	mem, err := ReadMeminfo()
	if err != nil {
		return Machine{}, err
	}
	m.Memory = mem.Total
	return m, nil
}

// parseCPUModel returns the first "model name" of /proc/cpuinfo, or "".
func parseCPUModel(b []byte) string {
	for line := range bytes.Lines(b) {
		name, value, ok := strings.Cut(string(line), ":")
		if ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Meminfo is the machine's memory, in bytes.
type Meminfo struct {
	Total int64
	// Free is memory that nothing uses. Available adds what the kernel
	// believes it could reclaim, which misleads when sockets by the million
	// hold it.
	Free      int64
	Available int64
	// Slab is the kernel's small objects, sockets among them. PageTables are those
	// of processes, KernelStacks the stacks of threads within the kernel.
	Slab, PageTables, KernelStacks int64
	// FilePages are pages of files that can be dropped: sockets and what the
	// kernel keeps of them are not among those.
	FilePages int64
}

// ReadMeminfo reads how the machine's memory is used now.
func ReadMeminfo() (Meminfo, error) {
	b, err := readFile("/proc/meminfo")
	if err != nil {
		return Meminfo{}, err
	}
	return parseMeminfo(b)
}

// parseMeminfo parses /proc/meminfo.
func parseMeminfo(b []byte) (Meminfo, error) {
	found, err := sizes(b)
	if err != nil {
		return Meminfo{}, fmt.Errorf("procfs: meminfo: %w", err)
	}
	if _, ok := found["MemTotal"]; !ok {
		return Meminfo{}, errors.New("procfs: meminfo: no line MemTotal")
	}
	return Meminfo{
		Total:     found["MemTotal"],
		Free:      found["MemFree"],
		Available: found["MemAvailable"],
		Slab:      found["Slab"],

		PageTables: found["PageTables"], KernelStacks: found["KernelStack"],
		FilePages: found["Active(file)"] + found["Inactive(file)"],
	}, nil
}

// Core returns a name for the physical core that a CPU belongs to: the lowest
// number among the CPUs that share it.
func Core(cpu int) (int, error) {
	b, err := readFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	if err != nil {
		return 0, err
	}
	return parseFirstCPU(b)
}

// parseFirstCPU returns the first number of an ascending list such as "0-3,8".
func parseFirstCPU(b []byte) (int, error) {
	list := strings.TrimSpace(string(b))
	if end := strings.IndexAny(list, "-,"); end >= 0 {
		list = list[:end]
	}
	n, err := strconv.ParseUint(list, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("procfs: list of CPUs: %w", err)
	}
	return int(n), nil
}

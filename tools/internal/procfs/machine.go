package procfs

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	prom "github.com/prometheus/procfs"
)

// Machine contains facts about the machine that do not change until it reboots.
type Machine struct {
	Kernel string
	// CPUModel is the name of the first CPU, or "" if it is unknown, as on most ARM machines.
	CPUModel string
	CPUs     int
	Memory   int64
}

func ReadKernelCPUsAndMemory() (m Machine, err error) {
	if m.Kernel, err = ReadSysctl("kernel.osrelease"); err != nil {
		return m, err
	}
	info, err := readTrimmedFile("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	_, model, _ := strings.Cut(info, "\nmodel name") // "\t: AMD EPYC\nstepping…"
	model, _, _ = strings.Cut(model, "\n")
	m.CPUModel = strings.Trim(model, "\t :")
	stat, err := parseProcFS(prom.FS.Stat)
	if err != nil {
		return m, err
	}
	m.CPUs = len(stat.CPU)
	memory, err := ReadMemory()
	m.Memory = memory.Total
	return m, err
}

// CPUTime contains how long the machine's processors have been in each state since boot.
type CPUTime struct {
	// Busy is the processor time of all processes, the kernel and interrupts. Stolen is time in which a virtual
	// machine was ready to run but the host ran something else. Busy and Idle do not include Stolen.
	Busy, Idle, Stolen time.Duration
	// Stalled is the time during which at least one task was ready to run but waited for a processor. It is 0 if the
	// kernel does not report it.
	Stalled time.Duration
}

// ReadCPUTimeAndPressure reads the machine's CPU time and pressure from /proc/stat and /proc/pressure/cpu.
func ReadCPUTimeAndPressure() (c CPUTime, err error) {
	stat, err := parseProcFS(prom.FS.Stat)
	all := stat.CPUTotal // the user time includes guest time
	c.Busy = secondsToTickDuration(all.User + all.Nice + all.System + all.IRQ + all.SoftIRQ)
	c.Idle, c.Stolen = secondsToTickDuration(all.Idle+all.Iowait), secondsToTickDuration(all.Steal)
	pressure, noPressure := parseProcFS(func(root prom.FS) (prom.PSIStats, error) { return root.PSIStatsForResource("cpu") })
	if noPressure == nil && pressure.Some != nil {
		c.Stalled = time.Duration(pressure.Some.Total) * time.Microsecond
	}
	return c, err
}

// secondsToTickDuration converts seconds to a duration, rounded to the kernel's resolution of 10 ms.
func secondsToTickDuration(seconds float64) time.Duration {
	return ticksToDuration(uint(math.Round(seconds * 100)))
}

type Memory struct {
	// Total is the machine's memory. Free is unused. FilePages are file pages that the kernel can drop.
	Total, Free, FilePages int64
	// Slab is the memory of small kernel objects, including sockets. PageTables is the memory of page tables.
	// KernelStacks is the memory of threads' kernel stacks.
	Slab, PageTables, KernelStacks int64
}

// ReadMemory reads the machine's memory usage from /proc/meminfo.
func ReadMemory() (Memory, error) {
	info, err := parseProcFS(prom.FS.Meminfo)
	return Memory{
		Total: derefOrZero(info.MemTotalBytes), Free: derefOrZero(info.MemFreeBytes),
		FilePages: derefOrZero(info.ActiveFileBytes) + derefOrZero(info.InactiveFileBytes),
		Slab:      derefOrZero(info.SlabBytes), PageTables: derefOrZero(info.PageTablesBytes), KernelStacks: derefOrZero(info.KernelStackBytes),
	}, err
}

func derefOrZero[N int | uint64](n *N) int64 {
	if n == nil {
		return 0
	}
	return int64(*n)
}

// PhysicalCoreID returns a number that is equal for CPUs of the same physical core.
func PhysicalCoreID(cpu int) (int, error) {
	first, _, err := readNumberList(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	return first, err
}

// CountNUMANodesWithMemory returns the number of NUMA nodes that have memory. On a kernel without NUMA, it returns 1.
func CountNUMANodesWithMemory() (int, error) {
	_, count, err := readNumberList("/sys/devices/system/node/has_memory")
	if IsNotFoundOrExited(err) {
		return 1, nil
	}
	return count, err
}

func readNumberList(path string) (first, count int, err error) {
	text, err := readTrimmedFile(path)
	if err != nil {
		return 0, 0, err
	}
	return parseNumberList(text)
}

// parseNumberList parses an ascending list such as "0-3,8". It returns the first number, and how many numbers the list
// contains.
func parseNumberList(list string) (first, count int, err error) {
	for i, part := range strings.Split(list, ",") {
		low, high, several := strings.Cut(part, "-")
		if !several {
			high = low
		}
		from, err := strconv.ParseUint(low, 10, 16)
		to, toErr := strconv.ParseUint(high, 10, 16)
		if err != nil || toErr != nil || to < from {
			return 0, 0, fmt.Errorf("procfs: list of numbers is %.60q; expected a list such as 0-3,8", list)
		}
		if i == 0 {
			first = int(from)
		}
		count += int(to-from) + 1
	}
	return first, count, nil
}

const maxQueues = 16 << 10

// CountInterfaceQueues counts the receive queues and the send queues of a network interface, which it reads from /sys.
//
// The /sys directory can belong to another network namespace, in which the name can mean another interface. To detect
// this, CountInterfaceQueues returns an error if the index of the interface is not wantIndex or its address is not
// wantAddress. If wantAddress is empty, the address is not compared.
func CountInterfaceQueues(name string, wantIndex int, wantAddress string) (receive, send int, err error) {
	dir := "/sys/class/net/" + name
	for file, want := range map[string]string{"ifindex": strconv.Itoa(wantIndex), "address": wantAddress} {
		if got, err := readTrimmedFile(dir + "/" + file); err != nil || want != "" && got != want {
			return 0, 0, fmt.Errorf("procfs: %s belongs to another network namespace: %s is %q; expected %q", dir, file, got, want)
		}
	}
	for queue, err := range dirEntryNames(dir + "/queues") {
		switch {
		case err != nil:
			return 0, 0, err
		case receive+send == maxQueues:
			return 0, 0, fmt.Errorf("procfs: %s contains more than %d queues; expected at most that many", dir, maxQueues)
		case strings.HasPrefix(queue, "rx-"):
			receive++
		case strings.HasPrefix(queue, "tx-"):
			send++
		}
	}
	return receive, send, nil
}

// CountTasksOfMachine returns the number of tasks (threads of processes) on the machine.
func CountTasksOfMachine() (all int64, err error) {
	text, err := readTrimmedFile("/proc/loadavg") // 0.20 0.18 0.12 1/80 11206
	if err != nil {
		return 0, err
	}
	if _, after, ok := strings.Cut(text, "/"); ok {
		_, err = fmt.Sscan(after, &all)
	}
	if err != nil || all <= 0 {
		return 0, fmt.Errorf("procfs: loadavg is %q; expected RUNNING/ALL tasks", text)
	}
	return all, nil
}

// OneMinuteLoadAverage returns the load average of the last minute, such as "0.20".
func OneMinuteLoadAverage() (average string, err error) {
	text, err := readTrimmedFile("/proc/loadavg")
	average, _, _ = strings.Cut(text, " ")
	return average, err
}

// CountOpenFilesOfMachine returns the number of open files and sockets on the machine.
func CountOpenFilesOfMachine() (open int64, err error) {
	text, err := ReadSysctl("fs.file-nr") // 1648 0 2466174
	if err == nil {
		_, err = fmt.Sscan(text, &open)
	}
	return open, nilIfNotFoundOrExited(err)
}

package procfs

import (
	"fmt"
	"os"
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
	if m.Kernel, err = ReadSysctl("kernel.osrelease"); err != nil {
		return m, err
	}
	info, err := readFile("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(info) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			m.CPUModel = strings.TrimSpace(value)
			break
		}
	}
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

// Core returns a name for the physical core that a CPU belongs to: the lowest number
// among the CPUs that share it.
func Core(cpu int) (int, error) {
	first, _, err := readList(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	return first, err
}

// CountNodes counts the NUMA nodes that have memory, 1 on a machine without such.
func CountNodes() (int, error) {
	_, count, err := readList("/sys/devices/system/node/has_memory")
	if Gone(err) {
		return 1, nil
	}
	return count, err
}

func readList(path string) (first, count int, err error) {
	text, err := readFile(path)
	if err != nil {
		return 0, 0, err
	}
	return parseList(text)
}

// parseList gives the first number of an ascending list such as "0-3,8", and how many
// there are.
func parseList(list string) (first, count int, err error) {
	for i, part := range strings.Split(list, ",") {
		low, high, several := strings.Cut(part, "-")
		if !several {
			high = low
		}
		from, err := strconv.ParseUint(low, 10, 16)
		to, toErr := strconv.ParseUint(high, 10, 16)
		if err != nil || toErr != nil || to < from {
			return 0, 0, fmt.Errorf("procfs: list of numbers is %.60q; expected one such as 0-3,8", list)
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
		if got, err := readFile(dir + "/" + file); err != nil || want != "" && got != want {
			return 0, 0, fmt.Errorf("procfs: %s is of another network namespace: its %s is %q, not %q", dir, file, got, want)
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
func CountAllTasks() (all int64, err error) {
	text, err := readFile("/proc/loadavg") // 0.20 0.18 0.12 1/80 11206
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

// slabDir is where the kernel's allocator (SLUB) has a directory for each of its
// caches, and a link for each name that shares a cache with others.
const slabDir = "/sys/kernel/slab"

// maxSlabs bounds the names of caches that are read; a kernel has some hundreds.
const maxSlabs = 16 << 10

// Slab is one of the kernel's caches of small objects, all of one size.
type Slab struct {
	// Name is the name under which /proc/slabinfo has it. Caches of one size are
	// often merged: then it holds objects of other names too.
	Name string
	// Objects is how many objects there is room for.
	Objects int64
	// Each is the bytes that one takes of the machine's memory: its share of the pages of
	// a full slab.
	Each float64
	// Bytes is the memory that the cache holds now.
	Bytes int64
}

// Slabs are the kernel's caches.
type Slabs struct {
	// Caches are all by their names in /proc/slabinfo, each once.
	Caches map[string]Slab
	// Merged has the names that /proc/slabinfo doesn't have, because the kernel
	// has merged their caches with others, each with the name in Caches.
	Merged map[string]string
}

// Find returns the cache of a name, also of one that was merged: Slab.Name is the
// name that it has then.
func (s Slabs) Find(name string) (Slab, bool) {
	if shown, ok := s.Merged[name]; ok {
		name = shown
	}
	slab, ok := s.Caches[name]
	return slab, ok
}

// ReadSlabs reads /proc/slabinfo, which commonly only root may, and from /sys which
// names share a cache. It takes some milliseconds.
func ReadSlabs() (Slabs, error) {
	root, err := mounted()
	if err != nil {
		return Slabs{}, err
	}
	info, err := root.SlabInfo()
	if err != nil {
		return Slabs{}, err
	}
	page := int64(os.Getpagesize())
	caches := make(map[string]Slab, len(info.Slabs))
	for _, s := range info.Slabs {
		if s.ObjPerSlab > 0 {
			caches[s.Name] = Slab{
				Name: s.Name, Objects: s.ObjNum, Bytes: s.SlabNum * s.PagesPerSlab * page,
				Each: float64(s.PagesPerSlab*page) / float64(s.ObjPerSlab),
			}
		}
	}
	return Slabs{Caches: caches, Merged: mergedSlabs(slabDir, caches)}, nil
}

// mergedSlabs finds the names that share a cache with one that is shown: those
// whose links have the same target. A kernel without these links merges nothing.
func mergedSlabs(dir string, shown map[string]Slab) map[string]string {
	names, hidden := map[string]string{}, map[string]string{} // shown by target, targets of what is not
	left := maxSlabs
	// What can't be read is not merged, as far as is known.
	_ = eachName(dir, func(name string) error {
		if left--; left < 0 {
			return errEnough
		}
		target, err := os.Readlink(dir + "/" + name)
		if err != nil {
			return nil // a directory
		}
		if _, ok := shown[name]; ok {
			names[target] = name
		} else {
			hidden[name] = target
		}
		return nil
	})
	merged := map[string]string{}
	for name, target := range hidden {
		if of, ok := names[target]; ok {
			merged[name] = of
		}
	}
	return merged
}

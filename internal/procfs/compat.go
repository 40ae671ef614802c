package procfs

import (
	"errors"
	"math"
	"os"
	"time"
)

// This file has readers whose callers are to use package sample instead.

// Meminfo is the machine's memory, in bytes: see sample.Machine.
type Meminfo struct {
	Total, Free, Available, Slab, PageTables, KernelStacks, FilePages int64
}

// ReadMeminfo reads how the machine's memory is used now.
func ReadMeminfo() (Meminfo, error) {
	root, err := mounted()
	if err != nil {
		return Meminfo{}, err
	}
	m, err := root.Meminfo()
	if err != nil {
		return Meminfo{}, err
	}
	return Meminfo{
		Total: size(m.MemTotalBytes), Free: size(m.MemFreeBytes), Available: size(m.MemAvailableBytes), Slab: size(m.SlabBytes),
		PageTables: size(m.PageTablesBytes), KernelStacks: size(m.KernelStackBytes), FilePages: size(m.ActiveFileBytes) + size(m.InactiveFileBytes),
	}, nil
}

func size(n *uint64) int64 {
	if n == nil {
		return 0
	}
	return int64(*n)
}

// CPUTime is what all CPUs together did since the machine started.
type CPUTime struct{ Busy, Idle, Stolen time.Duration }

// CPUs is /proc/stat.
type CPUs struct{ All CPUTime }

// ReadCPUs reads what the machine's CPUs have done so far.
func ReadCPUs() (CPUs, error) {
	root, err := mounted()
	if err != nil {
		return CPUs{}, err
	}
	stat, err := root.Stat()
	if err != nil {
		return CPUs{}, err
	}
	steps := func(seconds float64) time.Duration { return time.Duration(math.Round(seconds*100)) * tick }
	c := stat.CPUTotal
	return CPUs{CPUTime{Busy: steps(c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ), Idle: steps(c.Idle + c.Iowait), Stolen: steps(c.Steal)}}, nil
}

// Memory is what a process holds of the machine's memory, in bytes.
type Memory struct{ RSS, PSS int64 }

// ReadMemory reads the exact memory of a process, without PSS where the kernel does not
// tell.
func ReadMemory(pid int) (Memory, error) {
	r, err := ReadResident(pid)
	if err != nil {
		return Memory{}, err
	}
	rss, pss, err := readRollup(pid)
	if err != nil {
		return Memory{RSS: r.Now}, ignoreGone(err)
	}
	return Memory{rss, pss}, nil
}

// Resident is how much of the machine's memory a process has, in bytes.
type Resident struct{ Now, Peak, Anonymous int64 }

// ReadResident reads /proc/PID/status.
func ReadResident(pid int) (Resident, error) {
	p, err := process(pid)
	if err != nil {
		return Resident{}, err
	}
	s, err := p.NewStatus()
	if err == nil && s.VmRSS == 0 {
		err = errors.New("procfs: status: no lines VmHWM and VmRSS")
	}
	return Resident{Now: int64(s.VmRSS), Peak: int64(max(s.VmRSS, s.VmHWM)), Anonymous: int64(s.RssAnon)}, err
}

// Switches counts context switches.
type Switches struct{ Voluntary, Involuntary int64 }

// ReadSwitches reads the context switches of all threads that a process has now.
func ReadSwitches(pid int) (all Switches, err error) {
	root, err := mounted()
	if err != nil {
		return all, err
	}
	threads, err := root.AllThreads(pid)
	for _, t := range threads {
		if s, err := t.NewStatus(); err == nil {
			all.Voluntary += int64(s.VoluntaryCtxtSwitches)
			all.Involuntary += int64(s.NonVoluntaryCtxtSwitches)
		}
	}
	return all, err
}

// SocketCounts counts TCP sockets.
type SocketCounts struct{ Open, TimeWait, Orphans, Allocated, Pages int64 }

// ReadSocketCounts reads how many TCP sockets there are.
func ReadSocketCounts() (c SocketCounts, err error) {
	root, err := mounted()
	if err != nil {
		return c, err
	}
	four, err := root.NetSockstat()
	if err != nil {
		return c, err
	}
	number := func(n *int) int64 {
		if n == nil {
			return 0
		}
		return int64(*n)
	}
	for _, p := range four.Protocols {
		if p.Protocol == "TCP" {
			c = SocketCounts{int64(p.InUse), number(p.TW), number(p.Orphan), number(p.Alloc), number(p.Mem)}
		}
	}
	if six, err := root.NetSockstat6(); err == nil {
		for _, p := range six.Protocols {
			if p.Protocol == "TCP6" {
				c.Open += int64(p.InUse)
			}
		}
	}
	return c, nil
}

// ReadNetCounters reads how many TCP connections are established, TcpCurrEstab.
func ReadNetCounters() (map[string]int64, error) {
	p, err := process(os.Getpid())
	if err != nil {
		return nil, err
	}
	snmp, err := p.Snmp()
	if err != nil || snmp.CurrEstab == nil {
		return nil, err
	}
	return map[string]int64{"TcpCurrEstab": int64(*snmp.CurrEstab)}, nil
}

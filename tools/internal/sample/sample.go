// Package sample measures what processes, their threads, their control group and the
// machine use. Take gives a Sample of a moment, Since what happened between two.
//
// Sizes are bytes. What the kernel does not report is 0. On a system other than Linux
// Take fails with procfs.ErrNotAvailable.
//
// Nothing here keeps state but a Sampler, which belongs to one goroutine; everything
// else is safe for concurrent use.
package sample

import (
	"errors"
	"time"

	"github.com/myriad-go/myriad/internal/cgroup"
)

// Parts selects what a Sample has. The costs are of one process or machine.
type Parts uint16

const (
	// CPU is processor time and the number of threads: 50 µs.
	CPU Parts = 1 << iota
	// Memory is RSS, PeakRSS and Anonymous: 100 µs, however large the process.
	Memory
	// PSS is exact memory, for which the kernel walks through the page tables, 3 ms
	// a GiB, while the process can't map any.
	PSS
	// Switches are context switches: 30 µs for each thread.
	Switches
	// Descriptors is how many are open in the table of the first thread: 3 µs, but
	// before Linux 6.2 some 0.2 µs for each.
	Descriptors
	// Sockets is how many of the descriptors are sockets, for which each of them is
	// looked at: 1 µs for each. Not to be used at regular intervals.
	Sockets
	// MachineCPU is the processor time of the machine, and Stalled: 0.15 ms.
	MachineCPU
	// MachineMemory is the memory of the machine: 0.1 ms.
	MachineMemory
	// Network are the TCP sockets and counters of the network namespace of the
	// calling thread, and Machine.Files: 0.5 ms, however many sockets there are.
	Network
	// Cgroup are the limits of the control groups of the first process: 0.2 ms.
	Cgroup
)

// costly are the parts whose cost grows with the process: a Sampler reads those that
// were slow less often.
const costly = PSS | Switches | Descriptors | Sockets

// ErrEnded means that none of the processes is left.
var ErrEnded = errors.New("sample: the processes have ended")

// Sample is what processes and the machine used at a moment.
type Sample struct {
	At time.Time
	// Parts are those that were read.
	Parts Parts
	// Processes are those that are alive, in the order in which they were given.
	Processes []Process
	Machine   Machine
	Cgroup    cgroup.Limits
}

// Process is what one process uses, or several together. Its tags "merge" are package load's.
type Process struct {
	PID int `json:"-"` // 0 for several
	// User and System are processor time since the process began, of ended threads
	// too: of this process to the microsecond, of another their sum to the nanosecond
	// and each of them in steps of about 10 ms.
	// Children is that of children that it has waited for.
	User     time.Duration `json:"user,omitempty" merge:"sum"`
	System   time.Duration `json:"system,omitempty" merge:"sum"`
	Children time.Duration `json:"children,omitempty" merge:"sum"`
	Threads  int           `json:"threads,omitempty" merge:"gauge"`
	// RSS is resident memory with each shared page in full, off by some pages for
	// each thread unless PSS was read too; PeakRSS the most it has been. Anonymous
	// is what of RSS is in no file: heap and stacks. PSS counts a page that n
	// processes share as 1/n of it.
	RSS       int64 `json:"rss,omitempty" merge:"gauge"`
	PeakRSS   int64 `json:"peak_rss,omitempty" merge:"gauge"`
	Anonymous int64 `json:"anonymous,omitempty" merge:"gauge"`
	PSS       int64 `json:"pss,omitempty" merge:"gauge"`
	// Voluntary and Involuntary are context switches of the threads that there are:
	// of one that waited, and of one that could have gone on.
	Voluntary   int64 `json:"voluntary,omitempty" merge:"sum"`
	Involuntary int64 `json:"involuntary,omitempty" merge:"sum"`
	// Descriptors is how many are open, Sockets how many of them are sockets.
	Descriptors int `json:"descriptors,omitempty" merge:"gauge"`
	Sockets     int `json:"sockets,omitempty" merge:"gauge"`
}

// CPU is user and system time together.
func (p *Process) CPU() time.Duration { return p.User + p.System }

// Machine is what the whole machine uses.
type Machine struct {
	// Busy is processor time since the machine began of all processes, the kernel
	// and interrupts. Stolen is time in which a virtual machine wanted to run and the
	// host ran something else; it is in neither Busy nor Idle.
	Busy, Idle, Stolen time.Duration
	// Stalled is for how long some task was ready to run but had to wait for a processor,
	// to the microsecond: the mean of the processors that had work, so that it grows no
	// faster than the clock. 0 without pressure stall information (before Linux 4.20).
	Stalled time.Duration
	// Total is the machine's memory and Free what nothing uses of it. FilePages can be
	// dropped.
	Total, Free, FilePages int64
	// Slab is the kernel's small objects, sockets among them; PageTables those of
	// processes, KernelStacks the stacks of threads within the kernel.
	Slab, PageTables, KernelStacks int64
	// Established, Open and TimeWait are TCP sockets of the network namespace: Open
	// are those that listen or are connected or on their way to that. Orphans, which
	// no process has any more, and TCPBuffers are of the whole machine.
	Established, Open, TimeWait, Orphans int64
	TCPBuffers                           int64
	// Files is how many files and sockets the whole machine has open.
	Files int64
	// Counters are events since the network namespace was made, by the names of
	// /proc/net/netstat, such as ListenOverflows, and nf_conntrack_drop,
	// nf_conntrack_insert_failed, nf_conntrack_early_drop and softnet_dropped: those
	// that tell of a limit that was met. One that the kernel does not count is not there.
	Counters map[string]int64
}

// Total is what the processes use together. Memory that they share counts for each,
// but in PSS.
func (s *Sample) Total() Process {
	var sum Process
	for i := range s.Processes {
		p := &s.Processes[i]
		sum.addCounters(p, 1)
		sum.Threads += p.Threads
		sum.RSS += p.RSS
		sum.PeakRSS += p.PeakRSS
		sum.Anonymous += p.Anonymous
		sum.PSS += p.PSS
		sum.Descriptors += p.Descriptors
		sum.Sockets += p.Sockets
	}
	return sum
}

// addCounters adds what only grows, times sign.
func (p *Process) addCounters(q *Process, sign int64) {
	p.User += q.User * time.Duration(sign)
	p.System += q.System * time.Duration(sign)
	p.Children += q.Children * time.Duration(sign)
	p.Voluntary += q.Voluntary * sign
	p.Involuntary += q.Involuntary * sign
}

// Interval is the time between two samples.
type Interval struct {
	Length time.Duration
	// Process is what the processes used together: counters are by how much they
	// grew, everything else is as it was at the end.
	Process Process
	// Machine likewise.
	Machine Machine
}

// Since is what happened after an earlier sample. What a process used that was not in
// that is not known, nor what one used that has ended: their counters are left out.
// No difference is negative.
func (s *Sample) Since(before *Sample) Interval {
	grown := s.Total()
	grown.User, grown.System, grown.Children, grown.Voluntary, grown.Involuntary = 0, 0, 0, 0, 0
	for i := range s.Processes {
		p := s.Processes[i]
		if was := before.process(p.PID); was != nil {
			p.addCounters(was, -1)
			cpu := max(p.CPU(), 0)
			p.User = min(max(p.User, 0), cpu)
			p.System, p.Children = cpu-p.User, max(p.Children, 0)
			p.Voluntary, p.Involuntary = max(p.Voluntary, 0), max(p.Involuntary, 0)
			grown.addCounters(&p, 1)
		}
	}
	m := s.Machine
	m.Busy = max(m.Busy-before.Machine.Busy, 0)
	m.Idle = max(m.Idle-before.Machine.Idle, 0)
	m.Stolen = max(m.Stolen-before.Machine.Stolen, 0)
	m.Stalled = max(m.Stalled-before.Machine.Stalled, 0)
	m.Counters = make(map[string]int64, len(s.Machine.Counters))
	for name, n := range s.Machine.Counters {
		if was, ok := before.Machine.Counters[name]; ok {
			m.Counters[name] = max(n-was, 0)
		}
	}
	return Interval{Length: s.At.Sub(before.At), Process: grown, Machine: m}
}

// process is the process of a number, nil if it is not in the sample.
func (s *Sample) process(pid int) *Process {
	for i := range s.Processes {
		if s.Processes[i].PID == pid {
			return &s.Processes[i]
		}
	}
	return nil
}

// Take reads parts of what the processes and the machine use, processor time first.
// It gives what could be read, and an error that says what could not: ErrEnded if there
// were processes and none is left. A process that has ended is left out.
func Take(parts Parts, pids ...int) (Sample, error) {
	var s Sampler
	return s.Take(parts, pids...)
}

const (
	// slowRead is from when on the reading of a part is slow, and slowEvery the least
	// time between two of these.
	slowRead  = 5 * time.Millisecond
	slowEvery = 5 * time.Second
)

// Sampler takes samples of the same processes at regular intervals. A part that took
// more than 5 ms to read because the processes are large is read at most every 5 s, and
// is missing from Sample.Parts in between. The zero value is ready; it belongs to one
// goroutine.
type Sampler struct {
	slow map[Parts]time.Time // when a part that was slow was read last
}

// Take is the package's Take.
func (s *Sampler) Take(parts Parts, pids ...int) (Sample, error) {
	now := time.Now()
	for part, last := range s.slow {
		if now.Sub(last) < slowEvery {
			parts &^= part
		}
	}
	r := Sample{At: now, Parts: parts}
	err := r.read(s, pids)
	return r, err
}

// Package sample measures what processes, their threads and the machine use. Take gives a
// Sample of a moment, Since what happened between two. Package procfs reads it.
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

	"github.com/myriad-go/myriad/tools/internal/procfs"
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
)

// costlyParts are the parts whose cost grows with the process: a Sampler reads those that
// were slow less often.
const costlyParts = PSS | Switches | Descriptors | Sockets

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

// CPU returns user and system time together.
func (p *Process) CPU() time.Duration { return p.User + p.System }

// Machine is what the whole machine uses, and the network namespace of the calling thread.
type Machine struct {
	procfs.CPUTime
	procfs.Memory
	procfs.Network
	// Files is how many files and sockets the whole machine has open.
	Files int64
}

// Total returns what the processes use together. Memory that they share counts for each,
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

// Since returns what happened after an earlier sample. It leaves out the counters of
// processes that have begun or ended in between: what they used then is not known.
// No difference is negative.
func (s *Sample) Since(before *Sample) Interval {
	grown := s.Total()
	grown.User, grown.System, grown.Children, grown.Voluntary, grown.Involuntary = 0, 0, 0, 0, 0
	for i := range s.Processes {
		p := s.Processes[i]
		if was := before.findProcess(p.PID); was != nil {
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

// findProcess returns the process of a number, nil if it is not in the sample.
func (s *Sample) findProcess(pid int) *Process {
	for i := range s.Processes {
		if s.Processes[i].PID == pid {
			return &s.Processes[i]
		}
	}
	return nil
}

// Take reads parts of what the processes and the machine use, processor time first.
// It returns what could be read, and an error for what could not: ErrEnded if there
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

// Take does as the function Take.
func (s *Sampler) Take(parts Parts, pids ...int) (Sample, error) {
	now := time.Now()
	for part, last := range s.slow {
		if now.Sub(last) < slowEvery {
			parts &^= part
		}
	}
	r := Sample{At: now, Parts: parts}
	err := r.readParts(s, pids)
	return r, err
}

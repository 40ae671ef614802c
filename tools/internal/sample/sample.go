// Package sample measures the resources used by processes, their threads and the machine. TakeSample returns a Sample.
// DifferenceSince returns the difference between two Samples. Package procfs reads the values.
//
// Sizes are bytes. Values that the kernel does not report are 0. On systems other than Linux, TakeSample returns
// procfs.ErrNotAvailable.
//
// A Sampler belongs to one goroutine. Everything else is safe for concurrent use.
package sample

import (
	"errors"
	"time"

	"github.com/myriad-go/myriad/tools/internal/procfs"
)

// Parts selects which values of a Sample are read. The comment of each constant states how long reading takes for one
// process or for the machine.
type Parts uint16

const (
	// CPU is processor time and the number of threads. It costs 50 µs.
	CPU Parts = 1 << iota
	// Memory is RSS, PeakRSS and Anonymous. It costs 100 µs, however large the process is.
	Memory
	// PSS counts 1/n of a page that n processes share. It costs 3 ms per GiB, in which the process cannot map memory.
	PSS
	// Switches are context switches. They cost 30 µs per thread.
	Switches
	// Descriptors counts descriptors of the first thread's table. It costs 3 µs, or 0.2 µs for each before Linux 6.2.
	Descriptors
	// Sockets counts descriptors of sockets. It costs 1 µs per descriptor: too much for regular intervals.
	Sockets
	// MachineCPU is the processor time of the machine, and Machine.Stalled. It costs 0.15 ms.
	MachineCPU
	// MachineMemory is the memory of the machine. It costs 0.1 ms.
	MachineMemory
	// Network is the TCP sockets and counters of the calling thread's network namespace, and Machine.Files. It costs
	// 0.5 ms, however many sockets there are.
	Network
)

// costlyParts contains the parts that take longer for larger processes.
const costlyParts = PSS | Switches | Descriptors | Sockets

// ErrEnded reports that all processes have ended.
var ErrEnded = errors.New("sample: the processes have ended")

// Sample contains the resources used by processes and the machine at one time.
type Sample struct {
	At time.Time
	// Parts are the parts that were read.
	Parts Parts
	// Processes contains the processes that are alive, in the order of TakeSample's arguments.
	Processes []Process
	Machine   Machine
}

// Process contains the resources used by one process, or the sums for several processes. The "merge" tags are for
// package load.
type Process struct {
	PID int `json:"-"` // 0 for several
	// User and System are processor time since the process began, including ended threads. Children is the processor
	// time of children that the process has waited for.
	User     time.Duration `json:"user,omitempty" merge:"sum"`
	System   time.Duration `json:"system,omitempty" merge:"sum"`
	Children time.Duration `json:"children,omitempty" merge:"sum"`
	Threads  int           `json:"threads,omitempty" merge:"gauge"`
	// RSS is resident memory including shared pages, and PeakRSS is its maximum. Anonymous is the part of RSS that no
	// file backs, such as heap and stacks. PSS counts 1/n of a page that n processes share.
	RSS       int64 `json:"rss,omitempty" merge:"gauge"`
	PeakRSS   int64 `json:"peak_rss,omitempty" merge:"gauge"`
	Anonymous int64 `json:"anonymous,omitempty" merge:"gauge"`
	PSS       int64 `json:"pss,omitempty" merge:"gauge"`
	// Voluntary and Involuntary count context switches of the current threads. A voluntary switch occurs when a thread
	// waits, an involuntary one when it is preempted.
	Voluntary   int64 `json:"voluntary,omitempty" merge:"sum"`
	Involuntary int64 `json:"involuntary,omitempty" merge:"sum"`
	// Descriptors is the number of open descriptors, and Sockets the number of sockets among them.
	Descriptors int `json:"descriptors,omitempty" merge:"gauge"`
	Sockets     int `json:"sockets,omitempty" merge:"gauge"`
}

// CPU returns the sum of User and System.
func (p *Process) CPU() time.Duration { return p.User + p.System }

// Machine contains the resources used by the whole machine and by the network namespace of the calling thread.
type Machine struct {
	procfs.CPUTime
	procfs.Memory
	procfs.Network
	// Files is the number of open files and sockets on the whole machine.
	Files int64
}

// SumOfProcesses returns the sum over all processes. Memory that several processes share counts once for each of them
// in RSS. In PSS, it is divided among them.
func (s *Sample) SumOfProcesses() Process {
	var sum Process
	for i := range s.Processes {
		p := &s.Processes[i]
		sum.addCountersTimes(p, 1)
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

func (p *Process) addCountersTimes(other *Process, sign int64) {
	p.User += other.User * time.Duration(sign)
	p.System += other.System * time.Duration(sign)
	p.Children += other.Children * time.Duration(sign)
	p.Voluntary += other.Voluntary * sign
	p.Involuntary += other.Involuntary * sign
}

// Interval contains the difference between two samples.
type Interval struct {
	Length time.Duration
	// Process contains the sums over all processes. For times and counters, such as User and Voluntary, it contains the
	// increase during the interval. For other values, such as RSS, it contains the value at the end of the interval.
	Process Process
	// Machine contains the values of the machine. As in Process, times and counters are increases, and other values are
	// those at the end of the interval.
	Machine Machine
}

// DifferenceSince returns the difference between an earlier sample and s. The increases of times and counters cover
// only processes that are in both samples.
func (s *Sample) DifferenceSince(before *Sample) Interval {
	grown := s.SumOfProcesses()
	grown.User, grown.System, grown.Children, grown.Voluntary, grown.Involuntary = 0, 0, 0, 0, 0
	for i := range s.Processes {
		p := s.Processes[i]
		if was := before.findProcess(p.PID); was != nil {
			p.addCountersTimes(was, -1)
			cpu := max(p.CPU(), 0)
			p.User = min(max(p.User, 0), cpu)
			p.System, p.Children = cpu-p.User, max(p.Children, 0)
			p.Voluntary, p.Involuntary = max(p.Voluntary, 0), max(p.Involuntary, 0)
			grown.addCountersTimes(&p, 1)
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

func (s *Sample) findProcess(pid int) *Process {
	for i := range s.Processes {
		if s.Processes[i].PID == pid {
			return &s.Processes[i]
		}
	}
	return nil
}

// TakeSample reads the selected parts for the given processes and for the machine. Processes that have ended are not
// included. If some values cannot be read, TakeSample returns the others and an error. If all processes have ended, the
// error wraps ErrEnded.
func TakeSample(parts Parts, pids ...int) (Sample, error) {
	var s Sampler
	return s.TakeSampleThrottlingSlowParts(parts, pids...)
}

const (
	// A part is slow if reading it takes longer than slowRead. A slow part is read at most once per slowEvery.
	slowRead  = 5 * time.Millisecond
	slowEvery = 5 * time.Second
)

// Sampler takes samples of the same processes at regular intervals. If reading one part of a sample, such as
// Descriptors, takes longer than 5 ms, the Sampler does not read this part again for 5 s. The zero value is ready for
// use. A Sampler is not safe for concurrent use.
type Sampler struct {
	slow map[Parts]time.Time // time of the last read of each slow part
}

// TakeSampleThrottlingSlowParts takes a sample like the function TakeSample, but may omit some of the parts. It omits a
// part if the last read of this part took longer than 5 ms and was less than 5 s ago. The field Parts of the sample
// shows which parts were read.
func (s *Sampler) TakeSampleThrottlingSlowParts(parts Parts, pids ...int) (Sample, error) {
	now := time.Now()
	for part, last := range s.slow {
		if now.Sub(last) < slowEvery {
			parts &^= part
		}
	}
	r := Sample{At: now, Parts: parts}
	err := r.readRequestedParts(s, pids)
	return r, err
}

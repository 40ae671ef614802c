package lab

import (
	"errors"
	"os"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

// Moment names when a sample was taken.
type Moment string

const (
	// Ready: the server has answered the lab's own first connection, and
	// that connection is closed.
	Ready Moment = "ready"
	// Measuring and Measured: the window has begun, has ended.
	Measuring Moment = "measuring"
	Measured  Moment = "measured"
	// Touched: the server has run through its code once, and all is closed.
	Touched Moment = "touched"
	// Held: all connections are open, nothing has been sent.
	Held Moment = "held"
	// Exchanged: each connection has exchanged a message and is open.
	Exchanged Moment = "exchanged"
	// Parked: every goroutine waits.
	Parked Moment = "parked"
)

// Sample is what the kernel said of a server and of the machine at a moment.
// What was not asked for at that moment is zero.
type Sample struct {
	Moment Moment    `json:"moment"`
	At     time.Time `json:"at"`

	// User and System are the processor time that the server's processes
	// have used since they started.
	User   time.Duration `json:"user,omitempty"`
	System time.Duration `json:"system,omitempty"`
	// Busy is the processor time that the whole machine has used since it
	// started, time stolen by a host included.
	Busy time.Duration `json:"busy,omitempty"`
	// Stolen is what of Busy a host stole.
	Stolen time.Duration `json:"stolen,omitempty"`
	// Lab is the processor time of the lab's own process.
	Lab time.Duration `json:"lab,omitempty"`

	// RSS and PSS are the memory of the server's processes in bytes, and
	// Anonymous what of RSS no file holds: heap and stacks. Slab is the
	// kernel's small objects, and Free the machine's unused memory.
	RSS       int64 `json:"rss,omitempty"`
	PSS       int64 `json:"pss,omitempty"`
	Anonymous int64 `json:"anonymous,omitempty"`
	Slab      int64 `json:"slab,omitempty"`
	Free      int64 `json:"free,omitempty"`
	// Threads is how many threads the server's processes have.
	Threads int `json:"threads,omitempty"`
	// Sockets is how many sockets the server's processes have open.
	Sockets int `json:"sockets,omitempty"`

	// Caches is what of Slab each cache of the kernel has, by its name, in
	// bytes.
	Caches map[string]int64 `json:"caches,omitempty"`
	// TCP is how many TCP sockets the kernel has room for in its cache of them,
	// 0 where it does not tell.
	TCP int64 `json:"tcp,omitempty"`
	// Accepted is how many connections of the load the server has accepted, where the kernel
	// tells, and SegmentsIn and SegmentsOut how many TCP segments with data they have brought
	// and taken, in a Flood.
	Accepted    int   `json:"accepted,omitempty"`
	SegmentsIn  int64 `json:"segments_in,omitempty"`
	SegmentsOut int64 `json:"segments_out,omitempty"`
	// Connections is how many connections the server says that it has open,
	// and Go what its runtime says of its memory.
	Connections int       `json:"connections,omitempty"`
	Go          *GoMemory `json:"go,omitempty"`
}

// holds is how many connections the server had, one way or the other, and how many
// sockets beside: it is meant for differences.
func (s *Sample) holds() int { return s.Sockets + s.Connections }

// CPU is user and system time together.
func (s *Sample) CPU() time.Duration { return s.User + s.System }

// what a sample holds.
type what uint8

const (
	cpu what = 1 << iota
	memory
	sockets
	caches
)

// errServerGone is what sampling an ended server gives.
var errServerGone = errors.New("the server has no process left")

// take samples the processes of a group and the machine. CPU time, which
// everything else would change, is read first.
func take(group int, moment Moment, w what) (Sample, error) {
	pids, err := procfs.Group(group)
	if err != nil {
		return Sample{}, err
	}
	s := Sample{Moment: moment, At: time.Now()}
	if w&cpu != 0 {
		err = errors.Join(s.readServerCPU(pids), s.readMachineCPU())
	}
	if w&memory != 0 {
		err = errors.Join(err, s.readServerMemory(pids), s.readMachineMemory())
	}
	if w&caches != 0 {
		s.readCaches()
	}
	if w&sockets != 0 {
		err = errors.Join(err, s.readSockets(pids))
	}
	return s, err
}

// each calls read for each process that is still there, and fails when none is.
func each(pids []int, read func(pid int) error) error {
	alive := 0
	for _, pid := range pids {
		err := read(pid)
		if procfs.Gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		alive++
	}
	if alive == 0 {
		return errServerGone
	}
	return nil
}

func (s *Sample) readServerCPU(pids []int) error {
	return each(pids, func(pid int) error {
		stat, err := procfs.ReadStat(pid)
		s.User += stat.User
		s.System += stat.System
		s.Threads += stat.Threads
		return err
	})
}

func (s *Sample) readMachineCPU() error {
	all, err := procfs.ReadCPUs()
	s.Busy, s.Stolen = all.All.Busy+all.All.Stolen, all.All.Stolen
	own, err2 := procfs.ReadStat(os.Getpid())
	s.Lab = own.CPU()
	return errors.Join(err, err2)
}

func (s *Sample) readServerMemory(pids []int) error {
	return each(pids, func(pid int) error {
		m, err := procfs.ReadMemory(pid)
		s.RSS += m.RSS
		s.PSS += m.PSS
		if err != nil {
			return err
		}
		r, err := procfs.ReadResident(pid)
		s.Anonymous += r.Anonymous
		return err
	})
}

func (s *Sample) readMachineMemory() error {
	m, err := procfs.ReadMeminfo()
	s.Slab, s.Free = m.Slab, m.Free
	return err
}

func (s *Sample) readSockets(pids []int) error {
	return each(pids, func(pid int) error {
		d, err := procfs.ReadDescriptors(pid)
		s.Sockets += d.Sockets
		return err
	})
}

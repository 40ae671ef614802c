package doctor

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/procfs"
	"github.com/myriad-go/myriad/internal/sample"
	"github.com/myriad-go/myriad/internal/sock"
)

// reader fills in Facts.
type reader struct {
	*Facts
	pid int
	own bool // the process is this one
}

func read(pid int) (*Facts, error) {
	if pid < 0 {
		return nil, fmt.Errorf("doctor: pid is %d; expected a process, or 0 for this one", pid)
	}
	r := reader{Facts: &Facts{At: time.Now()}, pid: pid}
	if r.own = pid == 0 || pid == os.Getpid(); r.own {
		r.pid = os.Getpid()
	}
	r.Process.PID = r.pid
	if _, err := procfs.ReadStat(r.pid); err != nil {
		return nil, fmt.Errorf("doctor: process %d: %w", r.pid, err)
	}
	r.machine()
	r.process()
	if r.own { // where the caller's thread is, even if others of this process are elsewhere
		r.network()
	} else if err := inNetwork(r.pid, r.network); err != nil {
		r.unknown("the process's network namespace, so that this process's is told", err)
		r.network()
	}
	return r.Facts, nil
}

// unknown keeps why something is not reported.
func (r *reader) unknown(what string, err error) {
	if err != nil {
		r.Unknown = append(r.Unknown, fmt.Sprintf("%s: %v", what, err))
	}
}

// machine reads what is the same for all processes, and the process's control groups.
func (r *reader) machine() {
	used, err := sample.Take(sample.MachineMemory|sample.Cgroup, r.pid)
	r.unknown("memory and cgroups", err)
	m, c := used.Machine, used.Cgroup
	r.Meminfo = MemoryFacts{Total: m.Total, Free: m.Free, FilePages: m.FilePages}
	r.Cgroup = CgroupFacts{
		Memory: c.Memory.Max, MemoryFrom: c.Memory.From, MemoryFile: c.Memory.File, MemoryUsed: c.Memory.Used,
		Sockets: c.SocketMemory.Max, SocketsFrom: c.SocketMemory.From, SocketsFile: c.SocketMemory.File, SocketsUsed: c.SocketMemory.Used,
		Pids: c.Tasks.Max, PidsFrom: c.Tasks.From, PidsFile: c.Tasks.File, PidsUsed: c.Tasks.Used,
	}
	machine, err := procfs.ReadMachine()
	r.unknown("machine", err)
	r.Machine = MachineFacts{Kernel: machine.Kernel, CPUModel: machine.CPUModel, CPUs: machine.CPUs}
	r.Nodes, err = procfs.CountNodes()
	r.unknown("NUMA nodes", err)
	r.PageSize = int64(os.Getpagesize())
	r.Tasks, err = procfs.CountAllTasks()
	r.unknown("tasks of the machine", err)
	r.caches()
	for _, model := range models.All() {
		if model.Name != "uring" {
			continue
		}
		if err := model.Available(); err != nil {
			r.Uring = err.Error()
		}
	}
	if err := sock.PrivateTables(); err != nil {
		r.Shards = err.Error()
	}
}

func (r *reader) caches() {
	slabs, err := procfs.ReadSlabs()
	if err != nil {
		r.unknown("sizes of the kernel's objects", err)
		return
	}
	r.Caches = make(map[string]float64)
	for _, name := range cacheNames {
		if slab, ok := slabs.Find(name); ok {
			r.Caches[name] = slab.Each
		}
	}
}

func (r *reader) process() {
	limits, err := procfs.ReadRlimits(r.pid)
	r.unknown("limits of the process", err)
	p := &r.Process
	p.Nofile, p.Memlock, p.Nproc = Rlimit(limits.Nofile), Rlimit(limits.Memlock), Rlimit(limits.Nproc)
	r.descriptors()
	rights, err := procfs.ReadRights(r.pid)
	r.unknown("rights of the process", err)
	if err == nil {
		p.User = rights.User
		p.Root = rights.HasMachine(procfs.CapSysAdmin, procfs.CapNetAdmin)
		p.Raise = rights.HasMachine(procfs.CapSysResource)
		p.Locks = rights.HasMachine(procfs.CapIPCLock)
		p.UserTasks, err = procfs.CountTasks(rights.User)
		r.unknown("tasks of the user", err)
	}
	if !r.own {
		r.unknown("GOMEMLIMIT", errors.New("only this very process's is known"))
	} else if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		p.GoMemoryLimit = limit
	}
}

// descriptors counts them in the process's table, and in those of threads that have one.
func (r *reader) descriptors() {
	p := &r.Process
	tables, err := procfs.ReadTables(r.pid)
	if err != nil { // an older kernel, or another user's process
		used, err := sample.Take(sample.Descriptors, r.pid)
		r.unknown("open descriptors", err)
		p.Open = used.Total().Descriptors
		return
	}
	p.Open, p.Tables = tables[0].Open, len(tables)-1
	for _, t := range tables[1:] {
		p.InTables += t.Open
	}
}

// inNetwork calls f in the network namespace of a process: on the calling thread if it
// is there, or on one that ends.
func inNetwork(pid int, f func()) error {
	same, err := procfs.SameNetwork(pid)
	if err != nil {
		return err
	}
	if same {
		f()
		return nil
	}
	sock.OwnThread(func() { err = enter(pid, f) })
	return err
}

// enter moves the calling thread to the network namespace of a process and calls f.
func enter(pid int, f func()) error {
	file, err := os.Open(procfs.NetworkFile(pid))
	if err != nil {
		return err
	}
	err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
	file.Close()
	if err != nil {
		return fmt.Errorf("setns: %w", err)
	}
	f()
	return nil
}

package doctor

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/cgroup"
	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/procfs"
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
	r.cgroup()
	if r.own { // where the caller's thread is, even if others of this process are elsewhere
		r.network()
	} else if err := inNetwork(r.pid, r.network); err != nil {
		r.unknown("the process's network namespace, so that this process's is told", err)
		r.network()
	}
	return r.Facts, nil
}

// unknown keeps why something is not told.
func (r *reader) unknown(what string, err error) {
	if err != nil {
		r.Unknown = append(r.Unknown, fmt.Sprintf("%s: %v", what, err))
	}
}

// machine reads what is the same for all processes.
func (r *reader) machine() {
	var err error
	r.Machine, err = procfs.ReadMachine()
	r.unknown("machine", err)
	r.Meminfo, err = procfs.ReadMeminfo()
	r.unknown("meminfo", err)
	r.Nodes, err = procfs.CountNodes()
	r.unknown("NUMA nodes", err)
	r.PageSize = int64(os.Getpagesize())
	r.Tasks, err = procfs.CountAllTasks()
	r.unknown("tasks of the machine", err)
	r.FilesOpen, err = openFiles()
	r.unknown("fs.file-nr", err)
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

// openFiles is the first number of fs.file-nr.
func openFiles() (int64, error) {
	text, err := procfs.ReadSysctl("fs.file-nr")
	if err != nil {
		return 0, err
	}
	open, _, _ := strings.Cut(text, " ")
	return strconv.ParseInt(open, 10, 64)
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
	p.Open, _, err = procfs.CountDescriptors(r.pid)
	r.unknown("open descriptors", err)
	rights, err := procfs.ReadRights(r.pid)
	r.unknown("rights of the process", err)
	if err == nil {
		p.User, p.Seccomp = rights.User, rights.Seccomp
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

func (r *reader) cgroup() {
	c, err := cgroup.Read(r.pid)
	r.unknown("cgroups", err)
	r.Cgroup = CgroupFacts{
		Memory: c.Memory.Max, MemoryFrom: c.Memory.From, MemoryFile: c.Memory.File, MemoryUsed: c.Memory.Used,
		Sockets: c.SocketMemory.Max, SocketsFrom: c.SocketMemory.From, SocketsFile: c.SocketMemory.File, SocketsUsed: c.SocketMemory.Used,
		Pids: c.Tasks.Max, PidsFrom: c.Tasks.From, PidsFile: c.Tasks.File, PidsUsed: c.Tasks.Used,
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

package doctor

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/cgroup"
	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/tools/internal/procfs"
)

type factReader struct {
	*Facts
	pid int
	own bool // the process is the calling process
}

// Read reads facts about this machine and the process pid: the process's limits, control groups and network namespace.
// pid 0 means the calling process. Facts.Unknown lists facts that cannot be read. Read returns an error if the process
// does not exist or the system is not Linux.
//
// For the calling process, Read reads the network namespace of the calling thread. The caller must lock the goroutine
// to its thread if threads have different namespaces. For another process, Read enters the process's network namespace
// on a temporary thread, which requires CAP_SYS_ADMIN. Facts.Uring and Facts.Shards always describe the calling
// process.
//
// To detect connection tracking, Read may send a datagram to its own socket. Read takes some milliseconds, regardless
// of the number of connections.
func Read(pid int) (*Facts, error) {
	if pid < 0 {
		return nil, fmt.Errorf("doctor: pid is %d; expected a process ID, or 0 for the current process", pid)
	}
	r := factReader{Facts: &Facts{At: time.Now()}, pid: pid}
	if r.own = pid == 0 || pid == os.Getpid(); r.own {
		r.pid = os.Getpid()
	}
	r.Process.PID = r.pid
	if _, err := procfs.ReadStat(r.pid); err != nil {
		return nil, fmt.Errorf("doctor: process %d: %w", r.pid, err)
	}
	r.readMachineAndCgroups()
	r.readProcessFacts()
	if r.own { // the calling thread's namespace, because other threads can be in others
		r.readSysctlsSocketsInterfaces()
	} else if err := procfs.CallInNetworkNamespace(r.pid, r.readSysctlsSocketsInterfaces); err != nil {
		r.recordUnknownIfError("network namespace of the process (that of the current process is reported)", err)
		r.readSysctlsSocketsInterfaces()
	}
	return r.Facts, nil
}

func (r *factReader) recordUnknownIfError(what string, err error) {
	if err != nil {
		r.Unknown = append(r.Unknown, fmt.Sprintf("%s: %v", what, err))
	}
}

func (r *factReader) readMachineAndCgroups() {
	m, err := procfs.ReadMemory()
	r.recordUnknownIfError("memory", err)
	r.Meminfo = MemoryFacts{Total: m.Total, Free: m.Free, FilePages: m.FilePages}
	c, err := cgroup.ReadLimits(r.pid)
	if !procfs.IsNotFoundOrExited(err) { // a kernel without cgroups
		r.recordUnknownIfError("cgroups", err)
	}
	r.Cgroup = CgroupFacts{Memory: CgroupLimit(c.Memory), Sockets: CgroupLimit(c.SocketMemory), Tasks: CgroupLimit(c.Tasks)}
	machine, err := procfs.ReadKernelCPUsAndMemory()
	r.recordUnknownIfError("machine", err)
	r.Machine = MachineFacts{Kernel: machine.Kernel, CPUModel: machine.CPUModel, CPUs: machine.CPUs}
	r.Nodes, err = procfs.CountNUMANodesWithMemory()
	r.recordUnknownIfError("NUMA nodes", err)
	r.PageSize = int64(os.Getpagesize())
	r.Tasks, err = procfs.CountTasksOfMachine()
	r.recordUnknownIfError("tasks of the machine", err)
	r.readSlabObjectSizes()
	for _, model := range models.All() {
		if model.Name != "uring" {
			continue
		}
		if err := model.Available(); err != nil {
			r.Uring = err.Error()
		}
	}
	if err := sock.CheckPrivateTables(); err != nil {
		r.Shards = err.Error()
	}
}

var cacheNames = []string{"TCP", "TCPv6", "sock_inode_cache", "dentry", "filp", "tcp_bind_bucket"}

func (r *factReader) readSlabObjectSizes() {
	slabs, err := procfs.ReadSlabCaches()
	if err != nil {
		r.recordUnknownIfError("sizes of the kernel's objects", err)
		return
	}
	r.Caches = make(map[string]float64)
	for _, name := range cacheNames {
		if slab, ok := slabs[name]; ok {
			r.Caches[name] = slab.Each
		}
	}
}

func (r *factReader) readProcessFacts() {
	limits, err := procfs.ReadRlimits(r.pid)
	r.recordUnknownIfError("limits of the process", err)
	p := &r.Process
	p.Nofile, p.Memlock, p.Nproc = Rlimit(limits.Nofile), Rlimit(limits.Memlock), Rlimit(limits.Nproc)
	r.countDescriptors()
	rights, err := procfs.ReadRights(r.pid)
	r.recordUnknownIfError("rights of the process", err)
	if err == nil {
		p.User = rights.User
		p.Root = rights.HasInFirstUserNamespace(procfs.CapSysAdmin, procfs.CapNetAdmin)
		p.Raise = rights.HasInFirstUserNamespace(procfs.CapSysResource)
		p.Locks = rights.HasInFirstUserNamespace(procfs.CapIPCLock)
		p.UserTasks, err = procfs.CountTasksOfUser(rights.User)
		r.recordUnknownIfError("tasks of the user", err)
	}
	if !r.own {
		r.recordUnknownIfError("GOMEMLIMIT", errors.New("known only for the current process"))
	} else if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		p.GoMemoryLimit = limit
	}
}

func (r *factReader) countDescriptors() {
	p := &r.Process
	tables, err := procfs.CountDescriptorsByTable(r.pid)
	if err != nil { // another user's process, or a sandbox
		p.Open, err = procfs.CountDescriptors(r.pid)
		r.recordUnknownIfError("open descriptors", err)
		return
	}
	p.Open, p.Tables = tables[0].Open, len(tables)-1
	for _, t := range tables[1:] {
		p.InTables += t.Open
	}
}

const maxInterfaces = 256

// readSysctlsSocketsInterfaces reads the kernel settings, sockets and interfaces that the calling thread can see.
func (r *factReader) readSysctlsSocketsInterfaces() {
	r.readSysctls()
	r.readNetworkAndOpenFiles()
	r.readInterfaces()
}

func (r *factReader) readSysctls() {
	r.Sysctls = make(map[string]string, len(sysctlInfos))
	for _, name := range slices.Sorted(maps.Keys(sysctlInfos)) {
		value, err := procfs.ReadSysctl(name)
		switch {
		case err == nil:
			r.Sysctls[name] = value
			if !procfs.SysctlWritable(name) {
				r.ReadOnly = append(r.ReadOnly, name)
			}
		case sysctlInfos[name].machineWide:
			r.readSysctlInAncestorNetns(name)
		case !procfs.IsNotFoundOrExited(err):
			r.recordUnknownIfError("sysctl "+name, err)
		}
	}
}

// maxAncestors is the maximum number of processes whose network namespaces readSysctlInAncestorNetns tries.
const maxAncestors = 16

// readSysctlInAncestorNetns reads a machine-wide kernel setting that is not visible in this process's network
// namespace. It tries the network namespaces of this process and its ancestors. If the setting is visible in one of
// them, it stores the value and adds the name to r.ReadOnly. Otherwise, it adds the setting to r.Unknown.
func (r *factReader) readSysctlInAncestorNetns(name string) {
	pid, shown := os.Getpid(), false
	for range maxAncestors {
		// Namespaces that cannot be entered are skipped.
		_ = procfs.CallInNetworkNamespace(pid, func() {
			if value, err := procfs.ReadSysctl(name); err == nil {
				r.Sysctls[name], shown = value, true
			}
		})
		if shown {
			r.ReadOnly = append(r.ReadOnly, name)
			return
		}
		above, err := procfs.ReadStat(pid)
		if err != nil || above.Parent == 0 {
			break
		}
		pid = above.Parent
	}
	r.recordUnknownIfError(name, errors.New("applies to the whole machine and is not visible in this network namespace"))
}

// lowestPort is the lowest port to which the range of client ports may be widened.
const lowestPort = 1024

func (r *factReader) readNetworkAndOpenFiles() {
	n, err := procfs.ReadNetworkOfCurrentNamespace()
	r.recordUnknownIfError("sockets and counters of the network", err)
	s := &r.Sockets
	s.Open, s.TimeWait, s.Orphans, s.Pages = n.Open, n.TimeWait, n.Orphans, n.TCPBuffers/r.PageSize
	s.Counters = n.Counters
	r.FilesOpen, err = procfs.CountOpenFilesOfMachine()
	r.recordUnknownIfError("open files", err)
	r.readConntrackProbingIfZero()
	r.readListeningPortsAndFullestQueue()
}

func (r *factReader) readListeningPortsAndFullestQueue() {
	low := uint16(lowestPort)
	_, _ = fmt.Sscan(r.Sysctls[rangeName], &low) // no wall depends on an unreadable setting
	queues, err := sock.ListAcceptQueues()
	r.recordUnknownIfError("sockets that listen", err)
	s := &r.Sockets
	for _, q := range queues {
		if port := q.Addr.Port(); port >= min(low, lowestPort) {
			s.Ports = append(s.Ports, port)
		}
		if s.Queue == nil || q.Waiting*(s.Queue.Backlog+1) > s.Queue.Waiting*(q.Max+1) {
			s.Queue = &QueueFacts{At: q.Addr, Waiting: q.Waiting, Backlog: q.Max}
		}
	}
	slices.Sort(s.Ports)
	s.Ports = slices.Compact(s.Ports)
}

func (r *factReader) readConntrackProbingIfZero() {
	tracked, err := readConntrackCount()
	if procfs.IsNotFoundOrExited(err) {
		return
	}
	r.recordUnknownIfError("tracked connections", err)
	r.Sockets.Tracked = tracked
	if r.Sockets.Tracking = tracked > 0; !r.Sockets.Tracking {
		r.Sockets.Tracking, err = probeConntrack()
		r.recordUnknownIfError("whether connections are tracked", err)
	}
}

func readConntrackCount() (int64, error) {
	text, err := procfs.ReadSysctl(trackCountName)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// probeConntrack sends a datagram to its own socket and reports whether the firewall has tracked the datagram.
func probeConntrack() (isTracked bool, _ error) {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return false, err
	}
	defer c.Close()
	_, err = c.WriteTo([]byte("tracked?"), c.LocalAddr())
	if errors.Is(err, syscall.ENETUNREACH) { // loopback is down: nothing is tracked, and a wall reports loopback
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot send a datagram on loopback: %w", err)
	}
	tracked, err := readConntrackCount()
	return tracked > 0, err
}

func (r *factReader) readInterfaces() {
	all, err := net.Interfaces()
	r.recordUnknownIfError("interfaces", err)
	if len(all) > maxInterfaces {
		r.recordUnknownIfError("interfaces", fmt.Errorf("only %[2]d of %[1]d are reported", len(all), maxInterfaces))
		all = all[:maxInterfaces]
	}
	for _, i := range all {
		found := Interface{Name: i.Name, Up: i.Flags&net.FlagUp != 0, Loopback: i.Flags&net.FlagLoopback != 0}
		addrs, err := i.Addrs()
		r.recordUnknownIfError("addresses of "+i.Name, err)
		for _, addr := range addrs {
			if p, err := netip.ParsePrefix(addr.String()); err == nil {
				found.Addrs = append(found.Addrs, p)
			}
		}
		// If the counts cannot be read, they stay 0: /sys may show another network namespace.
		found.Receive, found.Send, _ = procfs.CountInterfaceQueues(i.Name, i.Index, i.HardwareAddr.String())
		r.Interfaces = append(r.Interfaces, found)
	}
}

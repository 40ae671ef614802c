package sample

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	prom "github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/cgroup"
	"github.com/myriad-go/myriad/tools/internal/procfs"
)

// read fills a sample in: all processor times first, as everything else adds to them.
func (s *Sample) read(r *Sampler, pids []int) error {
	root, err := prom.NewFS("/proc")
	if err != nil {
		return procfs.ErrNotAvailable
	}
	var errs []error
	for _, pid := range pids {
		p, err := root.Proc(pid)
		if err == nil {
			err = s.addProcess(p)
		}
		if err != nil && !procfs.Gone(err) {
			errs = append(errs, err)
		}
	}
	if s.Parts&MachineCPU != 0 {
		errs = append(errs, s.Machine.readCPU(root))
	}
	for i := range s.Processes {
		p := &s.Processes[i]
		if err := p.read(root, r, s.Parts); err != nil && !deniedByExit(root, p.PID, err) {
			errs = append(errs, fmt.Errorf("sample: process %d: %w", p.PID, err))
		}
	}
	if s.Parts&MachineMemory != 0 {
		errs = append(errs, s.Machine.readMemory(root))
	}
	if s.Parts&Network != 0 {
		errs = append(errs, s.Machine.readNetwork())
	}
	if s.Parts&Cgroup != 0 {
		pid := os.Getpid()
		if len(s.Processes) > 0 {
			pid = s.Processes[0].PID
		}
		if s.Cgroup, err = cgroup.Read(pid); err != nil && !procfs.Gone(err) { // a kernel without
			errs = append(errs, err)
		}
	}
	if len(pids) > 0 && len(s.Processes) == 0 {
		errs = append(errs, ErrEnded)
	}
	return errors.Join(errs...)
}

// deniedByExit reports whether err is a denied read of a process that is ending: once its memory is
// released, its files in /proc belong to root.
func deniedByExit(root prom.FS, pid int, err error) bool {
	if !errors.Is(err, fs.ErrPermission) {
		return false
	}
	p, err := root.Proc(pid)
	if err != nil {
		return procfs.Gone(err)
	}
	stat, err := p.Stat()
	return err != nil && procfs.Gone(err) || err == nil && stat.VSize == 0
}

// addProcess adds a process that is alive, with its processor time.
func (s *Sample) addProcess(p prom.Proc) error {
	stat, err := p.Stat()
	if err != nil {
		return err
	}
	if stat.State == "Z" && stat.NumThreads <= 1 { // with more, only its first thread has ended
		return nil
	}
	one := Process{PID: p.PID}
	if s.Parts&CPU != 0 {
		one.Threads = stat.NumThreads
		one.User, one.System = ticks(stat.UTime), ticks(stat.STime)
		one.Children = ticks(uint(stat.CUTime + stat.CSTime))
		one.refine()
	}
	s.Processes = append(s.Processes, one)
	return nil
}

// refine tells the processor time of this process to the microsecond. Of another it replaces the
// sum of User and System, which are in steps of 10 ms, by what that process's clock says, see
// clock_getcpuclockid(3); both keep their parts of it.
func (p *Process) refine() {
	var used unix.Rusage
	if p.PID == os.Getpid() && unix.Getrusage(unix.RUSAGE_SELF, &used) == nil {
		p.User, p.System = time.Duration(used.Utime.Nano()), time.Duration(used.Stime.Nano())
		return
	}
	var clock unix.Timespec
	if unix.ClockGettime(int32(^p.PID<<3|2), &clock) != nil { // a sandbox may know its own only
		return
	}
	precise := time.Duration(clock.Nano())
	part := 0.5
	if all := p.CPU(); all > 0 {
		part = float64(p.User) / float64(all)
	}
	p.User = time.Duration(part * float64(precise))
	p.System = precise - p.User
}

// ticks turns clock ticks into a duration: USER_HZ is 100 on every architecture that Go
// supports.
func ticks(n uint) time.Duration { return time.Duration(n) * 10 * time.Millisecond }

// read reads what is not processor time. What the kernel does not report, or a process that
// has just ended, is no error.
func (p *Process) read(root prom.FS, r *Sampler, parts Parts) error {
	proc, err := root.Proc(p.PID)
	if err != nil {
		return nil
	}
	var errs []error
	try := func(part Parts, read func() error) {
		if parts&part == 0 {
			return
		}
		if err := r.timed(part, read); err != nil && !procfs.Gone(err) {
			errs = append(errs, err)
		}
	}
	try(Memory, func() error {
		status, err := proc.NewStatus()
		p.RSS, p.PeakRSS, p.Anonymous = int64(status.VmRSS), int64(max(status.VmRSS, status.VmHWM)), int64(status.RssAnon)
		return err
	})
	try(PSS, func() error {
		rollup, err := proc.ProcSMapsRollup()
		if err == nil {
			p.RSS, p.PSS = int64(rollup.Rss), int64(rollup.Pss)
		}
		return err
	})
	try(Descriptors, func() (err error) {
		p.Descriptors, err = proc.FileDescriptorsLen()
		return err
	})
	try(Switches, func() error { return p.readSwitches(root) })
	try(Sockets, func() error {
		d, err := procfs.ReadDescriptors(p.PID)
		p.Descriptors, p.Sockets = d.Open, d.Sockets
		return err
	})
	return errors.Join(errs...)
}

// timed calls read, and notes a costly part that took long.
func (r *Sampler) timed(part Parts, read func() error) error {
	began := time.Now()
	err := read()
	if part&costly != 0 && time.Since(began) > slowRead {
		if r.slow == nil {
			r.slow = make(map[Parts]time.Time)
		}
		r.slow[part] = began
	}
	return err
}

// maxThreads bounds the threads that are looked at of one process.
const maxThreads = 32 << 10

// readSwitches adds up the threads.
func (p *Process) readSwitches(root prom.FS) error {
	threads, err := root.AllThreads(p.PID)
	if err != nil {
		return err
	}
	if len(threads) > maxThreads {
		return fmt.Errorf("%d threads; expected at most %d", len(threads), maxThreads)
	}
	for _, t := range threads {
		if status, err := t.NewStatus(); err == nil { // otherwise it has ended
			p.Voluntary += int64(status.VoluntaryCtxtSwitches)
			p.Involuntary += int64(status.NonVoluntaryCtxtSwitches)
		}
	}
	return nil
}

func (m *Machine) readCPU(root prom.FS) error {
	stat, err := root.Stat()
	if err != nil {
		return err
	}
	c := stat.CPUTotal // guest time is in user already
	m.Busy = seconds(c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ)
	m.Idle = seconds(c.Idle + c.Iowait)
	m.Stolen = seconds(c.Steal)
	if pressure, err := root.PSIStatsForResource("cpu"); err == nil && pressure.Some != nil {
		m.Stalled = time.Duration(pressure.Some.Total) * time.Microsecond
	}
	return nil
}

// seconds rounds to the kernel's steps of 10 ms.
func seconds(s float64) time.Duration { return ticks(uint(math.Round(s * 100))) }

func (m *Machine) readMemory(root prom.FS) error {
	info, err := root.Meminfo()
	if err != nil {
		return err
	}
	m.Total, m.Free = known(info.MemTotalBytes), known(info.MemFreeBytes)
	m.FilePages = known(info.ActiveFileBytes) + known(info.InactiveFileBytes)
	m.Slab, m.PageTables, m.KernelStacks = known(info.SlabBytes), known(info.PageTablesBytes), known(info.KernelStackBytes)
	return nil
}

// known is a number that the library may not have found, 0 then.
func known[N int | uint64](n *N) int64 {
	if n == nil {
		return 0
	}
	return int64(*n)
}

// readNetwork reads the network namespace of the calling thread.
func (m *Machine) readNetwork() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// /proc/net has the namespace of the process's first thread.
	thread, err := prom.NewFS("/proc/thread-self")
	if err != nil {
		return err
	}
	m.Counters = make(map[string]int64)
	return errors.Join(m.readSockets(thread), m.readCounters(), m.readDrops(thread), m.readFiles())
}

func (m *Machine) readSockets(thread prom.FS) error {
	four, err := thread.NetSockstat()
	if err != nil {
		return err
	}
	for _, p := range four.Protocols {
		if p.Protocol == "TCP" {
			m.Open, m.Orphans, m.TimeWait = int64(p.InUse), known(p.Orphan), known(p.TW)
			m.TCPBuffers = known(p.Mem) * int64(os.Getpagesize())
		}
	}
	six, err := thread.NetSockstat6()
	if procfs.Gone(err) { // without IPv6
		return nil
	}
	if err != nil {
		return err
	}
	for _, p := range six.Protocols {
		if p.Protocol == "TCP6" {
			m.Open += int64(p.InUse)
		}
	}
	return nil
}

// counters are those of /proc/net/netstat that show that a limit was met.
var counters = []string{
	"ListenOverflows", "ListenDrops", "TCPReqQFullDoCookies", "TCPReqQFullDrop", "SyncookiesSent", "TCPBacklogDrop",
	"TCPMemoryPressures", "TCPMemoryPressuresChrono", "TCPAbortOnMemory", "PruneCalled", "RcvPruned", "TCPRcvQDrop",
	"TCPTimeWaitOverflow", "TCPSynRetrans",
}

// readCounters reads them, and how many connections are established. The library has
// fields for some of them that it does not fill (v0.22: TCPMemoryPressures, TCPAbortOnMemory).
func (m *Machine) readCounters() error {
	tcp, err := readPairs("/proc/thread-self/net/snmp", "Tcp:")
	if err != nil {
		return err
	}
	m.Established = tcp["CurrEstab"]
	ext, err := readPairs("/proc/thread-self/net/netstat", "TcpExt:")
	for _, name := range counters {
		if n, ok := ext[name]; ok {
			m.Counters[name] = n
		}
	}
	return err
}

// readPairs reads the two lines of a file that begin with a word, names and numbers:
// "Tcp: RtoMin CurrEstab" and "Tcp: 200 17".
func readPairs(file, word string) (map[string]int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] != word:
		case names == nil:
			names = fields
		case len(fields) == len(names):
			found := make(map[string]int64, len(names))
			for i := 1; i < len(names); i++ {
				if found[names[i]], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
					return nil, fmt.Errorf("sample: %s: %s: %w", file, names[i], err)
				}
			}
			return found, nil
		}
	}
	return nil, fmt.Errorf("sample: %s has no two lines of %s", file, word)
}

// readDrops reads packets that were dropped: before a processor took them from its
// backlog, or because the firewall could not follow their connection.
func (m *Machine) readDrops(thread prom.FS) error {
	processors, err := thread.NetSoftnetStat()
	if err != nil {
		return err
	}
	for _, p := range processors {
		m.Counters["softnet_dropped"] += int64(p.Dropped)
	}
	tracker, err := thread.ConntrackStat()
	if err != nil {
		if procfs.Gone(err) { // there is none
			return nil
		}
		return err
	}
	for _, p := range tracker {
		m.Counters["nf_conntrack_insert_failed"] += int64(p.InsertFailed)
		m.Counters["nf_conntrack_drop"] += int64(p.Drop)
		m.Counters["nf_conntrack_early_drop"] += int64(p.EarlyDrop)
	}
	return nil
}

func (m *Machine) readFiles() error {
	text, err := procfs.ReadSysctl("fs.file-nr")
	if err != nil {
		if procfs.Gone(err) {
			return nil
		}
		return err
	}
	_, err = fmt.Sscan(text, &m.Files)
	return err
}

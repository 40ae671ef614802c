package doctor

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/cgroup"
	"github.com/myriad-go/myriad/internal/procfs"
	"github.com/myriad-go/myriad/internal/sock"
)

const (
	// maxWalked is the most TCP sockets among which those of a target are counted:
	// that takes some 0.7 µs for each socket of the machine.
	maxWalked = 1 << 18
	// walkShare is which part of the time that may take.
	walkShare = 100
	// lookEvery is the least time between two searches for who listens, which may
	// take 10 ms.
	lookEvery = 5 * time.Second
)

// watcher reads samples off the machine. It belongs to one goroutine.
type watcher struct {
	cfg     WatchConfig
	pids    []int // that are followed now
	looked  time.Time
	ports   level // as counted last
	portsOK bool
	counted time.Time // when they may be counted next
	hidden  hidden
	groups  map[string]string // the file of the limit that was read last, by kind
}

// newWatcher looks whether the process can be followed.
func newWatcher(cfg WatchConfig) (*watcher, error) {
	w := &watcher{cfg: cfg, hidden: make(hidden), groups: make(map[string]string)}
	if cfg.PID != 0 {
		if err := checkProcess(cfg.PID); err != nil {
			return nil, err
		}
		w.pids = []int{cfg.PID}
	}
	return w, nil
}

// checkProcess says why a process can't be followed.
func checkProcess(pid int) error {
	same, err := procfs.SameNetwork(pid)
	switch {
	case procfs.Gone(err):
		return fmt.Errorf("doctor: there is no process %d", pid)
	case err != nil:
		return fmt.Errorf("doctor: process %d can't be looked at: %w; run as its user, or as root", pid, err)
	case !same:
		return fmt.Errorf("doctor: process %d is in another network namespace; run there: `nsenter -t %d -n myriad doctor --watch --pid %d`", pid, pid, pid)
	}
	return nil
}

// sample reads the machine now. Its error is ErrEnded, or says that nothing can be
// read at all.
func (w *watcher) sample(now time.Time) (sample, error) {
	b := builder{sample: sample{at: now, counters: make(map[string]int64)}, page: int64(os.Getpagesize()), hidden: w.hidden}
	counters, err := procfs.ReadNetCounters()
	if err != nil {
		return sample{}, fmt.Errorf("doctor: %w", err)
	}
	b.connections = counters["TcpCurrEstab"]
	sockets, err := procfs.ReadSocketCounts()
	if err != nil {
		return sample{}, fmt.Errorf("doctor: %w", err)
	}
	b.network(counters)
	b.sockets(sockets)
	b.machine()
	b.conntrack()
	w.queue(&b)
	w.portsTo(&b, sockets.Open+sockets.TimeWait)
	err = w.processes(&b)
	return b.sample, err
}

// builder puts a sample together.
type builder struct {
	sample
	page   int64
	hidden hidden
}

// failed notes what could not be read.
func (b *builder) failed(what string, err error) {
	b.unknown = append(b.unknown, fmt.Sprintf("%s: %v", what, err))
}

// add adds a level that has a limit.
func (b *builder) add(l level) {
	if l.limit > 0 {
		b.levels = append(b.levels, l)
	}
}

// hidden are settings that this network namespace doesn't show. Each is read once, as
// that takes a thread that enters another one.
type hidden map[string]struct {
	text string
	err  error
}

func (h hidden) read(name string) (string, error) {
	s, known := h[name]
	if !known {
		s.text, s.err = readElsewhere(name)
		h[name] = s
	}
	return s.text, s.err
}

// setting is a field of a setting of the kernel, 0 if it isn't there.
func (b *builder) setting(name string, field int) int64 {
	text, err := procfs.ReadSysctl(name)
	if procfs.Gone(err) {
		if !slices.Contains(machineWide, name) {
			return 0
		}
		text, err = b.hidden.read(name)
	}
	if err != nil {
		b.failed(name, err)
		return 0
	}
	fields := strings.Fields(text)
	if field >= len(fields) {
		b.failed(name, fmt.Errorf("%q has no field %d", text, field+1))
		return 0
	}
	n, err := strconv.ParseInt(fields[field], 10, 64)
	if err != nil {
		b.failed(name, err)
	}
	return n
}

// network takes the counters that tell of a wall.
func (b *builder) network(counters map[string]int64) {
	for name := range told {
		if n, ok := counters["TcpExt"+name]; ok {
			b.counters[name] = n
		}
	}
	drops, err := procfs.ReadSoftnetDrops()
	if err != nil {
		b.failed("packets dropped before a processor took them", err)
		return
	}
	b.counters["softnet dropped"] = drops
}

// sockets adds the limits of the kernel's TCP.
func (b *builder) sockets(c procfs.SocketCounts) {
	b.add(level{wall: "tcp_mem", unit: bytesUnit, used: c.Pages * b.page, limit: b.setting("net.ipv4.tcp_mem", 2) * b.page})
	b.add(level{wall: "tcp_max_orphans", unit: "orphans", used: c.Orphans, limit: b.setting("net.ipv4.tcp_max_orphans", 0)})
	b.add(level{wall: "tcp_max_tw_buckets", unit: "in TIME_WAIT", used: c.TimeWait, limit: b.setting("net.ipv4.tcp_max_tw_buckets", 0)})
}

// machine adds what the whole machine has.
func (b *builder) machine() {
	m, err := procfs.ReadMeminfo()
	if err != nil {
		b.failed("memory", err)
		return
	}
	// Not Available: it takes what the kernel keeps of open sockets for free.
	b.add(level{wall: "memory", unit: bytesUnit, used: m.Total - m.Free - m.FilePages, limit: m.Total})
}

// conntrack adds the firewall's table, where there is one.
func (b *builder) conntrack() {
	most := b.setting("net.netfilter.nf_conntrack_max", 0)
	if most == 0 {
		return
	}
	b.add(level{wall: "conntrack", unit: "connections", used: b.setting("net.netfilter.nf_conntrack_count", 0), limit: most})
	counters, err := procfs.ReadTrackerCounters()
	if err != nil {
		b.failed("conntrack's counters", err)
		return
	}
	for _, name := range []string{"insert_failed", "drop"} {
		b.counters["conntrack "+name] = counters[name]
	}
}

// queue adds the fullest queue of connections that wait to be accepted: of those who
// listen at the target, or of all where there is none.
func (w *watcher) queue(b *builder) {
	queues, err := sock.Queues(w.cfg.Target.Port())
	if err != nil {
		b.failed("the queues of listeners", err)
		return
	}
	to := w.cfg.Target.Addr().Unmap()
	var fullest level
	for _, q := range queues {
		if at := q.At.Addr(); to.IsValid() && at != to && !at.IsUnspecified() {
			continue
		}
		l := level{wall: "somaxconn", of: q.At.String(), unit: "connections waiting", used: q.Waiting, limit: q.Most + 1, moments: true}
		if fullest.limit == 0 || fuller(&l, &fullest) {
			fullest = l
		}
	}
	b.add(fullest)
}

// fuller says whether more of a's limit is used.
func fuller(a, b *level) bool { return a.used*b.limit > b.used*a.limit }

// portsTo adds the fullest local address of connections to the target.
func (w *watcher) portsTo(b *builder, sockets int64) {
	if !w.cfg.Target.IsValid() {
		return
	}
	if sockets > maxWalked {
		b.failed("ports", fmt.Errorf("not counted among more than %s sockets", thousands(maxWalked)))
		w.portsOK = false
		return
	}
	if !b.at.Before(w.counted) {
		w.countPorts(b)
	}
	if w.portsOK {
		b.add(w.ports)
	}
}

// countPorts counts, and says when to do so next.
func (w *watcher) countPorts(b *builder) {
	began := time.Now()
	counts, err := sock.PortsTo(w.cfg.Target, maxWalked)
	w.counted = b.at.Add(walkShare * time.Since(began))
	if w.portsOK = err == nil; err != nil {
		b.failed("ports", err)
		return
	}
	w.ports = level{wall: "ports", unit: "ports", limit: localPorts(b)}
	for addr, n := range counts {
		if n > w.ports.used || n == w.ports.used && addr.String() < w.ports.of {
			w.ports.used, w.ports.of = n, addr.String()
		}
	}
}

// localPorts is how many ports of an address connections can have to one target.
func localPorts(b *builder) int64 {
	reserved, err := procfs.ReadSysctl(reservedName)
	if err != nil {
		b.failed(reservedName, err)
	}
	return portRange{low: b.setting(rangeName, 0), high: b.setting(rangeName, 1), taken: parsePorts(reserved)}.room()
}

// find finds the processes to follow, where they are not given.
func (w *watcher) find(b *builder) {
	if w.cfg.PID != 0 || !w.cfg.Target.IsValid() || len(w.pids) > 0 || b.at.Sub(w.looked) < lookEvery {
		return
	}
	w.looked = b.at
	addr := w.cfg.Target.Addr().WithZone("").Unmap()
	if addr.IsUnspecified() || sock.IsLocal(addr) {
		w.pids, _ = procfs.Listener(w.cfg.Target.Port(), addr) // none, so nobody is followed
	}
}

// processes adds the descriptors of the fullest process, and what control groups
// allow. One that has ended is told of.
func (w *watcher) processes(b *builder) error {
	w.find(b)
	left := w.pids[:0]
	var fullest level
	for _, pid := range w.pids {
		l, err := descriptors(pid)
		if procfs.Gone(err) {
			b.events = append(b.events, Warning{Wall: "process", Text: fmt.Sprintf("process %d has ended", pid)})
			w.looked = time.Time{} // others may have taken its place
			continue
		}
		left = append(left, pid)
		if err != nil {
			b.failed(fmt.Sprintf("descriptors of process %d", pid), err)
		} else if fullest.limit == 0 || fuller(&l, &fullest) {
			fullest = l
		}
	}
	w.pids = left
	b.sample.processes = slices.Clone(left)
	b.add(fullest)
	pid := os.Getpid()
	if len(left) > 0 {
		pid = left[0]
	}
	b.files(pid)
	w.cgroups(b, pid)
	if w.cfg.PID != 0 && len(left) == 0 {
		return fmt.Errorf("%w: process %d", ErrEnded, w.cfg.PID)
	}
	return nil
}

// files adds the files that the whole machine has open, unless the process may open
// more than that (CAP_SYS_ADMIN).
func (b *builder) files(pid int) {
	rights, err := procfs.ReadRights(pid)
	if err != nil {
		b.failed("what the process may do", err)
		return
	}
	if !rights.Has(procfs.CapSysAdmin) {
		b.add(level{wall: "file-max", unit: "files", used: b.setting("fs.file-nr", 0), limit: b.setting("fs.file-max", 0)})
	}
}

// descriptors are those of a process: of all its tables together where it has
// several, as Myriad's loops do, since a loop whose table is full leaves connections
// to the others.
func descriptors(pid int) (level, error) {
	tables, err := procfs.ReadTables(pid)
	if err != nil {
		return level{}, err
	}
	limits, err := procfs.ReadRlimits(pid)
	if err != nil {
		return level{}, err
	}
	l := level{wall: "nofile", of: fmt.Sprintf("process %d", pid), unit: "descriptors"}
	if len(tables) > 1 { // the first is the process's own, the rest have connections
		l.of += fmt.Sprintf(", %d tables", len(tables)-1)
		tables = tables[1:]
	}
	for _, t := range tables {
		l.used += int64(t.Open)
	}
	l.limit = limits.Nofile.Soft * int64(len(tables)) // none is -1
	return l, nil
}

// cgroups adds what the control groups of a process allow.
func (w *watcher) cgroups(b *builder, pid int) {
	c, err := cgroup.Read(pid)
	if err != nil {
		b.failed("control groups", err)
		return
	}
	b.add(level{wall: "cgroup-memory", of: c.Memory.From, unit: bytesUnit, used: c.Memory.Used, limit: c.Memory.Max})
	b.add(level{wall: "cgroup-sockets", of: c.SocketMemory.From, unit: bytesUnit, used: c.SocketMemory.Used, limit: c.SocketMemory.Max})
	b.add(level{wall: "cgroup-pids", of: c.Tasks.From, unit: "tasks", used: c.Tasks.Used, limit: c.Tasks.Max})
	w.hits(b, "memory", c.Memory)
	w.hits(b, "pids", c.Tasks)
}

// hits counts how often a limit of a control group was met. Where another group has
// become the tighter one, its count is no rise.
func (w *watcher) hits(b *builder, what string, c cgroup.Limit) {
	if c.File == "" {
		return
	}
	h, err := c.Events()
	if err != nil {
		b.failed("how often the control group's limit was met", err)
		return
	}
	same := w.groups[what] == c.File
	if w.groups[what] = c.File; !same {
		return
	}
	b.counters[what+" refused"] = h.Refused
	b.counters[what+" oom_kill"] = h.Killed
}

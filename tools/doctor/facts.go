package doctor

import (
	"net/netip"
	"time"
)

// Facts is what was read off a machine. It is plain data: a test, or a report
// from elsewhere, can fill it in. What could not be read is zero, and said in
// Unknown.
type Facts struct {
	At time.Time `json:"at"`
	// Machine is the kernel's release, the processors, the memory.
	Machine MachineFacts `json:"machine"`
	Meminfo MemoryFacts  `json:"meminfo"`
	// Nodes is how many NUMA nodes have memory.
	Nodes int `json:"nodes"`
	// Sysctls are the kernel's settings by name, such as "net.core.somaxconn":
	// the text that /proc/sys has, its fields separated by single spaces. A
	// name that is missing does not exist here (in a network namespace some
	// don't).
	Sysctls map[string]string `json:"sysctls"`
	// ReadOnly are those of them that can't be written here. In a network
	// namespace some can't be seen either, though they hold for it: those are
	// read in the machine's first one, where that can be entered.
	ReadOnly []string `json:"read_only,omitempty"`
	// Process is who asks, whose limits a server that it starts inherits.
	Process ProcessFacts `json:"process"`
	Cgroup  CgroupFacts  `json:"cgroup"`
	Sockets SocketFacts  `json:"sockets"`
	// PageSize is that of the machine's pages of memory in bytes, in which tcp_mem
	// counts; 0 is taken as 4,096.
	PageSize int64 `json:"page_size"`
	// Tasks is how many tasks, threads of processes, the whole machine has.
	Tasks int64 `json:"tasks"`
	// FilesOpen is how many files the whole machine has open (fs.file-nr).
	FilesOpen int64 `json:"files_open"`
	// Caches are the sizes in bytes that one object takes of each of the
	// kernel's caches that a connection needs, by the cache's name, with what a
	// slab wastes: "TCP", "sock_inode_cache", "dentry", "filp", … A name that is
	// missing does not exist in this kernel. Empty where /proc/slabinfo can't be
	// read.
	Caches map[string]float64 `json:"caches,omitempty"`
	// Interfaces are those of the network namespace, the loopback among them,
	// 256 at most.
	Interfaces []Interface `json:"interfaces"`
	// Uring says why io_uring can't be used, "" if it can.
	Uring string `json:"uring,omitempty"`
	// Shards says why loops can't have descriptor tables of their own, "" if
	// they can.
	Shards string `json:"shards,omitempty"`
	// Unknown says what could not be read, and why.
	Unknown []string `json:"unknown,omitempty"`
}

// MachineFacts is what does not change while the machine runs.
type MachineFacts struct {
	// Kernel is the kernel's release, such as "6.18.4", CPUModel the name of the first
	// processor, "" where the kernel does not report it, CPUs how many are online.
	Kernel   string `json:"kernel"`
	CPUModel string `json:"cpu_model"`
	CPUs     int    `json:"cpus"`
}

// MemoryFacts are the machine's memory, in bytes.
type MemoryFacts struct {
	// Total is all of it, Free what nothing uses, FilePages pages of files that can be
	// dropped.
	Total     int64 `json:"total"`
	Free      int64 `json:"free"`
	FilePages int64 `json:"file_pages"`
}

// ProcessFacts are the limits of a process.
type ProcessFacts struct {
	PID int `json:"pid"`
	// User is its real user.
	User uint32 `json:"user"`
	// The limits of open descriptors, of locked memory (bytes), and of
	// processes and threads of this user; -1 is none. Programs written in Go
	// raise the soft limit of descriptors to the hard one when they start, and
	// processes that they start have what was there before.
	Nofile  Rlimit `json:"nofile"`
	Memlock Rlimit `json:"memlock"`
	Nproc   Rlimit `json:"nproc"`
	// Open is how many descriptors are open in the process's table; Tables how many
	// threads have a table of their own, as Myriad's loops can, and InTables how many
	// are open in these.
	Open     int `json:"open"`
	Tables   int `json:"tables,omitempty"`
	InTables int `json:"in_tables,omitempty"`
	// UserTasks is how many tasks its user has now: what Nproc counts.
	UserTasks int `json:"user_tasks"`
	// Root means that it may change the kernel's settings (CAP_SYS_ADMIN and
	// CAP_NET_ADMIN); Raise that it may raise hard limits (CAP_SYS_RESOURCE); Locks
	// that it may lock any memory (CAP_IPC_LOCK). In a user namespace that is not the
	// machine's first, as of a container without root, it may none of these.
	Root  bool `json:"root"`
	Raise bool `json:"raise"`
	Locks bool `json:"locks"`
	// GoMemoryLimit is GOMEMLIMIT in bytes, 0 for none. Only this very process's
	// is known.
	GoMemoryLimit int64 `json:"go_memory_limit"`
}

// Rlimit is a limit of a process; -1 is none.
type Rlimit struct {
	Soft int64 `json:"soft"`
	Hard int64 `json:"hard"`
}

// CgroupFacts are the limits of the control groups that the process is in: of
// each the one on the way up that leaves the least room.
type CgroupFacts struct {
	// Memory is in bytes; what is used is without pages of files.
	Memory CgroupLimit `json:"memory"`
	// Sockets is the limit of the memory of sockets alone (version 1's
	// memory.kmem.tcp.limit_in_bytes), in bytes.
	Sockets CgroupLimit `json:"sockets"`
	// Tasks are processes and threads.
	Tasks CgroupLimit `json:"tasks"`
}

// CgroupLimit is a limit of a control group: what it may have, 0 for no limit, and what it
// has; what sets it, such as "cgroup /a memory.max", and the path of that file.
type CgroupLimit struct {
	Max  int64  `json:"max"`
	Used int64  `json:"used"`
	From string `json:"from,omitempty"`
	File string `json:"file,omitempty"`
}

// SocketFacts are how the sockets of this network namespace are.
type SocketFacts struct {
	// Open, TimeWait and Orphans count TCP sockets (/proc/net/sockstat),
	// Orphans those of the whole machine.
	Open     int64 `json:"open"`
	TimeWait int64 `json:"time_wait"`
	Orphans  int64 `json:"orphans"`
	// Pages is the memory of TCP's buffers on the whole machine, in pages.
	Pages int64 `json:"pages"`
	// Tracked is how many connections the firewall follows here
	// (nf_conntrack_count); Tracking reports whether it does at all, which takes a rule
	// that needs it. It is false too while loopback is down, where that can't be tested.
	Tracked  int64 `json:"tracked"`
	Tracking bool  `json:"tracking"`
	// Ports are the ports from 1,024 on, and those of ip_local_port_range, on which
	// sockets listen, in ascending order. Sockets that are only bound are not reported.
	Ports []uint16 `json:"ports,omitempty"`
	// Queue is the fullest queue of connections that wait to be accepted, nil where
	// nobody listens.
	Queue *QueueFacts `json:"queue,omitempty"`
	// Counters are those of /proc/net/netstat that show that a wall was met
	// since the network namespace was made, as they are called there
	// (ListenOverflows, TCPMemoryPressures, …), and of the tracker of
	// connections with nf_conntrack_ in front: nf_conntrack_drop, …
	Counters map[string]int64 `json:"counters,omitempty"`
}

// QueueFacts is the queue of a listener: Waiting connections of the Most that it may
// have, and one more.
type QueueFacts struct {
	At      netip.AddrPort `json:"at"`
	Waiting int64          `json:"waiting"`
	Most    int64          `json:"most"`
}

// Interface is a network interface.
type Interface struct {
	Name     string         `json:"name"`
	Up       bool           `json:"up"`
	Loopback bool           `json:"loopback"`
	Addrs    []netip.Prefix `json:"addrs,omitempty"`
	// Receive and Send are how many queues it uses, 0 where that can't be seen:
	// /sys shows one network namespace only.
	Receive int `json:"receive"`
	Send    int `json:"send"`
}

package doctor

import (
	"net/netip"
	"time"
)

// Facts describes a machine: this one, another one, or one made up for a test. Facts that could not be read are zero
// and listed in Unknown.
type Facts struct {
	At      time.Time    `json:"at"`
	Machine MachineFacts `json:"machine"`
	Meminfo MemoryFacts  `json:"meminfo"`
	// Nodes is the number of NUMA nodes that have memory.
	Nodes int `json:"nodes"`
	// Sysctls contains kernel settings by name, such as "net.core.somaxconn". A value is the text of /proc/sys with
	// single spaces between fields. A missing setting does not exist on this machine, or is not visible in this network
	// namespace.
	Sysctls map[string]string `json:"sysctls"`
	// ReadOnly lists the settings that this process cannot write here, or cannot see in this network namespace.
	ReadOnly []string `json:"read_only,omitempty"`
	// Process describes the examined process. A server started by that process inherits its limits.
	Process ProcessFacts `json:"process"`
	Cgroup  CgroupFacts  `json:"cgroup"`
	Sockets SocketFacts  `json:"sockets"`
	// PageSize is the size of a memory page, the unit of tcp_mem, in bytes. 0 means 4,096.
	PageSize int64 `json:"page_size"`
	// Tasks is the number of threads of all processes on the machine.
	Tasks int64 `json:"tasks"`
	// FilesOpen is the number of open files on the machine (fs.file-nr).
	FilesOpen int64 `json:"files_open"`
	// Caches describes the kernel's object caches that a connection uses. The keys are names such as "TCP", "dentry"
	// and "filp"; the values are bytes per object, including slab waste. A missing cache does not exist in this kernel.
	// Caches is empty if /proc/slabinfo cannot be read.
	Caches map[string]float64 `json:"caches,omitempty"`
	// Interfaces lists the interfaces of the network namespace, including loopback. At most 256 are listed.
	Interfaces []Interface `json:"interfaces"`
	// Uring is the reason why io_uring is unavailable, or "" if it is available.
	Uring string `json:"uring,omitempty"`
	// Shards is the reason why event loops cannot have separate descriptor tables, or "" if they can.
	Shards string `json:"shards,omitempty"`
	// Unknown lists the facts that could not be read, with reasons.
	Unknown []string `json:"unknown,omitempty"`
}

// MachineFacts describes the kernel and the processors of a machine.
type MachineFacts struct {
	// Kernel is the kernel release, such as "6.18.4". CPUModel is the name of the first processor, or "" if the kernel
	// does not report a name. CPUs is the number of online processors.
	Kernel   string `json:"kernel"`
	CPUModel string `json:"cpu_model"`
	CPUs     int    `json:"cpus"`
}

// MemoryFacts describes the machine's memory in bytes.
type MemoryFacts struct {
	// Total is the installed memory. Free is unused. FilePages are cached file pages, which the kernel can drop.
	Total     int64 `json:"total"`
	Free      int64 `json:"free"`
	FilePages int64 `json:"file_pages"`
}

// ProcessFacts describes a process and its limits.
type ProcessFacts struct {
	PID  int    `json:"pid"`
	User uint32 `json:"user"`
	// Nofile limits open descriptors. Memlock limits locked bytes. Nproc limits the user's threads. -1 means no limit.
	// At startup, a Go program raises its soft limit of descriptors to the hard limit. Processes that it starts have
	// the original soft limit.
	Nofile  Rlimit `json:"nofile"`
	Memlock Rlimit `json:"memlock"`
	Nproc   Rlimit `json:"nproc"`
	// Open is the number of open descriptors in the process's table. Tables is the number of threads with a separate
	// table, as Myriad's loops can have. InTables is the number of open descriptors in those tables.
	Open      int `json:"open"`
	Tables    int `json:"tables,omitempty"`
	InTables  int `json:"in_tables,omitempty"`
	UserTasks int `json:"user_tasks"`
	// Root reports whether the process may change kernel settings (CAP_SYS_ADMIN and CAP_NET_ADMIN). Raise reports
	// whether it may raise hard limits (CAP_SYS_RESOURCE). Locks reports whether it may lock any amount of memory
	// (CAP_IPC_LOCK). All three are false outside the machine's first user namespace, such as in a rootless container.
	Root  bool `json:"root"`
	Raise bool `json:"raise"`
	Locks bool `json:"locks"`
	// GoMemoryLimit is GOMEMLIMIT in bytes, or 0 without a limit. It is known only for the calling process.
	GoMemoryLimit int64 `json:"go_memory_limit"`
}

// Rlimit is a process limit. -1 means no limit.
type Rlimit struct {
	Soft int64 `json:"soft"`
	Hard int64 `json:"hard"`
}

// CgroupFacts contains the limits of a process's control groups. If groups are nested, each limit is that of the group
// that has the least left of this resource.
type CgroupFacts struct {
	// Memory is in bytes. The used amount excludes file pages.
	Memory CgroupLimit `json:"memory"`
	// Sockets is the limit of socket memory alone, in bytes. Only cgroups of version 1 have such a limit.
	Sockets CgroupLimit `json:"sockets"`
	// Tasks limits the number of threads.
	Tasks CgroupLimit `json:"tasks"`
}

// CgroupLimit is a limit of a control group and its current usage. If there is no limit, Max is 0. From is the name of
// the limit, such as "cgroup /a memory.max". File is the path of the limit's file.
type CgroupLimit struct {
	Max  int64  `json:"max"`
	Used int64  `json:"used"`
	From string `json:"from,omitempty"`
	File string `json:"file,omitempty"`
}

// SocketFacts describes the sockets of the network namespace.
type SocketFacts struct {
	// Open and TimeWait count TCP sockets of the namespace, Orphans those of the whole machine.
	Open     int64 `json:"open"`
	TimeWait int64 `json:"time_wait"`
	Orphans  int64 `json:"orphans"`
	// Pages is the memory of all TCP buffers on the machine, in pages.
	Pages int64 `json:"pages"`
	// Tracked is the number of connections that the firewall tracks (nf_conntrack_count). Tracking reports whether
	// tracking is active, which requires a firewall rule that uses it. Tracking is also false while the loopback
	// interface is down, because Read needs that interface to find out.
	Tracked  int64 `json:"tracked"`
	Tracking bool  `json:"tracking"`
	// Ports contains listening ports in ascending order: all ports from 1,024 on, and all ports in ip_local_port_range.
	Ports []uint16 `json:"ports,omitempty"`
	// Queue describes the fullest accept queue. It is nil if no socket listens.
	Queue *QueueFacts `json:"queue,omitempty"`
	// Counters counts events in which a limit was reached since the network namespace was created: events of
	// /proc/net/netstat, such as ListenOverflows, and of connection tracking, such as nf_conntrack_drop.
	Counters map[string]int64 `json:"counters,omitempty"`
}

// QueueFacts describes the accept queue of a listener. Waiting is the number of waiting connections. Backlog is the
// limit of the listener; the kernel lets Backlog+1 connections wait.
type QueueFacts struct {
	At      netip.AddrPort `json:"at"`
	Waiting int64          `json:"waiting"`
	Backlog int64          `json:"most"`
}

type Interface struct {
	Name     string         `json:"name"`
	Up       bool           `json:"up"`
	Loopback bool           `json:"loopback"`
	Addrs    []netip.Prefix `json:"addrs,omitempty"`
	// Receive and Send are the numbers of queues in use. They are 0 if /sys describes another network namespace.
	Receive int `json:"receive"`
	Send    int `json:"send"`
}

package doctor

import (
	"net/netip"
	"time"
)

// Facts describes a machine. It is plain data, so a test or a report from another machine can fill it in. Facts
// that could not be read are zero and are listed in Unknown.
type Facts struct {
	At time.Time `json:"at"`
	// Machine contains the kernel release, processors and memory.
	Machine MachineFacts `json:"machine"`
	Meminfo MemoryFacts  `json:"meminfo"`
	// Nodes is the number of NUMA nodes that have memory.
	Nodes int `json:"nodes"`
	// Sysctls contains kernel settings by name, such as "net.core.somaxconn". A value is the text of /proc/sys
	// with single spaces between fields. A missing setting does not exist on this machine, or is not visible in
	// this network namespace.
	Sysctls map[string]string `json:"sysctls"`
	// ReadOnly lists the settings that this process cannot write here. Some settings apply to a network
	// namespace in which they are not visible. They are read in the machine's first namespace if that can be
	// entered, and are listed here.
	ReadOnly []string `json:"read_only,omitempty"`
	// Process describes the examined process. A server that it starts inherits its limits.
	Process ProcessFacts `json:"process"`
	Cgroup  CgroupFacts  `json:"cgroup"`
	Sockets SocketFacts  `json:"sockets"`
	// PageSize is the memory page size in bytes, the unit of tcp_mem. 0 means 4,096.
	PageSize int64 `json:"page_size"`
	// Tasks is the number of threads of all processes on the machine.
	Tasks int64 `json:"tasks"`
	// FilesOpen is the number of open files on the machine (fs.file-nr).
	FilesOpen int64 `json:"files_open"`
	// Caches contains the bytes per object, including slab waste, of the kernel caches that a connection uses.
	// The keys are cache names: "TCP", "sock_inode_cache", "dentry", "filp", … A missing cache does not exist
	// in this kernel. Caches is empty if /proc/slabinfo cannot be read.
	Caches map[string]float64 `json:"caches,omitempty"`
	// Interfaces contains at most 256 interfaces of the network namespace, including loopback.
	Interfaces []Interface `json:"interfaces"`
	// Uring is the reason why io_uring cannot be used, "" if it can.
	Uring string `json:"uring,omitempty"`
	// Shards is the reason why loops cannot have separate descriptor tables, "" if they can.
	Shards string `json:"shards,omitempty"`
	// Unknown lists the facts that could not be read, with reasons.
	Unknown []string `json:"unknown,omitempty"`
}

// MachineFacts contains facts that do not change while the machine runs.
type MachineFacts struct {
	// Kernel is the kernel release, such as "6.18.4". CPUModel is the name of the first processor, "" if the
	// kernel does not report it. CPUs is the number of online processors.
	Kernel   string `json:"kernel"`
	CPUModel string `json:"cpu_model"`
	CPUs     int    `json:"cpus"`
}

// MemoryFacts describes the machine's memory in bytes.
type MemoryFacts struct {
	// Total is the installed memory and Free the unused memory. FilePages is the size of file pages that can be
	// dropped.
	Total     int64 `json:"total"`
	Free      int64 `json:"free"`
	FilePages int64 `json:"file_pages"`
}

// ProcessFacts describes a process and its limits.
type ProcessFacts struct {
	PID int `json:"pid"`
	// User is the real user ID.
	User uint32 `json:"user"`
	// Nofile, Memlock and Nproc limit open descriptors, locked bytes, and the user's threads. -1 means no
	// limit. Go programs raise the soft limit of descriptors to the hard limit at startup. Processes that they
	// start get the original soft limit.
	Nofile  Rlimit `json:"nofile"`
	Memlock Rlimit `json:"memlock"`
	Nproc   Rlimit `json:"nproc"`
	// Open is the number of open descriptors in the process's table. Tables is the number of threads with a
	// separate table, as Myriad's loops can have. InTables is the number of open descriptors in those tables.
	Open     int `json:"open"`
	Tables   int `json:"tables,omitempty"`
	InTables int `json:"in_tables,omitempty"`
	// UserTasks is the user's current number of threads, which Nproc limits.
	UserTasks int `json:"user_tasks"`
	// Root reports whether the process may change kernel settings (CAP_SYS_ADMIN and CAP_NET_ADMIN). Raise
	// reports whether it may raise hard limits (CAP_SYS_RESOURCE). Locks reports whether it may lock any amount
	// of memory (CAP_IPC_LOCK). All three are false in any user namespace except the machine's first, for
	// example in a container without root.
	Root  bool `json:"root"`
	Raise bool `json:"raise"`
	Locks bool `json:"locks"`
	// GoMemoryLimit is GOMEMLIMIT in bytes, 0 for none. It is known only if the examined process is the calling
	// process.
	GoMemoryLimit int64 `json:"go_memory_limit"`
}

// Rlimit is a process limit. -1 means no limit.
type Rlimit struct {
	Soft int64 `json:"soft"`
	Hard int64 `json:"hard"`
}

// CgroupFacts contains the limits of the process's control groups. For each resource, it describes the group
// with the least available capacity, from the process's own group up to the root.
type CgroupFacts struct {
	// Memory is in bytes. The used part excludes file pages.
	Memory CgroupLimit `json:"memory"`
	// Sockets is the limit of socket memory alone, in bytes (memory.kmem.tcp.limit_in_bytes of version 1).
	Sockets CgroupLimit `json:"sockets"`
	// Tasks limits threads of processes.
	Tasks CgroupLimit `json:"tasks"`
}

// CgroupLimit is a limit of a control group, 0 for none, and the current usage. It also contains the name of
// the limit, such as "cgroup /a memory.max", and the path of its file.
type CgroupLimit struct {
	Max  int64  `json:"max"`
	Used int64  `json:"used"`
	From string `json:"from,omitempty"`
	File string `json:"file,omitempty"`
}

// SocketFacts describes the sockets of the network namespace.
type SocketFacts struct {
	// Open, TimeWait and Orphans count TCP sockets (/proc/net/sockstat). Orphans covers the whole machine.
	Open     int64 `json:"open"`
	TimeWait int64 `json:"time_wait"`
	Orphans  int64 `json:"orphans"`
	// Pages is the memory of TCP buffers on the whole machine, in pages.
	Pages int64 `json:"pages"`
	// Tracked is the number of connections that the firewall tracks (nf_conntrack_count). Tracking reports
	// whether tracking is active, which requires a firewall rule that uses it. Tracking is also false while
	// loopback is down, because the test needs loopback.
	Tracked  int64 `json:"tracked"`
	Tracking bool  `json:"tracking"`
	// Ports contains the listening ports in ascending order: those from 1,024 on, and those in
	// ip_local_port_range. Sockets that are bound but do not listen are not included.
	Ports []uint16 `json:"ports,omitempty"`
	// Queue describes the fullest accept queue. It is nil without listeners.
	Queue *QueueFacts `json:"queue,omitempty"`
	// Counters contains the counters of /proc/net/netstat that show that a wall has been reached since the
	// network namespace was created: ListenOverflows, TCPMemoryPressures, … It also contains connection
	// tracking counters, prefixed with nf_conntrack_, such as nf_conntrack_drop.
	Counters map[string]int64 `json:"counters,omitempty"`
}

// QueueFacts describes a listener's accept queue. Waiting is the number of waiting connections. The queue can
// hold Most connections and one more.
type QueueFacts struct {
	At      netip.AddrPort `json:"at"`
	Waiting int64          `json:"waiting"`
	Most    int64          `json:"most"`
}

type Interface struct {
	Name     string         `json:"name"`
	Up       bool           `json:"up"`
	Loopback bool           `json:"loopback"`
	Addrs    []netip.Prefix `json:"addrs,omitempty"`
	// Receive and Send are the numbers of queues in use. They are 0 if unknown, because /sys shows only one
	// network namespace.
	Receive int `json:"receive"`
	Send    int `json:"send"`
}

package doctor

import "slices"

// Read reads the machine as the process pid meets it, 0 for this one: its limits, its
// control groups, its network namespace. What can't be read is told in Facts.Unknown; it
// fails if there is no such process, and on a system other than Linux.
//
// For this process the network namespace is the calling thread's: a goroutine in a
// namespace of its own is to be locked to its thread. That of another process is
// entered on a thread that ends, which takes CAP_SYS_ADMIN. Facts.Uring and
// Facts.Shards are always what this process may do.
//
// Where the kernel could track connections, and has none, one datagram is sent from
// this machine to itself, to see whether it is tracked. Read takes some milliseconds,
// however many connections there are. It may be called from any goroutine at any time.
func Read(pid int) (*Facts, error) { return read(pid) }

// SysctlNames are the settings of the kernel that Read reads.
func SysctlNames() []string { return slices.Concat(sysctlNames, machineWide) }

// sysctlNames are in the order of the walls that they are of.
var sysctlNames = []string{
	// Descriptors.
	"fs.nr_open", "fs.file-max", "fs.epoll.max_user_watches",
	// Ports.
	"net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.ip_unprivileged_port_start",
	// Listening.
	"net.core.somaxconn", "net.ipv4.tcp_max_syn_backlog", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_abort_on_overflow",
	"net.ipv4.tcp_synack_retries", "net.ipv4.tcp_syn_retries",
	// Buffers.
	"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.core.rmem_max", "net.core.wmem_max", "net.core.rmem_default",
	"net.core.wmem_default", "net.core.optmem_max", "net.ipv4.tcp_notsent_lowat",
	// Ending.
	"net.ipv4.tcp_tw_reuse", "net.ipv4.tcp_tw_reuse_delay", "net.ipv4.tcp_max_tw_buckets", "net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes",
	// Finding connections.
	"net.ipv4.tcp_ehash_entries", "net.ipv4.tcp_child_ehash_entries",
	// Tracking.
	"net.netfilter.nf_conntrack_max", "net.nf_conntrack_max", "net.netfilter.nf_conntrack_buckets", "net.netfilter.nf_conntrack_count",
	"net.netfilter.nf_conntrack_tcp_timeout_established", "net.netfilter.nf_conntrack_tcp_timeout_time_wait",
	"net.netfilter.nf_conntrack_tcp_timeout_close", "net.netfilter.nf_conntrack_tcp_timeout_fin_wait",
	// Tasks, rings, memory.
	"kernel.threads-max", "kernel.pid_max", "kernel.io_uring_disabled", "kernel.io_uring_group",
	"vm.max_map_count", "vm.overcommit_memory", "vm.min_free_kbytes", "vm.swappiness",
}

// machineWide are shown in the first network namespace only, and hold for all.
var machineWide = []string{"net.ipv4.tcp_mem", "net.ipv4.tcp_max_orphans", "net.core.netdev_max_backlog"}

// cacheNames are the kernel's caches of objects of which a connection has one, or some:
// found by opening connections and looking at what grew.
var cacheNames = []string{
	"TCP", "TCPv6", "sock_inode_cache", "dentry", "filp", "lsm_inode_cache", "lsm_file_cache",
	// With epoll, and with io_uring.
	"eventpoll_epi", "eventpoll_pwq", "ep_head", "io_kiocb",
	// Of a client's port, of connections that begin, that end, that are tracked.
	"tcp_bind_bucket", "tcp_bind2_bucket", "request_sock_TCP", "request_sock_TCPv6", "tw_sock_TCP", "tw_sock_TCPv6", "nf_conntrack",
	// Of a message.
	"skbuff_head_cache", "skbuff_small_head",
}

// counterNames are the counters of /proc/net/netstat that tell of a wall.
var counterNames = []string{
	"ListenOverflows", "ListenDrops", "TCPReqQFullDoCookies", "TCPReqQFullDrop", "SyncookiesSent", "TCPBacklogDrop",
	"TCPMemoryPressures", "TCPMemoryPressuresChrono", "TCPAbortOnMemory", "PruneCalled", "RcvPruned", "TCPRcvQDrop",
	"TCPTimeWaitOverflow", "TCPSynRetrans",
}

// trackerNames are those of the tracker of connections.
var trackerNames = []string{"drop", "insert_failed", "early_drop"}

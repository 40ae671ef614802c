package doctor

// Read reads the machine as the process pid meets it, 0 for this one: its limits, its
// control groups, its network namespace. What can't be read is reported in Facts.Unknown; it
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

// cacheNames are the kernel's caches of objects of which a connection has one.
var cacheNames = []string{"TCP", "TCPv6", "sock_inode_cache", "dentry", "filp", "tcp_bind_bucket"}

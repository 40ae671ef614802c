package procfs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	prom "github.com/prometheus/procfs"
)

// Network are the TCP sockets and counters of a network namespace.
type Network struct {
	// Established, Open and TimeWait are TCP sockets of the network namespace: Open
	// are those that listen or are connected or on their way to that. Orphans, which
	// no process has any more, and TCPBuffers are of the whole machine.
	Established, Open, TimeWait, Orphans int64
	TCPBuffers                           int64
	// Counters are events since the network namespace was made, by the names of
	// /proc/net/netstat, such as ListenOverflows, and nf_conntrack_drop,
	// nf_conntrack_insert_failed, nf_conntrack_early_drop and softnet_dropped: those
	// that tell of a limit that was met. One that the kernel does not count is not there.
	Counters map[string]int64
}

// ReadTCPStateOfNamespace reads the network namespace of the calling thread. It takes some 0.5 ms,
// however many sockets there are.
func ReadTCPStateOfNamespace() (n Network, err error) {
	if _, err := procRoot(); err != nil {
		return n, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// /proc/net has the namespace of the process's first thread.
	thread, err := prom.NewFS("/proc/thread-self")
	if err != nil {
		return n, err
	}
	n.Counters = make(map[string]int64)
	err = errors.Join(n.readSocketCounts(thread), n.readEstablishedAndLimitCounters(), n.readPacketDrops(thread))
	return n, err
}

func (n *Network) readSocketCounts(thread prom.FS) error {
	four, err := thread.NetSockstat()
	if err != nil {
		return err
	}
	for _, p := range four.Protocols {
		if p.Protocol == "TCP" {
			n.Open, n.Orphans, n.TimeWait = int64(p.InUse), derefOrZero(p.Orphan), derefOrZero(p.TW)
			n.TCPBuffers = derefOrZero(p.Mem) * int64(os.Getpagesize())
		}
	}
	six, err := thread.NetSockstat6()
	if err != nil {
		return nilIfGone(err) // without IPv6
	}
	for _, p := range six.Protocols {
		if p.Protocol == "TCP6" {
			n.Open += int64(p.InUse)
		}
	}
	return nil
}

// limitCounters are those of /proc/net/netstat that show that a limit was met.
var limitCounters = []string{
	"ListenOverflows", "ListenDrops", "TCPReqQFullDoCookies", "TCPReqQFullDrop", "SyncookiesSent", "TCPBacklogDrop",
	"TCPMemoryPressures", "TCPMemoryPressuresChrono", "TCPAbortOnMemory", "PruneCalled", "RcvPruned", "TCPRcvQDrop",
	"TCPTimeWaitOverflow", "TCPSynRetrans",
}

// readEstablishedAndLimitCounters reads counters, and how many connections are established. Version 0.22 of
// prometheus/procfs does not fill in four of them, TCPAbortOnMemory among them.
func (n *Network) readEstablishedAndLimitCounters() error {
	tcp, err := readCounterLines("/proc/thread-self/net/snmp", "Tcp:")
	if err != nil {
		return err
	}
	n.Established = tcp["CurrEstab"]
	ext, err := readCounterLines("/proc/thread-self/net/netstat", "TcpExt:")
	for _, name := range limitCounters {
		if count, ok := ext[name]; ok {
			n.Counters[name] = count
		}
	}
	return err
}

// readCounterLines reads the two lines of a file that begin with a linePrefix, names and numbers:
// "Tcp: RtoMin CurrEstab" and "Tcp: 200 17".
func readCounterLines(file, linePrefix string) (map[string]int64, error) {
	text, err := readTrimmedFile(file)
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] != linePrefix:
		case names == nil:
			names = fields
		case len(fields) == len(names):
			found := make(map[string]int64, len(names))
			for i := 1; i < len(names); i++ {
				if found[names[i]], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
					return nil, fmt.Errorf("procfs: %s: %s: %w", file, names[i], err)
				}
			}
			return found, nil
		}
	}
	return nil, fmt.Errorf("procfs: %s has no two lines of %s", file, linePrefix)
}

// readPacketDrops reads packets that were dropped: before a processor took them from its
// backlog, or because the firewall could not follow their connection.
func (n *Network) readPacketDrops(thread prom.FS) error {
	processors, err := thread.NetSoftnetStat()
	if err != nil {
		return err
	}
	for _, p := range processors {
		n.Counters["softnet_dropped"] += int64(p.Dropped)
	}
	conntrack, err := thread.ConntrackStat()
	for _, p := range conntrack {
		n.Counters["nf_conntrack_insert_failed"] += int64(p.InsertFailed)
		n.Counters["nf_conntrack_drop"] += int64(p.Drop)
		n.Counters["nf_conntrack_early_drop"] += int64(p.EarlyDrop)
	}
	return nilIfGone(err) // without tracking there is no such file
}

// NetworkNamespaceFile returns the file by which the network namespace of a process, or for 0 of
// the calling thread, is entered, see setns(2).
func NetworkNamespaceFile(pid int) string {
	if pid == 0 {
		return "/proc/thread-self/ns/net"
	}
	return fmt.Sprintf("/proc/%d/ns/net", pid)
}

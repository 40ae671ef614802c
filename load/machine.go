package load

import (
	"strconv"

	"github.com/myriad-go/myriad/internal/procfs"
	"github.com/myriad-go/myriad/internal/sample"
)

// machine is what this machine's kernel has counted that tells of a wall, since it
// started or between two readings. What can't be read is 0. Reading takes some
// 0.4 ms, however many connections there are.
type machine struct {
	// overflows are connections that found a listener's queue full.
	overflows int64
	// pressures is how often TCP's memory went above the middle value of
	// net.ipv4.tcp_mem, aborts how many connections were ended for want of it.
	pressures, aborts int64
	// untracked are packets that were dropped because the firewall could not follow
	// their connection.
	untracked int64
}

// readMachine reads the counters of this network namespace.
func readMachine() machine {
	taken, _ := sample.Take(sample.Network) // what can't be read is 0
	c := taken.Machine.Counters
	return machine{
		overflows: c["ListenOverflows"], pressures: c["TCPMemoryPressures"], aborts: c["TCPAbortOnMemory"],
		untracked: c["nf_conntrack_drop"] + c["nf_conntrack_insert_failed"],
	}
}

// since is what has been counted after another reading.
func (m machine) since(before machine) machine {
	return machine{
		overflows: max(m.overflows-before.overflows, 0),
		pressures: max(m.pressures-before.pressures, 0),
		aborts:    max(m.aborts-before.aborts, 0),
		untracked: max(m.untracked-before.untracked, 0),
	}
}

// setting is a kernel's setting for people, "unknown" if it can't be read.
func setting(name string) string {
	value, err := procfs.ReadSysctl(name)
	if err != nil {
		return "unknown"
	}
	if n, err := strconv.ParseInt(value, 10, 64); err == nil {
		return group(n)
	}
	return value
}

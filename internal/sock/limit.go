package sock

import "fmt"

// ReservedDescriptors is the number of descriptors reserved for listeners, pollers, logs and files.
const ReservedDescriptors = 128

// FirstPrivateFD is the lowest number of a descriptor that a thread opens in its private descriptor table. See
// UnshareDescriptorTable.
const FirstPrivateFD = 512

const defaultMaxConns = 1 << 20

func DefaultMaxConnsForDescriptorLimit() int {
	soft, _, ok := DescriptorLimit()
	switch {
	case !ok || soft > defaultMaxConns+ReservedDescriptors:
		return defaultMaxConns
	case soft <= ReservedDescriptors:
		return 1
	}
	return int(soft - ReservedDescriptors)
}

// tableReserve is the number of descriptors in a private descriptor table that connections cannot use.
const tableReserve = 64

// PlanLoopsAndDescriptorTables returns how many event loops a process needs for conns connections. The number is
// between minLoops and maxLoops.
//
// If one descriptor table for all loops suffices, connsPerTable is 0. Otherwise, each loop needs its own descriptor
// table, and connsPerTable is the number of connections that fit into a table. If the connections do not fit into
// maxLoops tables, PlanLoopsAndDescriptorTables returns an error.
func PlanLoopsAndDescriptorTables(conns, minLoops, maxLoops int) (loops, connsPerTable int, err error) {
	if err = CheckDescriptorLimit(conns); err == nil {
		return minLoops, 0, nil
	}
	soft, _, _ := DescriptorLimit()
	if loops, connsPerTable = PlanFewestDescriptorTables(soft, conns, minLoops, maxLoops); loops == 0 {
		return 0, 0, err
	}
	return loops, connsPerTable, nil
}

// PlanFewestDescriptorTables returns the smallest number of loops that can hold conns connections if each loop has its
// own descriptor table with at most descriptorLimit descriptors. connsPerTable is the number of connections that fit
// into a table. If the connections do not fit into maxLoops tables, both results are 0.
func PlanFewestDescriptorTables(descriptorLimit uint64, conns, minLoops, maxLoops int) (loopsOrZero, connsPerTable int) {
	for loopsOrZero = minLoops; loopsOrZero <= maxLoops; loopsOrZero++ {
		if connsPerTable = descriptorTableCapacity(descriptorLimit, loopsOrZero); conns <= loopsOrZero*connsPerTable {
			return loopsOrZero, connsPerTable
		}
	}
	return 0, 0
}

// MaxConnsInDescriptorTables returns the largest number of connections for which PlanFewestDescriptorTables succeeds.
func MaxConnsInDescriptorTables(descriptorLimit uint64, minLoops, maxLoops int) (conns int) {
	for loops := minLoops; loops <= maxLoops; loops++ {
		conns = max(conns, loops*descriptorTableCapacity(descriptorLimit, loops))
	}
	return conns
}

func descriptorTableCapacity(descriptorLimit uint64, loops int) int {
	return max(int(min(descriptorLimit, defaultMaxConns))-FirstPrivateFD-tableReserve-2*loops, 0)
}

// CheckDescriptorLimit returns an error if the descriptor limit of this process is too low for conns connections. The
// error contains advice for the user.
func CheckDescriptorLimit(conns int) error {
	soft, hard, ok := DescriptorLimit()
	if !ok || uint64(conns)+ReservedDescriptors <= soft {
		return nil
	}
	need := conns + ReservedDescriptors
	return fmt.Errorf("%d connections need %d descriptors, and this process may open only %d (RLIMIT_NOFILE, soft %d, hard %d); "+
		"use at most %d connections, or raise the limit: `ulimit -n %d` in the shell that starts the process, LimitNOFILE=%d in the systemd unit, "+
		"or nofile in /etc/security/limits.conf", conns, need, soft, soft, hard, DefaultMaxConnsForDescriptorLimit(), need, need)
}

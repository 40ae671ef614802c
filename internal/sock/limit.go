package sock

import "fmt"

// Reserve is how many descriptors are kept for everything that is no
// connection: listeners, pollers, logs, files.
const Reserve = 128

// Guard is the lowest number of a descriptor that is opened in a private table,
// see PrivateTable.
const Guard = 512

// unlimited is the most connections where the system has no limit to read.
const unlimited = 1 << 20

// MaxConns is the most connections that the limit of descriptors leaves room
// for.
func MaxConns() int {
	soft, _, ok := DescriptorLimit()
	switch {
	case !ok || soft > unlimited+Reserve:
		return unlimited
	case soft <= Reserve:
		return 1
	}
	return int(soft - Reserve)
}

// shardReserve is how many descriptors of a private table are no connections,
// beside two for each loop: pollers, rings, files that a handler opens.
const shardReserve = 64

// Shards says how many loops hold so many connections: those that are wanted, in
// one descriptor table, or as many more as it takes when each has a table of its
// own with room for each connections. That is 0 with one table. It fails if most
// loops don't suffice.
func Shards(conns, wanted, most int) (loops, each int, err error) {
	if err = CheckDescriptors(conns); err == nil {
		return wanted, 0, nil
	}
	soft, _, _ := DescriptorLimit()
	if loops, each = Tables(soft, conns, wanted, most); loops == 0 {
		return 0, 0, err
	}
	return loops, each, nil
}

// Tables says how many loops, at least wanted and at most most, hold so many
// connections when each has a descriptor table of its own under that limit, and
// how many each has room for. Both are 0 if most loops don't suffice.
func Tables(limit uint64, conns, wanted, most int) (loops, each int) {
	for loops = wanted; loops <= most; loops++ {
		if each = tableRoom(limit, loops); conns <= loops*each {
			return loops, each
		}
	}
	return 0, 0
}

// TablesRoom is the most connections for which Tables finds loops.
func TablesRoom(limit uint64, wanted, most int) (conns int) {
	for loops := wanted; loops <= most; loops++ {
		conns = max(conns, loops*tableRoom(limit, loops))
	}
	return conns
}

// tableRoom is how many connections a table has room for when there are so many.
func tableRoom(limit uint64, loops int) int {
	return max(int(min(limit, unlimited))-Guard-shardReserve-2*loops, 0)
}

// CheckDescriptors says why this process can't hold so many connections and
// what to do, nil if it can.
func CheckDescriptors(conns int) error {
	soft, hard, ok := DescriptorLimit()
	if !ok || uint64(conns)+Reserve <= soft {
		return nil
	}
	need := conns + Reserve
	return fmt.Errorf("%d connections need %d descriptors, and this process may open %d (RLIMIT_NOFILE, soft %d, hard %d); "+
		"ask for at most %d, or raise the limit: `ulimit -n %d` in the shell that starts it, LimitNOFILE=%d in its systemd unit, "+
		"or nofile in /etc/security/limits.conf", conns, need, soft, soft, hard, MaxConns(), need, need)
}

package procfs

import (
	"fmt"
	"slices"
	"strings"

	prom "github.com/prometheus/procfs"
)

// Rlimit is a resource limit of a process, see getrlimit(2); -1 is none.
type Rlimit struct{ Soft, Hard int64 }

// Rlimits are limits of a process: Nofile is above the highest descriptor that can be
// opened in a table, Memlock the bytes of memory that can be locked, Nproc how many tasks
// there can be of the process's user.
type Rlimits struct{ Nofile, Memlock, Nproc Rlimit }

// ProcessRights are what the kernel lets a process do.
type ProcessRights struct {
	// User is its real user.
	User uint32
	// Capabilities are those in effect, a bit each by the numbers of
	// linux/capability.h.
	Capabilities uint64
	// First means that its user namespace is the machine's first one: in another, as
	// of a container without root, its capabilities are for what belongs to that.
	First bool
}

// Some capabilities, see capabilities(7).
const (
	CapNetAdmin    = 12
	CapIPCLock     = 14
	CapSysAdmin    = 21
	CapSysResource = 24
)

// HasInFirstUserNamespace reports whether all of the capabilities are in effect for the whole machine.
func (r ProcessRights) HasInFirstUserNamespace(capabilities ...int) bool {
	return r.First && !slices.ContainsFunc(capabilities, func(c int) bool { return r.Capabilities&(1<<c) == 0 })
}

// ReadRights reads /proc/PID/status and uid_map.
func ReadRights(pid int) (ProcessRights, error) {
	status, err := parseProcessFS(pid, prom.Proc.NewStatus)
	if err != nil {
		return ProcessRights{}, err
	}
	users, err := readTrimmedFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	if err != nil && !IsNotFoundOrExited(err) { // a kernel without user namespaces has none
		return ProcessRights{}, err
	}
	return ProcessRights{User: uint32(status.UIDs[0]), Capabilities: status.CapEff, First: err != nil || mapsAllUsersToThemselves(users)}, nil
}

// mapsAllUsersToThemselves reports whether /proc/PID/uid_map maps each user to itself, which only that of
// the first user namespace does unless somebody makes another so on purpose.
func mapsAllUsersToThemselves(uidMap string) bool {
	return slices.Equal(strings.Fields(uidMap), []string{"0", "0", "4294967295"})
}

package procfs

import (
	"fmt"
	"slices"
	"strings"

	prom "github.com/prometheus/procfs"
)

// Rlimit is a resource limit of a process; see getrlimit(2). -1 means no limit.
type Rlimit struct{ Soft, Hard int64 }

// Rlimits contains limits of a process. Nofile limits the open descriptors, Memlock the bytes of locked memory, and
// Nproc the tasks of the process's user.
type Rlimits struct{ Nofile, Memlock, Nproc Rlimit }

// ProcessRights describes the user and the privileges of a process.
type ProcessRights struct {
	User uint32
	// Capabilities is the set of effective capabilities. linux/capability.h defines the bit numbers.
	Capabilities uint64
	// First reports whether the process is in the machine's initial user namespace. In any other user namespace,
	// such as that of a rootless container, capabilities apply only to objects of the namespace.
	First bool
}

const (
	CapNetAdmin    = 12
	CapIPCLock     = 14
	CapSysAdmin    = 21
	CapSysResource = 24
)

// HasInFirstUserNamespace reports whether the process is in the machine's initial user namespace and has all the given
// capabilities, such as CapNetAdmin.
func (r ProcessRights) HasInFirstUserNamespace(capabilities ...int) bool {
	return r.First && !slices.ContainsFunc(capabilities, func(c int) bool { return r.Capabilities&(1<<c) == 0 })
}

func ReadRights(pid int) (ProcessRights, error) {
	status, err := parseProcessFS(pid, prom.Proc.NewStatus)
	if err != nil {
		return ProcessRights{}, err
	}
	users, err := readTrimmedFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	if err != nil && !IsNotFoundOrExited(err) { // without support for user namespaces, the file does not exist
		return ProcessRights{}, err
	}
	return ProcessRights{User: uint32(status.UIDs[0]), Capabilities: status.CapEff, First: err != nil || mapsAllUsersToThemselves(users)}, nil
}

// mapsAllUsersToThemselves reports whether a user ID map from /proc/PID/uid_map changes no user ID.
func mapsAllUsersToThemselves(uidMap string) bool {
	return slices.Equal(strings.Fields(uidMap), []string{"0", "0", "4294967295"})
}

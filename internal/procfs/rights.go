package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Rights are what the kernel lets a process do.
type Rights struct {
	// User is its real user.
	User uint32
	// Capabilities are those in effect, a bit each by the numbers of
	// linux/capability.h.
	Capabilities uint64
	// First says that its user namespace is the machine's first one: in another, as
	// of a container without root, its capabilities are for what belongs to that.
	First bool
	// Seccomp is 0 for no filter, 1 for strict, 2 for a filter.
	Seccomp int
}

// Some capabilities, see capabilities(7).
const (
	CapNetAdmin    = 12
	CapIPCLock     = 14
	CapSysAdmin    = 21
	CapSysResource = 24
)

// HasMachine says whether all of the capabilities are in effect for the whole machine.
func (r Rights) HasMachine(capabilities ...int) bool { return r.First && r.Has(capabilities...) }

// Has says whether all of the capabilities are in effect.
func (r Rights) Has(capabilities ...int) bool {
	for _, c := range capabilities {
		if r.Capabilities&(1<<c) == 0 {
			return false
		}
	}
	return true
}

// ReadRights reads /proc/PID/status and uid_map.
func ReadRights(pid int) (Rights, error) {
	b, err := readFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Rights{}, err
	}
	r, err := parseRights(b)
	if err != nil {
		return Rights{}, err
	}
	users, err := readFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	switch {
	case err == nil:
		r.First = mapsAll(users)
	case Gone(err): // a kernel without user namespaces
		r.First = true
	default:
		return Rights{}, err
	}
	return r, nil
}

// mapsAll says whether /proc/PID/uid_map maps each user to itself, which only that of
// the first user namespace does unless somebody makes another so on purpose.
func mapsAll(b []byte) bool {
	return slices.Equal(strings.Fields(string(b)), []string{"0", "0", "4294967295"})
}

// parseRights parses /proc/PID/status. It begins with the name of the process,
// which may look like anything, so it looks at what is behind that. A kernel
// without seccomp has no such line.
func parseRights(b []byte) (Rights, error) {
	if _, rest, ok := bytes.Cut(b, []byte("\n")); ok {
		b = rest
	}
	var r Rights
	var user, capabilities bool
	for line := range bytes.Lines(b) {
		name, value, _ := strings.Cut(string(line), ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		var err error
		var n uint64
		switch name {
		case "Uid":
			n, err = strconv.ParseUint(fields[0], 10, 32)
			r.User, user = uint32(n), true
		case "CapEff":
			r.Capabilities, err = strconv.ParseUint(fields[0], 16, 64)
			capabilities = true
		case "Seccomp":
			n, err = strconv.ParseUint(fields[0], 10, 8)
			r.Seccomp = int(n)
		}
		if err != nil {
			return Rights{}, fmt.Errorf("procfs: status: %s: %w", name, err)
		}
	}
	if !user || !capabilities {
		return Rights{}, errors.New("procfs: status: no lines Uid and CapEff")
	}
	return r, nil
}

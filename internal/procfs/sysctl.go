package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// SysctlPath is the file below /proc/sys of a setting of the kernel by its name, such
// as "net.core.somaxconn".
func SysctlPath(name string) string {
	return "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
}

// ReadSysctl reads a setting of the kernel, as it is for the network namespace of
// the calling thread. The fields of its value are separated by single spaces.
func ReadSysctl(name string) (string, error) {
	b, err := readFile(SysctlPath(name))
	if err != nil {
		return "", err
	}
	return parseSysctl(b), nil
}

// parseSysctl parses a file of /proc/sys: its fields, which the kernel separates by
// tabs.
func parseSysctl(b []byte) string { return strings.Join(strings.Fields(string(b)), " ") }

// Sysctls are settings of the kernel.
type Sysctls struct {
	// Values are the settings by name, of those that there are.
	Values map[string]string
	// ReadOnly are those of them that this process may not write.
	ReadOnly []string
	// Failed says of those that there are, but can't be read, why.
	Failed []error
}

// ReadSysctls reads settings by their names, see ReadSysctl. Each takes some 10 µs.
func ReadSysctls(names []string) Sysctls {
	s := Sysctls{Values: make(map[string]string, len(names))}
	for _, name := range names {
		value, err := ReadSysctl(name)
		switch {
		case err == nil:
			s.Values[name] = value
			if !writable(SysctlPath(name)) {
				s.ReadOnly = append(s.ReadOnly, name)
			}
		case !errors.Is(err, fs.ErrNotExist):
			s.Failed = append(s.Failed, fmt.Errorf("%s: %w", name, err))
		}
	}
	return s
}

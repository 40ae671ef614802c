// Package procfs reads what of /proc and /sys neither package sample nor
// github.com/prometheus/procfs has: who listens, descriptor tables of threads, groups of
// processes, settings of the kernel, capabilities, sizes of the kernel's objects.
//
// Sizes are bytes, times are durations. All functions are safe for concurrent use. On a
// system other than Linux they return ErrNotAvailable.
package procfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"

	prom "github.com/prometheus/procfs"
)

// ErrNotAvailable is what every reader returns on a system without /proc.
var ErrNotAvailable = errors.New("procfs: not available on " + runtime.GOOS)

// errEnough ends a walk over names.
var errEnough = errors.New("enough")

// Gone reports whether err means that the process has ended, or that there is no such
// file.
func Gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// ignoreGone is err, nil if it means that a thread or process has ended.
func ignoreGone(err error) error {
	if Gone(err) {
		return nil
	}
	return err
}

// mounted is /proc.
func mounted() (prom.FS, error) {
	if runtime.GOOS != "linux" {
		return prom.FS{}, ErrNotAvailable
	}
	return prom.NewDefaultFS()
}

// process is one of /proc.
func process(pid int) (prom.Proc, error) {
	root, err := mounted()
	if err != nil {
		return prom.Proc{}, err
	}
	return root.Proc(pid)
}

// maxFile bounds what is read of one file.
const maxFile = 8 << 20

// readFile returns the content of a file without the space around it.
func readFile(path string) (string, error) {
	if runtime.GOOS != "linux" {
		return "", ErrNotAvailable
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	return strings.TrimSpace(string(b)), err
}

// eachName calls do with each name in a directory, a batch of names in memory at a
// time, until do returns an error.
func eachName(dir string, do func(name string) error) error {
	if runtime.GOOS != "linux" {
		return ErrNotAvailable
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		for _, name := range names {
			if err := do(name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// sysctlPath is the file of a setting of the kernel.
func sysctlPath(name string) string {
	return "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
}

// ReadSysctl reads a setting of the kernel by its name, such as "net.core.somaxconn", as
// it is for the network namespace of the calling thread. The fields of its value are
// separated by single spaces.
func ReadSysctl(name string) (string, error) {
	text, err := readFile(sysctlPath(name))
	return strings.Join(strings.Fields(text), " "), err
}

// Sysctls are settings of the kernel.
type Sysctls struct {
	// Values are the settings by name, of those that there are.
	Values map[string]string
	// ReadOnly are those of them that this process may not write.
	ReadOnly []string
	// Failed says of those that there are, but can't be read, why.
	Failed []error
}

// ReadSysctls reads settings by their names. Each takes some 10 µs.
func ReadSysctls(names []string) Sysctls {
	s := Sysctls{Values: make(map[string]string, len(names))}
	for _, name := range names {
		value, err := ReadSysctl(name)
		switch {
		case err == nil:
			s.Values[name] = value
			if !writable(sysctlPath(name)) {
				s.ReadOnly = append(s.ReadOnly, name)
			}
		case !errors.Is(err, fs.ErrNotExist):
			s.Failed = append(s.Failed, fmt.Errorf("%s: %w", name, err))
		}
	}
	return s
}

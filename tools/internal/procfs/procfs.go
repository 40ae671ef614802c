// Package procfs is the only reader of /proc and /sys in the module tools, apart from control
// groups, which the library's internal/cgroup reads.
//
// It parses with github.com/prometheus/procfs and reads itself what that module lacks (hard
// limits, descriptor tables of threads, queues of interfaces, some counters of netstat), cuts
// off (settings after 128 bytes, paths of unix sockets at a space) or only reads as a whole
// (the descriptors of a process, of which there can be a million).
//
// Sizes are bytes, times are durations. All functions are safe for concurrent use. On a
// system other than Linux they return ErrNotAvailable.
package procfs

import (
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"

	prom "github.com/prometheus/procfs"
)

// ErrNotAvailable means that this system has no /proc as Linux has it.
var ErrNotAvailable = errors.New("procfs: not available on " + runtime.GOOS)

// IsNotFoundOrExited reports whether err means that the process has ended, or that there is no such
// file.
func IsNotFoundOrExited(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// nilIfGone returns err, or nil if it means that a thread or process has ended.
func nilIfGone(err error) error {
	if IsNotFoundOrExited(err) {
		return nil
	}
	return err
}

// procRoot returns /proc.
var procRoot = sync.OnceValues(func() (prom.FS, error) {
	root, err := prom.NewDefaultFS()
	if err != nil || runtime.GOOS != "linux" {
		return prom.FS{}, ErrNotAvailable
	}
	return root, nil
})

// parseProcFS calls a parser of /proc.
func parseProcFS[T any](parse func(prom.FS) (T, error)) (v T, err error) {
	root, err := procRoot()
	if err != nil {
		return v, err
	}
	return parse(root)
}

// parseProcessFS calls a parser of /proc/PID.
func parseProcessFS[T any](pid int, parse func(prom.Proc) (T, error)) (T, error) {
	return parseProcFS(func(root prom.FS) (v T, err error) {
		p, err := root.Proc(pid)
		if err != nil {
			return v, err
		}
		return parse(p)
	})
}

// maxFile bounds what is read of one file.
const maxFile = 8 << 20

// openFileOnLinux opens a file or directory.
func openFileOnLinux(path string) (*os.File, error) {
	if runtime.GOOS != "linux" {
		return nil, ErrNotAvailable
	}
	return os.Open(path)
}

// readTrimmedFile returns the content of a file without the space around it.
func readTrimmedFile(path string) (string, error) {
	f, err := openFileOnLinux(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	return strings.TrimSpace(string(b)), err
}

// dirEntryNames yields each name in a directory, with a batch of them in memory at a time, or
// an error as the last one.
func dirEntryNames(dir string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		d, err := openFileOnLinux(dir)
		if err != nil {
			yield("", err)
			return
		}
		defer d.Close()
		for {
			names, err := d.Readdirnames(1024)
			for _, name := range names {
				if !yield(name, nil) {
					return
				}
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					yield("", err)
				}
				return
			}
		}
	}
}

// sysctlPath returns the file of a setting of the kernel.
func sysctlPath(name string) string {
	return "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
}

// ReadSysctl reads a setting of the kernel by its name, such as "net.core.somaxconn", as
// it is for the network namespace of the calling thread. The fields of its value are
// separated by single spaces.
func ReadSysctl(name string) (string, error) {
	text, err := readTrimmedFile(sysctlPath(name))
	return strings.Join(strings.Fields(text), " "), err
}

// SysctlWritable reports whether this process may write a setting of the kernel.
func SysctlWritable(name string) bool { return isWritable(sysctlPath(name)) }

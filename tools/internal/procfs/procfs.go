// Package procfs reads /proc and /sys for all packages of the module tools. Only control groups are read elsewhere, by
// the library's internal/cgroup.
//
// The package parses with github.com/prometheus/procfs where possible. That module does not support hard limits,
// descriptor tables of threads, queues of interfaces and some counters of netstat. It truncates settings after 128
// bytes, and paths of unix sockets at a space. It also reads all descriptors of a process at once, even if there are a
// million.
//
// Sizes are in bytes, and times are durations. All functions are safe for concurrent use. On systems other than Linux
// they return ErrNotAvailable.
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

// ErrNotAvailable means that this system does not have the /proc of Linux.
var ErrNotAvailable = errors.New("procfs: not available on " + runtime.GOOS)

// IsNotFoundOrExited reports whether err means that a file does not exist or that a process has ended.
func IsNotFoundOrExited(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

func nilIfNotFoundOrExited(err error) error {
	if IsNotFoundOrExited(err) {
		return nil
	}
	return err
}

var procRoot = sync.OnceValues(func() (prom.FS, error) {
	root, err := prom.NewDefaultFS()
	if err != nil || runtime.GOOS != "linux" {
		return prom.FS{}, ErrNotAvailable
	}
	return root, nil
})

func parseProcFS[T any](parse func(prom.FS) (T, error)) (v T, err error) {
	root, err := procRoot()
	if err != nil {
		return v, err
	}
	return parse(root)
}

func parseProcessFS[T any](pid int, parse func(prom.Proc) (T, error)) (T, error) {
	return parseProcFS(func(root prom.FS) (v T, err error) {
		p, err := root.Proc(pid)
		if err != nil {
			return v, err
		}
		return parse(p)
	})
}

const maxFile = 8 << 20

func openFileOnLinux(path string) (*os.File, error) {
	if runtime.GOOS != "linux" {
		return nil, ErrNotAvailable
	}
	return os.Open(path)
}

func readTrimmedFile(path string) (string, error) {
	f, err := openFileOnLinux(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	return strings.TrimSpace(string(b)), err
}

// dirEntryNames iterates over the names in a directory. If reading fails, it yields the error last, with an empty name.
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

func sysctlPath(name string) string {
	return "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
}

// ReadSysctl returns the value of a kernel setting such as "net.core.somaxconn". Network settings are those of the
// calling thread's network namespace. Single spaces separate the fields of a value.
func ReadSysctl(name string) (string, error) {
	text, err := readTrimmedFile(sysctlPath(name))
	return strings.Join(strings.Fields(text), " "), err
}

// SysctlWritable reports whether this process may change a kernel setting.
func SysctlWritable(name string) bool { return isWritable(sysctlPath(name)) }

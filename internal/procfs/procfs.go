// Package procfs reads what of /proc and /sys neither package sample nor
// github.com/prometheus/procfs has: who listens, descriptor tables of threads, groups of
// processes, settings of the kernel, rights, sizes of the kernel's objects.
//
// Sizes are bytes, times are durations. All functions are safe for concurrent use. On a
// system other than Linux they return ErrNotAvailable.
package procfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"runtime"
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

// ignoreGone is err, nil if it means that a thread has ended.
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

// readFile returns the content of a file, of at most maxFile bytes.
func readFile(path string) ([]byte, error) {
	if runtime.GOOS != "linux" {
		return nil, ErrNotAvailable
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile))
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

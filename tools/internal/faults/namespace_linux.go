package faults

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/tools/internal/procfs"
)

// NewNamespace makes one.
func NewNamespace() (n *Namespace, err error) {
	sock.RunOnNewThread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("faults: a network namespace takes root: unshare: %w", err)
			return
		}
		var file *os.File
		if file, err = os.Open(procfs.NetworkFile(0)); err != nil {
			return
		}
		n = &Namespace{file: file}
		if err = raise("lo"); err != nil {
			err = fmt.Errorf("faults: network interface lo: %w", err)
		}
	})
	return n, err
}

// Do calls f on a thread that is in the network. What f opens, and the processes
// that it starts, are in it too; not what other goroutines do for f.
func (n *Namespace) Do(f func() error) (err error) {
	sock.RunOnNewThread(func() {
		if err = unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("faults: setns: %w", err)
			return
		}
		err = f()
	})
	return err
}

// raise sets an interface up.
func raise(name string) error {
	control, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(control)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(control, unix.SIOCSIFFLAGS, req)
}

// OpenNamespace takes one that is there, by the path of its file.
func OpenNamespace(path string) (*Namespace, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &Namespace{file: file}, nil
}

package faults

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/tools/internal/procfs"
)

// Namespace is a network namespace. A new one contains only a loopback interface.
type Namespace struct{ file *os.File }

// NewNamespace creates a network namespace, which needs root.
func NewNamespace() (n *Namespace, err error) {
	sock.RunOnNewThread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("faults: creating a network namespace needs root: unshare: %w", err)
			return
		}
		var file *os.File
		if file, err = os.Open(procfs.NetworkNamespaceFile(0)); err != nil {
			return
		}
		n = &Namespace{file: file}
		if err = setInterfaceUp("lo"); err != nil {
			err = fmt.Errorf("faults: network interface lo: %w", err)
		}
	})
	return n, err
}

// RunInside calls f on a thread inside the namespace. Sockets that f opens and processes that f starts are inside, too.
// Goroutines that f starts are outside.
func (n *Namespace) RunInside(f func() error) (err error) {
	sock.RunOnNewThread(func() {
		if err = unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("faults: setns: %w", err)
			return
		}
		err = f()
	})
	return err
}

// Close releases the namespace. The namespace exists until its last socket and process have ended.
func (n *Namespace) Close() error { return n.file.Close() }

func setInterfaceUp(name string) error {
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

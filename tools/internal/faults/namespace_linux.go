package faults

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/tools/internal/procfs"
)

// NewNamespace makes one.
func NewNamespace() (n *Namespace, err error) {
	sock.OwnThread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("faults: a network namespace takes root: unshare: %w", err)
			return
		}
		var file *os.File
		if file, err = os.Open(procfs.NetworkFile(0)); err != nil {
			return
		}
		n = &Namespace{file: file}
		err = configure("lo", func(c int) error { return raise(c, "lo") })
	})
	return n, err
}

// Do calls f on a thread that is in the network. What f opens, and the processes
// that it starts, are in it too; not what other goroutines do for f.
func (n *Namespace) Do(f func() error) (err error) {
	sock.OwnThread(func() {
		if err = unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("faults: setns: %w", err)
			return
		}
		err = f()
	})
	return err
}

// configure calls f with a socket that takes requests for interfaces.
func configure(name string, f func(control int) error) error {
	control, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(control)
		err = f(control)
	}
	if err != nil {
		return fmt.Errorf("faults: network interface %s: %w", name, err)
	}
	return nil
}

// raise sets an interface up.
func raise(control int, name string) error {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(control, unix.SIOCSIFFLAGS, req)
}

// address gives an interface an address of a network of 256.
func address(control int, name string, ip net.IP) error {
	for _, set := range []struct {
		request uint
		ip      net.IP
	}{{unix.SIOCSIFADDR, ip}, {unix.SIOCSIFNETMASK, net.IPv4(255, 255, 255, 0)}} {
		req, err := unix.NewIfreq(name)
		if err == nil {
			err = req.SetInet4Addr(set.ip.To4())
		}
		if err == nil {
			err = unix.IoctlIfreq(control, set.request, req)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tunnel makes an interface whose packets are read from and written to a file.
func tunnel(name string, ip net.IP) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("faults: /dev/net/tun: %w", err)
	}
	err = configure(name, func(control int) error {
		req, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
			return err
		}
		if err := address(control, name, ip); err != nil {
			return err
		}
		return raise(control, name)
	})
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// OpenNamespace takes one that is there, by the path of its file.
func OpenNamespace(path string) (*Namespace, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &Namespace{file: file}, nil
}

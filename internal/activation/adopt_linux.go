package activation

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// adopt makes listeners of the descriptors with these names. All are looked at
// before one is touched: variables that are wrong would have it take what belongs
// to others.
func adopt(names []string) ([]Named, error) {
	for i, name := range names {
		if err := check(firstFD + i); err != nil {
			return nil, fmt.Errorf("descriptor %d (%.60q) %w", firstFD+i, name, err)
		}
	}
	for i := range names {
		syscall.CloseOnExec(firstFD + i)
	}
	var all []Named
	for i, name := range names {
		f := os.NewFile(uintptr(firstFD+i), name)
		l, err := net.FileListener(f) // on a descriptor of its own
		f.Close()
		if err != nil {
			closeAll(all)
			return nil, fmt.Errorf("descriptor %d (%.60q) can't be taken: %w", firstFD+i, name, err)
		}
		all = append(all, Named{name, l})
	}
	return all, nil
}

func closeAll(all []Named) {
	for _, l := range all {
		l.Close()
	}
}

// check says what a descriptor is if it is no listening stream socket.
func check(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	switch {
	case errors.Is(err, unix.EBADF):
		return errors.New("is not open; expected a socket that listens")
	case errors.Is(err, unix.ENOTSOCK):
		return errors.New("is no socket; expected one that listens")
	case err != nil:
		return fmt.Errorf("can't be asked what it is: %w", err)
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return fmt.Errorf("can't be asked what it is: %w", err)
	}
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return fmt.Errorf("can't be asked what it is: %w", err)
	}
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	switch {
	case err != nil:
		return fmt.Errorf("can't be asked what it is: %w", err)
	case !isStream(domain, kind, protocol):
		return fmt.Errorf("is a socket of family %d, type %d, protocol %d; expected TCP or a unix stream socket (ListenStream= in the .socket unit)",
			domain, kind, protocol)
	case listens == 0:
		return errors.New("is a socket that does not listen, such as a connection; expected one that does (Accept=no in the .socket unit)")
	}
	return nil
}

func isStream(domain, kind, protocol int) bool {
	if kind != unix.SOCK_STREAM {
		return false
	}
	switch domain {
	case unix.AF_INET, unix.AF_INET6:
		return protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_MPTCP
	}
	return domain == unix.AF_UNIX
}

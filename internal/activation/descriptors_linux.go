package activation

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// adoptListeningSocketsInOrder returns one file for each name, with the descriptors firstFD, firstFD+1 and so on. It
// fails if one of these descriptors is not a listening socket.
func adoptListeningSocketsInOrder(names []string) (files []*os.File, err error) {
	for i, name := range names {
		if err := checkListeningSocket(firstFD + i); err != nil {
			return nil, fmt.Errorf("descriptor %d (%.60q) %w", firstFD+i, name, err)
		}
	}
	for i, name := range names {
		syscall.CloseOnExec(firstFD + i)
		files = append(files, os.NewFile(uintptr(firstFD+i), name))
	}
	return files, nil
}

func checkListeningSocket(fd int) error {
	var found [4]int
	for i, option := range []int{unix.SO_DOMAIN, unix.SO_TYPE, unix.SO_PROTOCOL, unix.SO_ACCEPTCONN} {
		value, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
		switch {
		case errors.Is(err, unix.EBADF):
			return errors.New("is not open; expected a listening socket")
		case errors.Is(err, unix.ENOTSOCK):
			return errors.New("is not a socket; expected a listening socket")
		case err != nil:
			return fmt.Errorf("cannot be inspected: %w", err)
		}
		found[i] = value
	}
	switch domain, kind, protocol, listens := found[0], found[1], found[2], found[3]; {
	case !isTCPOrUnixStream(domain, kind, protocol):
		return fmt.Errorf("is a socket of family %d, type %d, protocol %d; expected TCP or a unix stream socket (ListenStream= in the .socket unit)",
			domain, kind, protocol)
	case listens == 0:
		return errors.New("is a socket that does not listen, such as a connection; expected a listening socket (Accept=no in the .socket unit)")
	}
	return nil
}

func isTCPOrUnixStream(domain, kind, protocol int) bool {
	switch domain {
	case unix.AF_INET, unix.AF_INET6:
		return kind == unix.SOCK_STREAM && (protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_MPTCP)
	}
	return kind == unix.SOCK_STREAM && domain == unix.AF_UNIX
}

func formatMonotonicUsecField() string {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // never fails
	return fmt.Sprintf("\nMONOTONIC_USEC=%d", now.Nano()/1000)
}

package sock

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
)

// maxUnixPath is the maximum length of a unix socket path in bytes.
const maxUnixPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// ListenUnixReplacingStale listens on a unix stream socket at path. If path contains the socket of a program that no
// longer runs, it first removes this socket. On Linux, a path that begins with @ is an abstract name without a file. On
// Windows, it is an error if a file exists at path.
//
// If another program may still be listening at path, or if the file at path is not a socket, the error wraps
// syscall.EADDRINUSE. If two programs start at the same path simultaneously, either of them may remove the other's
// socket.
//
// Closing the returned listener removes the file, unless SetUnlinkOnClose(false) was called. Closing other descriptors
// of the socket does not remove the file.
func ListenUnixReplacingStale(path string) (*net.UnixListener, error) {
	if err := checkUnixPath(path); err != nil {
		return nil, err
	}
	addr := &net.UnixAddr{Name: path, Net: "unix"}
	l, err := net.ListenUnix("unix", addr)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	if path[0] == '@' { // an abstract name disappears with its socket, so a socket still uses it
		return nil, addrInUseError(path, "another socket uses this name; choose a free one")
	}
	if err := removeSocketIfStale(addr); err != nil {
		return nil, err
	}
	return net.ListenUnix("unix", addr)
}

func checkUnixPath(path string) error {
	switch {
	case path == "" || path == "@":
		return fmt.Errorf("path of a unix socket is %q; expected a path such as /run/myriad.sock, or on Linux @myriad", path)
	case len(path) > maxUnixPath:
		return fmt.Errorf("path of a unix socket has %d bytes (%.60q...); expected at most %d: choose a shorter path, such as in /run",
			len(path), path, maxUnixPath)
	case strings.Contains(path, "\x00"):
		return fmt.Errorf("path of a unix socket is %q; expected a path without a zero byte", path)
	case path[0] == '@' && runtime.GOOS != "linux":
		return fmt.Errorf("path of a unix socket is %q, an abstract name, which needs Linux; expected a path, such as ./%s for a file with this name", path, path)
	}
	return nil
}

func removeSocketIfStale(addr *net.UnixAddr) error {
	info, err := os.Lstat(addr.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return addrInUseError(addr.Name, "cannot inspect the file there; choose another path: "+err.Error())
	case info.Mode()&fs.ModeSocket == 0:
		return addrInUseError(addr.Name, "the path is not a socket but "+cmp.Or(fileKindNames[info.Mode().Type()], info.Mode().String())+
			"; choose another path, or remove it")
	}
	c, err := net.DialUnix("unix", nil, addr)
	switch {
	case err == nil:
		c.Close()
		return addrInUseError(addr.Name, "another program listens there; stop it, or choose another path")
	case errors.Is(err, syscall.ENOENT):
		return nil
	case !errors.Is(err, syscall.ECONNREFUSED):
		return addrInUseError(addr.Name, "cannot determine whether a program listens on the socket there; choose another path: "+err.Error())
	}
	if err := os.Remove(addr.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return addrInUseError(addr.Name, "the stale socket there cannot be removed; remove it, or choose another path: "+err.Error())
	}
	return nil
}

func addrInUseError(path, reason string) error {
	return fmt.Errorf("listen unix %s: %w: %s", path, syscall.EADDRINUSE, reason)
}

var fileKindNames = map[fs.FileMode]string{
	0: "a regular file", fs.ModeDir: "a directory", fs.ModeSymlink: "a symbolic link", fs.ModeNamedPipe: "a named pipe",
}

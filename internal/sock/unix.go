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

// maxUnixPath is the most bytes that the path of a unix socket has: sun_path,
// less the zero at its end.
const maxUnixPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// ListenUnix listens on a unix stream socket at path, or on Linux at an abstract
// name, written with @ in front, which has no file.
//
// A socket at path on which nobody listens any more, as a process leaves it that
// was killed, is removed first. One that somebody listens on, or may listen on as
// far as can be seen, is an error that wraps syscall.EADDRINUSE; so is a file of
// another kind, a symbolic link too. Neither is removed. Two programs that start
// at the same path at one moment can't tell a socket that is left from one on
// which the other is just about to listen: one of them may remove the other's. On
// Windows nothing is removed: there each file at path is an error.
//
// Closing the listener removes the file. That holds for this *net.UnixListener
// alone, not for further descriptors of its socket, such as from its File
// method or passed to worker processes, where net.FileListener leaves the file: a
// supervisor keeps the listener and removes the file by closing it at the end,
// when workers have stopped accepting. Unix sockets have no SO_REUSEPORT: all
// workers accept from this one socket. Whoever closes the listener earlier, to go
// on with another descriptor, calls SetUnlinkOnClose(false) first.
func ListenUnix(path string) (*net.UnixListener, error) {
	if err := checkUnixPath(path); err != nil {
		return nil, err
	}
	addr := &net.UnixAddr{Name: path, Net: "unix"}
	l, err := net.ListenUnix("unix", addr)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	if path[0] == '@' { // gone with its listener, so there is one
		return nil, inUse(path, "another socket has this name; expected one that is free")
	}
	if err := removeStale(addr); err != nil {
		return nil, err
	}
	return net.ListenUnix("unix", addr)
}

func checkUnixPath(path string) error {
	switch {
	case path == "" || path == "@":
		return fmt.Errorf("path of a unix socket is %q; expected one such as /run/myriad.sock, or on Linux @myriad", path)
	case len(path) > maxUnixPath:
		return fmt.Errorf("path of a unix socket has %d bytes (%.60q...); expected at most %d: take a shorter one, such as in /run",
			len(path), path, maxUnixPath)
	case strings.Contains(path, "\x00"):
		return fmt.Errorf("path of a unix socket is %q; expected one without a zero byte", path)
	case path[0] == '@' && runtime.GOOS != "linux":
		return fmt.Errorf("path of a unix socket is %q; abstract names need Linux, expected a path (./%s for a file of this name)", path, path)
	}
	return nil
}

// removeStale removes the socket at a path if nobody listens on it.
func removeStale(addr *net.UnixAddr) error {
	info, err := os.Lstat(addr.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return inUse(addr.Name, "what is there can't be looked at: "+err.Error())
	case info.Mode()&fs.ModeSocket == 0:
		return inUse(addr.Name, "a file of another kind is there ("+cmp.Or(kinds[info.Mode().Type()], info.Mode().String())+
			"); expected nothing or a socket: take another path, or remove it")
	}
	c, err := net.DialUnix("unix", nil, addr)
	switch {
	case err == nil:
		c.Close()
		return inUse(addr.Name, "another program listens there; end it, or take another path")
	case errors.Is(err, syscall.ENOENT):
		return nil
	case !errors.Is(err, syscall.ECONNREFUSED):
		return inUse(addr.Name, "a socket is there, and whether somebody listens can't be found out: "+err.Error())
	}
	if err := os.Remove(addr.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return inUse(addr.Name, "nobody listens on the socket there any more, but it can't be removed: "+err.Error())
	}
	return nil
}

// inUse is an error that wraps EADDRINUSE.
func inUse(path, why string) error {
	return fmt.Errorf("listen unix %s: %w: %s", path, syscall.EADDRINUSE, why)
}

var kinds = map[fs.FileMode]string{
	0: "a regular file", fs.ModeDir: "a directory", fs.ModeSymlink: "a symbolic link", fs.ModeNamedPipe: "a named pipe",
}

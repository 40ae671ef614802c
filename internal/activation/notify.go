package activation

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"
)

const (
	// maxState is the most bytes of a state. systemd does not read more.
	maxState = 4096
	// maxSocket is the most bytes of the socket's name.
	maxSocket = len(syscall.RawSockaddrUnix{}.Path) - 1
	// notifyTimeout bounds how long Notify waits for room with a manager
	// that does not read.
	notifyTimeout = 5 * time.Second
)

// ReloadingState is the state of a program that takes up a new configuration, or is about to be
// another one, until READY=1 (Type=notify-reload).
func ReloadingState() string { return "RELOADING=1" + formatMonotonicTime() }

// Notify tells the service manager a state, such as "READY=1" when the program
// serves, "STOPPING=1" when it ends, "RELOADING=1", "WATCHDOG=1" or "STATUS=12
// connections"; several in one are separated by "\n", at most 4,096 bytes in all.
// NOTIFY_SOCKET is its socket: a path, or on Linux an abstract name with @ in front.
// Without it sent is false and err nil. That a state is sent does not mean that it was
// read. It waits at most 5 s.
func Notify(state string) (sent bool, err error) {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return false, nil
	}
	if err := sendState(socket, state, notifyTimeout); err != nil {
		return false, fmt.Errorf("notifying the service manager: %w", err)
	}
	return true, nil
}

func sendState(socket, state string, timeout time.Duration) error {
	switch {
	case state == "":
		return errors.New(`state is empty; expected one such as "READY=1"`)
	case len(state) > maxState:
		return fmt.Errorf("state has %d bytes; expected at most %d", len(state), maxState)
	case socket[0] != '/' && (socket[0] != '@' || runtime.GOOS != "linux" || len(socket) == 1):
		return fmt.Errorf("NOTIFY_SOCKET is %.60q; expected an absolute path, or on Linux a name that begins with @", socket)
	case len(socket) > maxSocket:
		return fmt.Errorf("NOTIFY_SOCKET has %d bytes (%.60q...); expected at most %d", len(socket), socket, maxSocket)
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	_, err = c.Write([]byte(state))
	return err
}

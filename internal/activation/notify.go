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
	// maxState is the maximum length of a state, in bytes.
	maxState      = 4096
	maxSocket     = len(syscall.RawSockaddrUnix{}.Path) - 1
	notifyTimeout = 5 * time.Second
)

// ReloadingState returns the state to pass to Notify before a reload or upgrade, if the unit has Type=notify-reload.
// After the reload or upgrade, pass READY=1 to Notify.
func ReloadingState() string { return "RELOADING=1" + formatMonotonicUsecField() }

// Notify sends a state to the service manager, such as "READY=1", "STOPPING=1", "RELOADING=1", "WATCHDOG=1" or
// "STATUS=12 connections". Separate several states by "\n". The limit is 4,096 bytes. Notify waits at most 5 s to send
// the state, and does not wait until the state has been read.
//
// The variable NOTIFY_SOCKET contains the path of the manager's socket. On Linux, it may also be an abstract name with
// a leading @. If the variable is not set, sent is false and err is nil.
func Notify(state string) (sent bool, err error) {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return false, nil
	}
	if err := validateAndSendState(socket, state, notifyTimeout); err != nil {
		return false, fmt.Errorf("notify the service manager: %w", err)
	}
	return true, nil
}

func validateAndSendState(socket, state string, timeout time.Duration) error {
	switch {
	case state == "":
		return errors.New(`state is empty; expected one such as "READY=1"`)
	case len(state) > maxState:
		return fmt.Errorf("state has %d bytes; expected at most %d", len(state), maxState)
	case socket[0] != '/' && (socket[0] != '@' || runtime.GOOS != "linux" || len(socket) == 1):
		return fmt.Errorf("NOTIFY_SOCKET is %.60q; expected an absolute path, or on Linux a name with a leading @", socket)
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

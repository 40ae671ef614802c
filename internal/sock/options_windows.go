package sock

import "syscall"

// setSocketOption sets an option of the level SOL_SOCKET.
func setSocketOption(fd uintptr, name, value int) error {
	return syscall.SetsockoptInt(syscall.Handle(fd), syscall.SOL_SOCKET, name, value)
}

// resetOnClose makes the close of a socket send a reset.
func resetOnClose(fd uintptr) error {
	return syscall.SetsockoptLinger(syscall.Handle(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
}

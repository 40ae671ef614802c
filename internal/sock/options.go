package sock

import (
	"errors"
	"strings"
	"syscall"
)

// Options are those of sockets that connect, or that are accepted.
type Options struct {
	// SendBuffer and ReceiveBuffer are SO_SNDBUF and SO_RCVBUF, in bytes; 0
	// leaves them to the kernel. They are set before the connection is made,
	// when the receive buffer decides on the window's scale.
	SendBuffer, ReceiveBuffer int
	// Unsent is TCP_NOTSENT_LOWAT, in bytes: with more than that not sent yet, the
	// kernel takes no more output. 0 leaves it to the kernel.
	Unsent int
	// Delay leaves TCP_NODELAY off.
	Delay bool
	// Reset has a TCP connection end with a reset when its socket is closed,
	// also by the end of the process.
	Reset bool
}

// set sets those that are set before a socket connects.
func (o Options) set(fd uintptr, tcp bool) error {
	err := errors.Join(setBuffer(fd, syscall.SO_SNDBUF, o.SendBuffer), setBuffer(fd, syscall.SO_RCVBUF, o.ReceiveBuffer))
	if err == nil && tcp && o.Unsent > 0 {
		err = setUnsent(fd, o.Unsent)
	}
	if err == nil && tcp && o.Reset {
		err = resetOnClose(fd)
	}
	return err
}

func setBuffer(fd uintptr, name, size int) error {
	if size == 0 {
		return nil
	}
	return setSocketOption(fd, name, size)
}

// Control is for net.Dialer.Control: it sets all but Delay.
func (o Options) Control(network, _ string, raw syscall.RawConn) error {
	var err error
	if e := raw.Control(func(fd uintptr) { err = o.set(fd, strings.HasPrefix(network, "tcp")) }); e != nil {
		return e
	}
	return err
}

package upgrade

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
)

// controlSocket is one end of a socket pair between two processes. A message consists of its kind, a space, and JSON.
type controlSocket struct {
	file *os.File
}

func inheritControlSocket(fd int, name string) (c controlSocket, err error) {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err == nil && kind != unix.SOCK_SEQPACKET {
		err = unix.EPROTOTYPE
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return c, err
	}
	return controlSocket{os.NewFile(uintptr(fd), name)}, nil
}

func (c *controlSocket) sendMessage(kind string, payload any, files ...*os.File) error {
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	for len(fds) > sock.MaxFDsPerMessage {
		if err := c.writeMessage([]byte(kind), fds[:sock.MaxFDsPerMessage]); err != nil {
			return err
		}
		fds = fds[sock.MaxFDsPerMessage:]
	}
	p, err := json.Marshal(payload)
	if err != nil {
		return err
	}
	return c.writeMessage(append([]byte(kind+" "), p...), fds)
}

func (c *controlSocket) writeMessage(p []byte, fds []int) error {
	if len(p) > sock.MaxFDMessageSize {
		return fmt.Errorf("upgrade message has %d bytes; expected at most %d", len(p), sock.MaxFDMessageSize)
	}
	raw, err := c.file.SyscallConn()
	if err != nil {
		return err
	}
	errno := syscall.Errno(0)
	if err := raw.Write(func(fd uintptr) bool {
		errno = sock.SendFDs(int32(fd), p, fds)
		return errno != syscall.EAGAIN
	}); err != nil {
		return err
	}
	if errno != 0 {
		return errno
	}
	return nil
}

func (c *controlSocket) readMessage() (kind string, payload []byte, fds []int32, err error) {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return "", nil, nil, err
	}
	p, n, errno := make([]byte, sock.MaxFDMessageSize), 0, syscall.Errno(0)
	if err = raw.Read(func(fd uintptr) bool {
		n, fds, errno = sock.ReceiveFDs(int32(fd), p)
		return errno != syscall.EAGAIN
	}); err != nil {
		return "", nil, nil, err
	}
	switch {
	case errno != 0:
		return "", nil, nil, errno
	case n == 0:
		return "", nil, nil, io.EOF
	}
	head, payload, _ := bytes.Cut(p[:n], []byte(" "))
	return string(head), payload, fds, nil
}

// readExpectedMessage waits for a message of the given kind, decodes its JSON into payload and returns its files. If a
// message of another kind arrives, it fails. If the other process aborts the upgrade, the error is errAborted. If
// timeout is 0, the wait has no time limit.
func (c *controlSocket) readExpectedMessage(ctx context.Context, kind string, payload any, timeout time.Duration) (files []*os.File, err error) {
	var until time.Time
	if timeout > 0 {
		until = time.Now().Add(timeout)
	}
	if err := c.file.SetReadDeadline(until); err != nil {
		return nil, err
	}
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.file.SetReadDeadline(time.Unix(1, 0))
		close(over)
	})
	defer func() {
		if !stop() {
			<-over // wait, because the function would cancel the next read
		}
		_ = c.file.SetReadDeadline(time.Time{})
		if err != nil {
			closeFiles(files)
			files = nil
		}
	}()
	for {
		got, rest, fds, err := c.readMessage()
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), kind))
		}
		switch {
		case err != nil:
			return files, fmt.Errorf("waiting for %q: %w", kind, err)
		case got == kindAbort:
			return files, errAborted
		case got != kind:
			return files, fmt.Errorf("received message %.20q; expected %q", got, kind)
		case len(files) > maxDescriptors:
			return files, fmt.Errorf("message %q has more than %d descriptors", kind, maxDescriptors)
		case len(rest) > 0:
			return files, json.Unmarshal(rest, payload)
		}
	}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

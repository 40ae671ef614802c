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

// control is one end of the socket pair. Its messages are a word, a space, and JSON.
type control struct {
	file *os.File
}

// inherit takes over the end that this process was started with.
func inherit(fd int, name string) (c control, err error) {
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
	return control{os.NewFile(uintptr(fd), name)}, nil
}

// send sends a message with descriptors, in as many parts as it takes: the word alone with
// descriptors, as often as there are so many, and then with what belongs to it.
func (c *control) send(word string, v any, files ...*os.File) error {
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	for len(fds) > sock.MaxRights {
		if err := c.write([]byte(word), fds[:sock.MaxRights]); err != nil {
			return err
		}
		fds = fds[sock.MaxRights:]
	}
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.write(append([]byte(word+" "), p...), fds)
}

func (c *control) write(p []byte, fds []int) error {
	if len(p) > sock.MaxRightsMessage {
		return fmt.Errorf("a message of %d bytes; expected at most %d", len(p), sock.MaxRightsMessage)
	}
	raw, err := c.file.SyscallConn()
	if err != nil {
		return err
	}
	errno := syscall.Errno(0)
	if err := raw.Write(func(fd uintptr) bool {
		errno = sock.SendRights(int32(fd), p, fds)
		return errno != syscall.EAGAIN
	}); err != nil {
		return err
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// read reads one message.
func (c *control) read() (word string, rest []byte, fds []int32, err error) {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return "", nil, nil, err
	}
	p, n, errno := make([]byte, sock.MaxRightsMessage), 0, syscall.Errno(0)
	if err = raw.Read(func(fd uintptr) bool {
		n, fds, errno = sock.ReceiveRights(int32(fd), p)
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
	head, rest, _ := bytes.Cut(p[:n], []byte(" "))
	return string(head), rest, fds, nil
}

// expect reads a message of a kind, whose descriptors may come in parts, within a time, and as long
// as ctx; 0 is no bound.
func (c *control) expect(ctx context.Context, want string, v any, within time.Duration) (files []*os.File, err error) {
	var until time.Time
	if within > 0 {
		until = time.Now().Add(within)
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
			<-over // it would end what is read next
		}
		_ = c.file.SetReadDeadline(time.Time{})
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	for {
		word, rest, fds, err := c.read()
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), want))
		}
		switch {
		case err != nil:
			return files, fmt.Errorf("waiting for %q: %w", want, err)
		case word == abort:
			return files, errAborted
		case word != want:
			return files, fmt.Errorf("got %.20q; expected %q", word, want)
		case len(files) > maxDescriptors:
			return files, fmt.Errorf("%q with over %d descriptors", want, maxDescriptors)
		case len(rest) > 0:
			return files, json.Unmarshal(rest, v)
		}
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

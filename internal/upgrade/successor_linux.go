package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
)

// The words of messages.
const (
	hello    = "hello"
	sockets  = "listeners"
	ready    = "ready"
	channels = "channels"
	taking   = "taking"
	done     = "done"
	abort    = "abort"
	alive    = "alive"
)

var errAborted = errors.New("the old process goes on")

// Successor is the new process, for the old one. Its methods are for one goroutine.
type Successor struct {
	control
	cmd      *exec.Cmd
	patience time.Duration // for each answer
	exited   chan struct{} // closed when it has ended
	state    error         // how, then
}

// Start starts the new process, which has so long for each answer. Its environment and
// descriptors are completed.
func Start(cmd *exec.Cmd, patience time.Duration) (*Successor, error) {
	pair, err := sock.RightsPair()
	if err != nil {
		return nil, err
	}
	defer pair[1].Close()
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, pair[1])
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", variable, 2+len(cmd.ExtraFiles)))
	if err := cmd.Start(); err != nil {
		pair[0].Close()
		return nil, fmt.Errorf("the new process does not start: %w", err)
	}
	s := &Successor{control: control{pair[0]}, cmd: cmd, patience: patience, exited: make(chan struct{})}
	go func() {
		reportEnd(cmd.Process.Pid)
		s.state = cmd.Wait()
		close(s.exited)
	}()
	return s, nil
}

// PID is its process id.
func (s *Successor) PID() int { return s.cmd.Process.Pid }

// Greet says hello, with listeners, which send sends.
func (s *Successor) Greet(h Hello, send func(control *os.File) error) error {
	h.Version = Version
	if l := own.Load(); l != nil {
		h.Kept, h.Files = true, append(slices.Clip(h.Files), l.write)
	}
	if err := s.send(hello, h); err != nil {
		return s.died(context.Background(), err)
	}
	if err := send(s.file); err != nil {
		return s.died(context.Background(), err)
	}
	return s.died(context.Background(), s.send(sockets, struct{}{}, h.Files...))
}

// SocketsWord is the message by which an engine sends descriptors of listeners, in parts.
const SocketsWord = sockets

// AwaitReady waits until it serves.
func (s *Successor) AwaitReady(ctx context.Context) (r Ready, err error) {
	if err = s.answer(ctx, ready, &r); err != nil {
		return r, err
	}
	switch {
	case r.Failed != "":
		return r, fmt.Errorf("the new process can't serve: %s", r.Failed)
	case r.Version != Version:
		return r, fmt.Errorf("the new process speaks version %d of the protocol; expected %d", r.Version, Version)
	}
	return r, nil
}

// answer waits for an answer of the new process.
func (s *Successor) answer(ctx context.Context, word string, v any) error {
	_, err := s.expect(ctx, word, v, s.patience)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the new process does not say within %v that it is %s", s.patience, word)
	}
	return s.died(ctx, err)
}

// Channels gives it channels, and keeps the other ends, when it is taking. Both sides deal them
// out in turn, to so many loops: each of ours has one with each of theirs, or with one of them
// where there are as many, or too many. With them go the handler's state and a link, files that
// stay the caller's, unless they are nil.
func (s *Successor) Channels(ctx context.Context, from, to int, state, link *os.File) (ours []*os.File, err error) {
	n := max(from, to)
	each := from != to && from*to <= maxChannels
	if each {
		n = from * to
	}
	theirs := make([]*os.File, n)
	defer func() { closeAll(theirs) }()
	for i := range n {
		pair, err := sock.RightsPair()
		if err != nil {
			closeAll(ours)
			return nil, err
		}
		at := i
		if each {
			at = i%from*to + i/from
		}
		ours, theirs[at] = append(ours, pair[0]), pair[1]
	}
	files := theirs[:n:n]
	for _, more := range []*os.File{state, link} {
		if more != nil {
			files = append(files, more)
		}
	}
	if err = s.died(ctx, s.send(channels, Channels{N: n, State: state != nil, Link: link != nil}, files...)); err == nil {
		err = s.answer(ctx, taking, new(struct{}))
	}
	if err != nil {
		closeAll(ours)
		return nil, err
	}
	return ours, nil
}

// died completes an error by how the new process has ended, if it has. One that has closed its end
// is about to.
func (s *Successor) died(ctx context.Context, err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		return err
	}
	select {
	case <-s.exited:
	case <-time.After(s.patience):
		return err
	case <-ctx.Done():
		return err
	}
	if s.state == nil {
		return errors.New("the new process has ended by itself: it is not a server that takes connections over")
	}
	return fmt.Errorf("the new process has ended: %w", s.state)
}

// Watch asks the new process, while it is taking, whether it is alive, until ctx ends. One that
// hangs it kills, so that the channels end.
func (s *Successor) Watch(ctx context.Context) {
	tick := time.NewTicker(s.patience / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if s.Died() {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// Died says whether it has ended. One that hangs is killed: it has had a third of the patience,
// twice, because this process may have stood still, too.
func (s *Successor) Died() bool {
	for range 2 {
		err := s.send(alive, struct{}{})
		if err == nil {
			_, err = s.expect(context.Background(), alive, new(struct{}), s.patience/3)
		}
		if err == nil {
			return false
		}
	}
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.exited
	return true
}

// Abort ends the new process, which has nothing yet, and waits for it.
func (s *Successor) Abort() {
	_ = s.send(abort, struct{}{}) // it may have gone
	select {
	case <-s.exited:
	case <-time.After(time.Second):
		_ = s.cmd.Process.Kill()
		<-s.exited
	}
	s.file.Close()
}

// Done leaves it alone.
func (s *Successor) Done(d Done) error {
	defer s.file.Close()
	return s.send(done, d)
}

// StateFile gives a file in memory for a handler's state.
func StateFile() (*os.File, error) {
	fd, err := sock.MemoryFile(nil)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "state"), nil
}

// LinkPair gives the ends of a link.
func LinkPair() (pair [2]*os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return pair, fmt.Errorf("a socket for what is published: %w", err)
	}
	return [2]*os.File{os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link")}, nil
}

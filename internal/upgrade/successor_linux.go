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

const (
	kindHello     = "hello"
	kindListeners = "listeners"
	kindReady     = "ready"
	kindChannels  = "channels"
	kindTaking    = "taking"
	kindDone      = "done"
	kindAbort     = "abort"
	kindAlive     = "alive"
)

var errAborted = errors.New("the old process continues to serve")

// Successor is the old process's view of the new process, which replaces it. It is not safe for concurrent use.
type Successor struct {
	controlSocket
	cmd          *exec.Cmd
	replyTimeout time.Duration // limit for each reply
	exited       chan struct{} // closed when the process has exited
	exitErr      error         // exit status, once exited is closed
}

// StartSuccessor starts cmd as the new process. It adds an environment variable and a descriptor to cmd. replyTimeout
// is how long this process waits for each reply of the new process.
func StartSuccessor(cmd *exec.Cmd, replyTimeout time.Duration) (*Successor, error) {
	pair, err := sock.NewFDSocketpair()
	if err != nil {
		return nil, err
	}
	defer pair[1].Close()
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, pair[1])
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", upgradeEnv, 2+len(cmd.ExtraFiles)))
	if err := cmd.Start(); err != nil {
		pair[0].Close()
		return nil, fmt.Errorf("start the new process: %w", err)
	}
	s := &Successor{controlSocket: controlSocket{pair[0]}, cmd: cmd, replyTimeout: replyTimeout, exited: make(chan struct{})}
	go func() {
		waitAndReportExitToFirst(cmd.Process.Pid)
		s.exitErr = cmd.Wait()
		close(s.exited)
	}()
	return s, nil
}

func (s *Successor) PID() int { return s.cmd.Process.Pid }

// SendHelloAndListeners sends the hello message and then calls sendListeners to send the listeners' descriptors.
func (s *Successor) SendHelloAndListeners(h Hello, sendListeners func(control *os.File) error) error {
	h.Version = Version
	if l := ownStatusPipe.Load(); l != nil {
		h.Kept, h.Files = true, append(slices.Clip(h.Files), l.write)
	}
	if err := s.sendMessage(kindHello, h); err != nil {
		return s.waitAndAddExitStatusIfClosed(context.Background(), err)
	}
	if err := sendListeners(s.file); err != nil {
		return s.waitAndAddExitStatusIfClosed(context.Background(), err)
	}
	return s.waitAndAddExitStatusIfClosed(context.Background(), s.sendMessage(kindListeners, struct{}{}, h.Files...))
}

// ListenersMessage is the kind of the messages with which an engine sends listener descriptors.
const ListenersMessage = kindListeners

func (s *Successor) WaitReady(ctx context.Context) (r Ready, err error) {
	if err = s.waitReply(ctx, kindReady, &r); err != nil {
		return r, err
	}
	switch {
	case r.Failed != "":
		return r, fmt.Errorf("the new process cannot serve: %s", r.Failed)
	case r.Version != Version:
		return r, fmt.Errorf("the new process uses version %d of the upgrade protocol, this process version %d; restart the server instead of upgrading it", r.Version, Version)
	}
	return r, nil
}

func (s *Successor) waitReply(ctx context.Context, kind string, reply any) error {
	_, err := s.readExpectedMessage(ctx, kind, reply, s.replyTimeout)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the new process did not send %[2]q within %[1]v", s.replyTimeout, kind)
	}
	return s.waitAndAddExitStatusIfClosed(ctx, err)
}

// SendChannelsAndAwaitTakeOver creates channels between the loops of this process and the loops of the new process. It
// sends one end of each channel to the new process, waits until the new process begins to take over connections, and
// returns the other ends.
//
// stateFile contains the handler's state. stateFile and broadcastSocket may be nil. The caller must close both.
//
// If both processes have the same number of loops, each loop gets one channel. Otherwise, every pair of loops gets a
// channel if there are at most maxChannels pairs. If there are more pairs, each loop of the process with more loops
// gets one channel.
func (s *Successor) SendChannelsAndAwaitTakeOver(ctx context.Context, ourLoops, theirLoops int, stateFile, broadcastSocket *os.File) (ours []*os.File, err error) {
	n := max(ourLoops, theirLoops)
	allPairs := ourLoops != theirLoops && ourLoops*theirLoops <= maxChannels
	if allPairs {
		n = ourLoops * theirLoops
	}
	theirs := make([]*os.File, n)
	defer func() { closeFiles(theirs) }()
	for i := range n {
		pair, err := sock.NewFDSocketpair()
		if err != nil {
			closeFiles(ours)
			return nil, err
		}
		at := i
		if allPairs {
			at = i%ourLoops*theirLoops + i/ourLoops
		}
		ours, theirs[at] = append(ours, pair[0]), pair[1]
	}
	files := theirs[:n:n]
	for _, more := range []*os.File{stateFile, broadcastSocket} {
		if more != nil {
			files = append(files, more)
		}
	}
	if err = s.waitAndAddExitStatusIfClosed(ctx, s.sendMessage(kindChannels, Channels{N: n, State: stateFile != nil, Link: broadcastSocket != nil}, files...)); err == nil {
		err = s.waitReply(ctx, kindTaking, new(struct{}))
	}
	if err != nil {
		closeFiles(ours)
		return nil, err
	}
	return ours, nil
}

// waitAndAddExitStatusIfClosed is called with the result of sending or receiving a message. If err means that the new
// process has closed the socket, it waits up to replyTimeout for the new process to exit, and returns an error with the
// exit status. Otherwise, it returns err.
func (s *Successor) waitAndAddExitStatusIfClosed(ctx context.Context, err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		return err
	}
	select {
	case <-s.exited:
	case <-time.After(s.replyTimeout):
		return err
	case <-ctx.Done():
		return err
	}
	if s.exitErr == nil {
		return errors.New("the new process exited with status 0 before it took over; expected a server that takes over the connections")
	}
	return fmt.Errorf("the new process has ended: %w", s.exitErr)
}

// MonitorAndKillIfHung regularly checks whether the new process responds. It kills a process that does not respond. It
// returns when the process has exited or ctx ends.
func (s *Successor) MonitorAndKillIfHung(ctx context.Context) {
	tick := time.NewTicker(s.replyTimeout / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if s.ProbeAndKillIfHung() {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// ProbeAndKillIfHung checks whether the new process responds. If the process does not respond to two probes in a row,
// it kills the process and returns true. It also returns true if the process has already exited.
func (s *Successor) ProbeAndKillIfHung() (exited bool) {
	for range 2 {
		err := s.sendMessage(kindAlive, struct{}{})
		if err == nil {
			_, err = s.readExpectedMessage(context.Background(), kindAlive, new(struct{}), s.replyTimeout/3)
		}
		if err == nil {
			return false
		}
	}
	_ = s.cmd.Process.Kill() // it may have exited
	<-s.exited
	return true
}

// AbortOrKill tells the new process to exit. If the new process still runs after a second, it kills the process. Call
// AbortOrKill only while the new process has not taken over any connection.
func (s *Successor) AbortOrKill() {
	_ = s.sendMessage(kindAbort, struct{}{}) // the process may have exited
	select {
	case <-s.exited:
	case <-time.After(time.Second):
		_ = s.cmd.Process.Kill()
		<-s.exited
	}
	s.file.Close()
}

// SendDone tells the new process that the handoff is complete, and closes the control socket.
func (s *Successor) SendDone(d Done) error {
	defer s.file.Close()
	return s.sendMessage(kindDone, d)
}

func NewMemoryStateFile() (*os.File, error) {
	fd, err := sock.WriteToNewMemoryFile(nil)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "state"), nil
}

func NewBroadcastSocketpair() (pair [2]*os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return pair, fmt.Errorf("create a socket for broadcasts: %w", err)
	}
	return [2]*os.File{os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link")}, nil
}

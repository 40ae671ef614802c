package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Start listens and starts the workers; it does not wait until they serve.
func Start(cfg Config) (*Supervisor, error) { return startAt(cfg, standard) }

func startAt(cfg Config, p pace) (*Supervisor, error) {
	n := &ward{cfg: cfg, args: slices.Clone(os.Args)}
	var err error
	if n.program, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("find the program to start: %w", err)
	}
	addrs, err := n.listen()
	if err == nil {
		err = n.share()
	}
	if err != nil {
		n.closeListeners()
		return nil, err
	}
	return supervise(cfg, p, addrs, n.board, n), nil
}

// ward is the nursery of processes.
type ward struct {
	cfg     Config
	program string
	args    []string
	memory  *os.File // the board
	board   board

	mu        sync.Mutex   // held while a process is started with the listeners
	listeners [][]*os.File // of each worker, one for each address; nil after closeListeners
}

// errClosed is the end of a life that was not begun.
var errClosed = errors.New("not started: the supervisor is stopping")

// listen listens once for each worker.
func (n *ward) listen() (addrs []net.Addr, err error) {
	n.listeners = make([][]*os.File, n.cfg.Processes)
	for _, at := range n.cfg.where() {
		all, err := sock.ListenShared(at.Network, at.Addr, n.cfg.Processes)
		if err != nil {
			return nil, err
		}
		defer engine.CloseAll(all)
		for i, l := range all {
			fd, err := sock.Detach(l)
			if err != nil {
				return nil, err
			}
			n.listeners[i] = append(n.listeners[i], os.NewFile(uintptr(fd), "listener"))
		}
		addrs = append(addrs, all[0].Addr())
	}
	return addrs, nil
}

// share makes the board.
func (n *ward) share() error {
	fd, err := unix.MemfdCreate("myriad-counters", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	n.memory = os.NewFile(uintptr(fd), "counters")
	if err := n.memory.Truncate(int64(boardSize(n.cfg.Processes))); err != nil {
		n.memory.Close()
		return err
	}
	if n.board, err = mapBoard(n.memory, n.cfg.Processes); err != nil {
		n.memory.Close()
	}
	return err
}

func mapBoard(memory *os.File, workers int) (board, error) {
	b, err := unix.Mmap(int(memory.Fd()), 0, boardSize(workers), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap of the counters: %w", err)
	}
	return b, nil
}

func (n *ward) closeListeners() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range slices.Concat(n.listeners...) {
		l.Close()
	}
	n.listeners = nil
}

func (n *ward) close() {
	n.memory.Close()
	_ = unix.Munmap(n.board) // it was mapped, so this can't fail
}

func (n *ward) spawn(index int, heard func(frame []byte)) (life, error) {
	ours, theirs, err := lifeLine()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(n.program)
	cmd.Args = n.args
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d/%d%s", environment, index, n.cfg.Processes, places(n.cfg.where())))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := n.start(cmd, index, theirs); err != nil {
		ours.Close()
		return nil, err
	}
	c := &child{
		cmd: cmd, line: ours, out: newOutbox(ours), heard: heard,
		isServing: make(chan struct{}), hasLeft: make(chan struct{}), hasEnded: make(chan struct{}),
	}
	go c.listen()
	c.term = sync.OnceFunc(func() { _ = cmd.Process.Signal(syscall.SIGTERM) }) // it may have ended
	go c.write()
	go c.wait()
	return c, nil
}

func (n *ward) start(cmd *exec.Cmd, index int, line *os.File) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		return errClosed
	}
	listeners := n.listeners[index]
	cmd.ExtraFiles = append([]*os.File{listeners[0], n.memory, line}, listeners[1:]...) // descriptors 3, 4, 5, and from 6
	return cmd.Start()
}

// lifeLine makes a socket pair; the second end is for the worker.
func lifeLine() (ours *net.UnixConn, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs = os.NewFile(uintptr(pair[1]), "life-line")
	if ours, err = unixConn(os.NewFile(uintptr(pair[0]), "life-line")); err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// unixConn makes a connection of a file, which it closes.
func unixConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("life-line: %w", err)
	}
	return c.(*net.UnixConn), nil
}

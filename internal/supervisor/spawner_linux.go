package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/upgrade"
)

// Start opens the listeners and starts the workers. It does not wait until the workers serve.
func Start(cfg Config) (*Supervisor, error) { return startSupervisorWithTiming(cfg, defaultTiming) }

func startSupervisorWithTiming(cfg Config, t timing) (*Supervisor, error) {
	sp := &execSpawner{cfg: cfg, args: slices.Clone(os.Args)}
	var err error
	if sp.program, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("find the program to start: %w", err)
	}
	addrs, err := sp.openListeners()
	if err == nil {
		err = sp.createSharedMemory()
	}
	if err != nil {
		sp.closeListenersAndStopSpawning()
		return nil, err
	}
	if cfg.InitPage != nil {
		cfg.InitPage(sp.page)
	}
	s := startSupervisor(cfg, t, addrs, sp.counters, sp)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.page = sp.page
	return s, nil
}

type execSpawner struct {
	cfg      Config
	program  string
	args     []string
	memory   *os.File // contains the counters
	counters sharedCounters
	page     []byte

	sockets [][]*os.File // by address

	mu     sync.Mutex // held while a process with the sockets is started
	closed bool
}

var errStopping = errors.New("not started: the supervisor is stopping")

// openListeners prepares the listening sockets for the workers. For each address, it uses the sockets in the
// configuration. For an address without sockets, it opens one listener per worker.
func (sp *execSpawner) openListeners() (addrs []net.Addr, err error) {
	sp.sockets = make([][]*os.File, len(sp.cfg.Addrs))
	for i, at := range sp.cfg.Addrs {
		var all []net.Listener
		if i < len(sp.cfg.Sockets) {
			all = sp.cfg.Sockets[i]
		}
		if len(all) == 0 {
			if all, err = sock.ListenReusePort(at.Network, at.Addr, sp.cfg.Processes, sp.cfg.Control); err != nil {
				return nil, err
			}
		}
		defer engine.CloseListeners(all)
		for _, l := range all {
			fd, err := sock.DupConnDescriptor(l)
			if err != nil {
				return nil, err
			}
			sp.sockets[i] = append(sp.sockets[i], os.NewFile(uintptr(fd), "listener"))
		}
		addrs = append(addrs, all[0].Addr())
	}
	return addrs, nil
}

func (sp *execSpawner) socketsForWorker(workerIndex int) (socketsPerListener [][]*os.File) {
	for _, all := range sp.sockets {
		some := []*os.File{all[workerIndex%len(all)]}
		for i := workerIndex + sp.cfg.Processes; i < len(all); i += sp.cfg.Processes {
			some = append(some, all[i])
		}
		socketsPerListener = append(socketsPerListener, some)
	}
	return socketsPerListener
}

func (sp *execSpawner) createSharedMemory() error {
	fd, err := unix.MemfdCreate("myriad-counters", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	sp.memory = os.NewFile(uintptr(fd), "counters")
	if err = sp.memory.Truncate(int64(sharedMemorySize(sp.cfg.Processes))); err == nil {
		sp.counters, sp.page, err = mapSharedMemory(sp.memory, sp.cfg.Processes)
	}
	if err != nil {
		sp.memory.Close()
	}
	return err
}

func sharedMemorySize(workers int) int { return workers*blockStride + PageSize }

func mapSharedMemory(memory *os.File, workers int) (counters sharedCounters, page []byte, err error) {
	b, err := unix.Mmap(int(memory.Fd()), 0, sharedMemorySize(workers), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("mmap of the counters: %w", err)
	}
	return b[:workers*blockStride], b[workers*blockStride:], nil
}

func (sp *execSpawner) closeListenersAndStopSpawning() {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for _, l := range slices.Concat(sp.sockets...) {
		l.Close()
	}
	sp.closed = true
}

func (sp *execSpawner) freeSharedMemory() {
	sp.memory.Close()
	_ = unix.Munmap(sp.counters[:cap(sp.counters)]) // with the page; cannot fail for a mapping
}

func (sp *execSpawner) spawnWorker(workerIndex int, onFrame func(frame []byte)) (process, error) {
	ours, theirs, err := newControlSocketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	link, theirLink, err := upgrade.NewOrderConnPair()
	if err != nil {
		ours.Close()
		return nil, err
	}
	defer theirLink.Close()
	cmd := exec.Command(sp.program)
	cmd.Args = sp.args
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{sp.memory, theirs, theirLink} // descriptors 3, 4 and 5; the listeners follow
	if err := sp.startWithSocketsAndWorkerEnv(cmd, workerIndex); err != nil {
		ours.Close()
		link.Close()
		return nil, err
	}
	return newMonitoredProcess(cmd, ours, link, onFrame), nil
}

func (sp *execSpawner) startWithSocketsAndWorkerEnv(cmd *exec.Cmd, workerIndex int) error {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.closed {
		return errStopping
	}
	id := identity{Index: workerIndex, Processes: sp.cfg.Processes, Addrs: sp.cfg.Addrs, Held: sp.cfg.IsSuccessor, PredecessorListeners: sp.cfg.PredecessorListeners}
	for _, sockets := range sp.socketsForWorker(workerIndex) {
		id.Sockets = append(id.Sockets, len(sockets))
		cmd.ExtraFiles = append(cmd.ExtraFiles, sockets...)
	}
	cmd.Env = append(os.Environ(), workerEnv+"="+id.String())
	return cmd.Start()
}

func newControlSocketPair() (ours *net.UnixConn, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs = os.NewFile(uintptr(pair[1]), "control socket")
	if ours, err = toUnixConnClosingFile(os.NewFile(uintptr(pair[0]), "control socket")); err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

func toUnixConnClosingFile(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return c.(*net.UnixConn), nil
}

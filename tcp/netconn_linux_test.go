package tcp

import (
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
)

func init() {
	if sock.CheckPrivateTables() == nil {
		shardConns = sock.DefaultMaxConnsForDescriptorLimit() + 1
	}
}

// An idle connection of a Blocking handler that has been used before takes little more than its 96 bytes.
func TestIdleMemory(t *testing.T) {
	conns := 10_000
	if testing.Short() {
		conns = 2048
	}
	testkit.AcquireDescriptorsOrSkip(t, conns+sock.FirstPrivateFD)
	forEachLoopModel(t, func(t *testing.T, model string) {
		s := startServer(t, &Server{Model: model, Handler: &Blocking{Serve: func(n *NetConn) error {
			line := make([]byte, 8)
			if _, err := io.ReadFull(n, line); err != nil {
				return err
			}
			return errorOf(n.Write(line))
		}}})
		runWithOwnDescriptors(t, func() error {
			before := userMemoryBytes()
			err := dialAndEchoRaw(s.addr, conns)
			each := (userMemoryBytes() - before) / int64(conns)
			// Each batch may leave free buffers of 1 KiB behind, which later batches use again.
			if most := int64(200 + 2*echoBatch<<10/conns); each > most {
				t.Errorf("an idle connection takes %d bytes, want at most %d", each, most)
			}
			return err
		})
	})
}

// A goroutine that serves a connection keeps its initial stack of 2 KiB, which Go would never shrink again.
func TestStackOfGoroutineModel(t *testing.T) {
	const conns = 400
	s := startServer(t, &Server{Model: Goroutine, Handler: rawEcho{}})
	stacks := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.StackInuse)
	}
	most := int64(3 << 10)
	if testkit.RaceEnabled {
		most *= 4 // its frames are larger
	}
	runWithOwnDescriptors(t, func() error {
		if err := dialAndEchoRaw(s.addr, conns/10); err != nil {
			return err
		}
		before := stacks()
		if err := dialAndEchoRaw(s.addr, conns); err != nil {
			return err
		}
		if each := (stacks() - before) / conns; each > most {
			t.Errorf("%d bytes of stack for each connection that has been answered; want the 2,048 that a goroutine begins with", each)
		}
		return nil
	})
}

// runWithOwnDescriptors runs f on a thread with its own descriptor table, which is closed when f returns.
func runWithOwnDescriptors(t *testing.T, f func() error) {
	t.Helper()
	var err error
	sock.RunOnNewThread(func() {
		var release func()
		if release, err = sock.UnshareDescriptorTable(nil); err == nil {
			defer release()
			err = f()
		}
	})
	requireNoError(t, err)
}

// userMemoryBytes returns the size of heap and stacks after garbage collection.
func userMemoryBytes() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC() // stacks shrink, pools empty, in steps
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// dialRaw makes a connection that takes no memory of this process except a descriptor.
func dialRaw(addr string) (fd int, err error) {
	to := netip.MustParseAddrPort(addr)
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, err
	}
	return fd, unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
}

// echoBatch is the number of connections that dialAndEchoRaw leaves unanswered at once, which limits memory for bursts.
const echoBatch = 256

// dialAndEchoRaw makes such connections and exchanges a message on each.
func dialAndEchoRaw(addr string, conns int) error {
	line := make([]byte, 8)
	for conns > 0 {
		fds := make([]int, min(conns, echoBatch))
		conns -= len(fds)
		for i := range fds {
			fd, err := dialRaw(addr)
			if err == nil {
				_, err = unix.Write(fd, line)
			}
			if err != nil {
				return err
			}
			fds[i] = fd
		}
		for _, fd := range fds {
			if n, err := unix.Read(fd, line); n != len(line) || err != nil {
				return fmt.Errorf("an answer of %d bytes, %w", n, err)
			}
		}
	}
	return nil
}

package tcp

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
)

func init() {
	if sock.CheckPrivateTables() == nil {
		shardConns = sock.MaxConnsForDescriptorLimit() + 1
	}
}

// TestIdleMemory logs the user memory (heap and stacks) of an idle connection that has been used
// before: with package net and a goroutine in Read, with a NetListener, and with a Blocking
// handler. It uses 10,000 of each, fewer in short mode, in one process; the clients are mere
// descriptors.
func TestIdleMemory(t *testing.T) {
	conns := 10_000
	if testing.Short() {
		conns = 2048
	}
	echo := func(c net.Conn) error {
		line := make([]byte, 8)
		if _, err := io.ReadFull(c, line); err != nil {
			return err
		}
		_, err := c.Write(line)
		return err
	}
	loop := func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for echo(c) == nil {
				}
			}()
		}
	}
	testkit.ReserveDescriptors(t, conns+sock.FirstPrivateFD)
	measure := func(t *testing.T, addr string) (each int64) {
		runWithOwnDescriptors(t, func() error {
			before := userMemoryBytes()
			err := dialAndEchoRaw(addr, conns)
			each = (userMemoryBytes() - before) / int64(conns)
			return err
		})
		return each
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	requireNoError(t, err)
	go loop(l)
	t.Logf("package net, a goroutine each: %d bytes each", measure(t, l.Addr().String()))
	l.Close()
	for _, model := range []string{Epoll, Uring} {
		if m, err := models.Find(model); err != nil || m.Available() != nil {
			continue
		}
		accepts := NewNetListener()
		s := startServer(t, &Server{Model: model, Handler: accepts})
		go loop(accepts)
		t.Logf("%s, Listener, a goroutine each: %d bytes each", model, measure(t, s.addr))
		s.Close()

		b := &Blocking{Serve: func(n *NetConn) error { return echo(n) }}
		s = startServer(t, &Server{Model: model, Handler: b})
		each := measure(t, s.addr)
		t.Logf("%s, Blocking: %d bytes each", model, each)
		// A burst leaves some hundred free buffers of 1 KiB behind, however many connections.
		if each > 200+1<<20/int64(conns) {
			t.Errorf("%d bytes for an idle connection of a Blocking handler; want little more than its 96", each)
		}
		s.Close()

		b.Serve = func(n *NetConn) error { n.SetValue(true); return echo(n) }
		s = startServer(t, &Server{Model: model, Handler: b})
		t.Logf("%s, Blocking, with a value: %d bytes each", model, measure(t, s.addr))
		s.Close()
	}
}

// A goroutine that serves a connection keeps its initial stack of 2 KiB: Go doubles a stack when
// calls are too deep, and does not shrink that of a blocked goroutine.
func TestStackOfGoroutineModel(t *testing.T) {
	const conns = 400
	s := startServer(t, &Server{Model: Goroutine, Handler: rawEcho{}})
	stacks := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.StackInuse)
	}
	most := int64(3 << 10)
	if raceEnabled() {
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

// runWithOwnDescriptors runs f on a thread with its own descriptor table, which is closed when f
// returns.
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

// raceEnabled reports whether the race detector is enabled.
func raceEnabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
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

// dialAndEchoRaw makes such connections and exchanges a message on each.
func dialAndEchoRaw(addr string, conns int) error {
	fds, line := make([]int, conns), make([]byte, 8)
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
	return nil
}

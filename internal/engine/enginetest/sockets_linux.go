package enginetest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

func init() {
	systemCases = append(systemCases,
		testCase{"Dial of an abstract unix socket", dialAbstract},
		testCase{"Dial of a unix socket whose queue is full", testDialFullUnixQueue},
		testCase{"Dial with socket options", func(b *testEnv) {
			testSocketOptions(b, true, engine.Socket{SendBuffer: 40 << 10, ReceiveBuffer: 50 << 10})
		}},
		testCase{"Dial with a delay", func(b *testEnv) { testSocketOptions(b, true, engine.Socket{Delay: true}) }},
		testCase{"accepted connections with socket options", func(b *testEnv) {
			testSocketOptions(b, false, engine.Socket{SendBuffer: 40 << 10, ReceiveBuffer: 50 << 10, Unsent: 16 << 10})
		}},
	)
}

// abstracts makes abstract names unique, because they exist until their last descriptor is closed.
var abstracts atomic.Int64

func dialAbstract(b *testEnv) {
	testDialUnixPath(b, fmt.Sprintf("@myriad-dial-%d-%d", os.Getpid(), abstracts.Add(1)))
}

// testDialFullUnixQueue dials a listener that does not accept: dials beyond its queue must fail at
// once.
func testDialFullUnixQueue(b *testEnv) {
	const n = 20
	path := tempUnixPath(b)
	listenWithShortestQueue(b, syscall.AF_UNIX, &syscall.SockaddrUnix{Name: path})
	s := b.startServer(&Script{}, dialsOnly, func(cfg *engine.Config) { cfg.ResetDialled = true })
	b.requireNoError(s.Dial(engine.DialRequest{Path: path, Count: n}))
	const room = 1 // capacity of a queue of length 0
	s.wantOpened(room)
	s.wantDialFailed(slices.Repeat([]error{syscall.EAGAIN}, n-room)...)
}

// testSocketOptions checks the options of dialled or accepted sockets, on the owner's thread, where
// the descriptor is valid. A socket that is dialled with Reset must be reset even if this process is killed.
func testSocketOptions(b *testEnv, dials bool, want engine.Socket) {
	seen := make(chan engine.Socket, 1)
	script := &Script{Opened: func(c *engine.Conn) {
		local, _ := c.Ref().LocalAddr()
		options, resets := socketOptionsOf(b, c.Peer(), local)
		if resets != dials {
			b.Errorf("a close resets the connection: %v, want %v", resets, dials)
		}
		seen <- options
	}}
	set := func(cfg *engine.Config) { cfg.Socket = want }
	if dials {
		l := listen(b)
		s := b.startServer(script, dialsOnly, set, func(cfg *engine.Config) { cfg.ResetDialled = true }) // nobody accepts the connection, so it cannot end in order
		b.requireNoError(s.Dial(engine.DialRequest{Target: l.Addr().(*net.TCPAddr).AddrPort(), Count: 1}))
	} else {
		defer b.startServer(script, set).dial().Close()
	}
	got := testkit.Receive(b, seen, "Opened")
	if want.SendBuffer == 0 { // then it is the kernel's choice
		got.SendBuffer, got.ReceiveBuffer = 0, 0
	}
	if want.Unsent == 0 {
		got.Unsent = 0
	}
	if got != want {
		b.Errorf("the socket's options are %+v, want %+v", got, want)
	}
}

// socketOptionsOf returns the options of this thread's socket with a source and target. The kernel
// doubles the buffer sizes.
func socketOptionsOf(b *testEnv, target, from netip.AddrPort) (options engine.Socket, resets bool) {
	is := func(name syscall.Sockaddr, err error, want netip.AddrPort) bool {
		at, ok := name.(*syscall.SockaddrInet4)
		return err == nil && ok && netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port)) == want
	}
	open, err := os.ReadDir("/proc/thread-self/fd") // the thread may have a table of its own
	b.checkNoError(err)
	for _, entry := range open {
		fd, err := strconv.Atoi(entry.Name())
		b.checkNoError(err)
		if peer, err := syscall.Getpeername(fd); !is(peer, err, target) {
			continue
		}
		if local, err := syscall.Getsockname(fd); !is(local, err, from) {
			continue
		}
		option := func(level, name int) int {
			value, err := syscall.GetsockoptInt(fd, level, name)
			if err != nil {
				b.Errorf("option %d/%d: %v", level, name, err)
			}
			return value
		}
		linger, err := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER)
		if err != nil {
			b.Errorf("SO_LINGER: %v", err)
		}
		return engine.Socket{
			SendBuffer:    option(syscall.SOL_SOCKET, syscall.SO_SNDBUF) / 2,
			ReceiveBuffer: option(syscall.SOL_SOCKET, syscall.SO_RCVBUF) / 2,
			Unsent:        option(syscall.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT),
			Delay:         option(syscall.IPPROTO_TCP, syscall.TCP_NODELAY) == 0,
		}, err == nil && *linger == unix.Linger{Onoff: 1}
	}
	b.Errorf("no socket is connected to %v", target)
	return options, false
}

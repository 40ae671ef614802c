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
		testCase{"Dial of a unix socket whose queue is full", dialFullUnix},
		testCase{"Dial with socket options", func(b *bench) { dialWithOptions(b, engine.Socket{SendBuffer: 40 << 10, ReceiveBuffer: 50 << 10}) }},
		testCase{"accepted connections with socket options", acceptedWithOptions},
		testCase{"Dial with a delay", func(b *bench) { dialWithOptions(b, engine.Socket{Delay: true}) }},
	)
}

// abstracts numbers the names, which are gone with their last descriptor only.
var abstracts atomic.Int64

func dialAbstract(b *bench) {
	dialUnixAt(b, fmt.Sprintf("@myriad-dial-%d-%d", os.Getpid(), abstracts.Add(1)))
}

// dialFullUnix dials someone who takes no connection: those for which there is no
// room in the queue fail at once.
func dialFullUnix(b *bench) {
	const n = 20
	path := unixPath(b)
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	b.must(err)
	b.Cleanup(func() { syscall.Close(fd) })
	b.must(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}))
	if err := syscall.Listen(fd, 0); err != nil {
		b.Fatal(err)
	}
	s := b.serve(&Script{}, dialsOnly, func(cfg *engine.Config) { cfg.Reset = true })
	b.must(s.Dial(engine.Dial{Path: path, Count: n}))
	const room = 1 // of a queue of 0
	s.wantOpened(room)
	s.wantDialFailed(slices.Repeat([]error{syscall.EAGAIN}, n-room)...)
}

// dialWithOptions looks at the socket where its descriptor means something: on the
// thread of its owner.
func dialWithOptions(b *bench, want engine.Socket) {
	l := listen(b)
	target := l.Addr().(*net.TCPAddr).AddrPort()
	seen := make(chan engine.Socket, 1)
	s := b.serve(&Script{Opened: func(*engine.Conn) { seen <- socketTo(b, target, netip.AddrPort{}) }}, dialsOnly,
		func(cfg *engine.Config) { cfg.Socket, cfg.Reset = want, true }) // nobody takes the connection, to end it in order
	b.must(s.Dial(engine.Dial{Target: target, Count: 1}))
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

// acceptedWithOptions has connections inherit what the listener was given.
func acceptedWithOptions(b *bench) {
	want := engine.Socket{SendBuffer: 40 << 10, ReceiveBuffer: 50 << 10, Unsent: 16 << 10}
	seen := make(chan engine.Socket, 1)
	s := b.serve(&Script{Opened: func(c *engine.Conn) {
		local, _ := c.Ref().LocalAddr()
		seen <- socketTo(b, c.Peer(), local)
	}},
		func(cfg *engine.Config) { cfg.Socket = want })
	c := s.dial()
	defer c.Close()
	if got := testkit.Receive(b, seen, "Opened"); got != want {
		b.Errorf("the socket's options are %+v, want %+v", got, want)
	}
}

// socketTo finds this thread's socket that is connected to a target, from an address if
// that is given, and its options. The kernel doubles the sizes that it is given.
func socketTo(b *bench, target, from netip.AddrPort) engine.Socket {
	is := func(name syscall.Sockaddr, err error, want netip.AddrPort) bool {
		at, ok := name.(*syscall.SockaddrInet4)
		return err == nil && ok && netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port)) == want
	}
	open, err := os.ReadDir("/proc/thread-self/fd") // the thread may have a table of its own
	if err != nil {
		b.Error(err)
	}
	for _, entry := range open {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			b.Error(err)
		}
		if peer, err := syscall.Getpeername(fd); !is(peer, err, target) {
			continue
		}
		if local, err := syscall.Getsockname(fd); from.IsValid() && !is(local, err, from) {
			continue
		}
		option := func(level, name int) int {
			value, err := syscall.GetsockoptInt(fd, level, name)
			if err != nil {
				b.Errorf("option %d/%d: %v", level, name, err)
			}
			return value
		}
		return engine.Socket{
			SendBuffer:    option(syscall.SOL_SOCKET, syscall.SO_SNDBUF) / 2,
			ReceiveBuffer: option(syscall.SOL_SOCKET, syscall.SO_RCVBUF) / 2,
			Unsent:        option(syscall.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT),
			Delay:         option(syscall.IPPROTO_TCP, syscall.TCP_NODELAY) == 0,
		}
	}
	b.Errorf("no socket is connected to %v", target)
	return engine.Socket{}
}

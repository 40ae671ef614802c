package enginetest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

func init() {
	resetCases = []testCase{{"Dial with Reset", testDialReset}}
	systemCases = append(systemCases,
		testCase{"Dial from an address that is not ours", testDialFromForeignAddress},
		testCase{"Stop while dialling", func(b *testEnv) { testStopWhileDialling(b, false) }},
		testCase{"Stop by force while dialling", func(b *testEnv) { testStopWhileDialling(b, true) }},
		testCase{"Dial after a connection whose socket stays open elsewhere", testDialAfterSharedSocket},
	)
}

// testDialReset checks that closed dialled connections leave nothing behind, such as a port in
// TIME_WAIT.
func testDialReset(b *testEnv) {
	const n = 5
	target := echoServer(b)
	before := countSocketsTo(b, target) // from another case with the same port
	s := b.startServer(newDialScript(b, target), dialsOnly, func(cfg *engine.Config) { cfg.ResetDialled = true })
	b.requireNoError(s.Dial(engine.DialRequest{Target: target, Count: n}))
	s.wantClosed(make([]error, n)...)
	testkit.WaitFor(b, "sockets are left behind", func() bool { return countSocketsTo(b, target) <= before })
}

// countSocketsTo counts the sockets in any state with a target on 127.0.0.1.
func countSocketsTo(b *testEnv, target netip.AddrPort) (n int) {
	b.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	b.requireNoError(err)
	remote := fmt.Sprintf("0100007F:%04X", target.Port())
	for line := range strings.Lines(string(table)) {
		if strings.Fields(line)[2] == remote {
			n++
		}
	}
	return n
}

// testDialFromForeignAddress dials from an address of another host, which must fail at once and release the reserved
// slot.
func testDialFromForeignAddress(b *testEnv) {
	target := echoServer(b)
	s := b.startServer(&Script{}, dialsOnly, limited(func(l *engine.Limits) { l.MaxConns = 1 }))
	for i := range 3 {
		source := netip.MustParseAddr("192.0.2.1")
		b.requireNoError(s.Dial(engine.DialRequest{Target: target, Source: source, Count: 1}))
		s.wantDialFailed(slices.Repeat([]error{syscall.EADDRNOTAVAIL}, i+1)...)
	}
	b.requireNoError(s.Dial(engine.DialRequest{Target: target, Count: 1}))
	s.wantOpened(1)
}

// testStopWhileDialling stops while dialling a listener that does not accept. Dials beyond its
// backlog must fail at once.
func testStopWhileDialling(b *testEnv, byForce bool) {
	const n = 20
	s := b.startServer(&Script{}, dialsOnly, limited(func(l *engine.Limits) { l.Linger = 100 * time.Millisecond }))
	b.requireNoError(s.Dial(engine.DialRequest{Target: newNeverAcceptingListener(b), Count: n}))
	testkit.WaitFor(b, "no dial succeeds", func() bool { return s.Counters()[engine.Dialled] > 0 })
	if byForce {
		Kill(s)
	} else {
		s.stopMeanwhile(b)()
	}
	made := len(s.reasons())
	if made == n {
		b.Errorf("all %d dials succeeded at once", n)
	}
	s.wantClosed(slices.Repeat([]error{engine.ErrServerClosed}, made)...)
	failed := s.awaitDialFailed(n - made)
	if len(failed) != n-made {
		b.Errorf("%d dials failed and %d succeeded of %d", len(failed), made, n)
	}
	for _, err := range failed {
		if !errors.Is(err, engine.ErrClosed) && !(byForce && errors.Is(err, engine.ErrServerClosed)) {
			b.Errorf("a dial failed for %v, want %v", err, engine.ErrClosed)
		}
	}
}

// testDialAfterSharedSocket closes a connection whose socket is still open by another
// descriptor, as after an export or in a forked child, and then dials. The socket's events must not
// be taken for those of the dial, which never completes.
func testDialAfterSharedSocket(b *testEnv) {
	target := newNeverAcceptingListener(b)
	for range 10 { // until the backlog is full
		nc, err := net.DialTimeout("tcp", target.String(), short)
		if err != nil {
			break
		}
		defer nc.Close()
	}
	s := b.startServer(&Script{Opened: func(c *engine.Conn) {
		if c.IsDialled() {
			b.Error("the dial that is never answered has succeeded")
		}
	}}, dialsOnly)
	l := listen(b)
	c, err := tryDial(b, l.Addr().String())
	b.requireNoError(err)
	accepted, err := l.Accept()
	b.requireNoError(err)
	shared, err := accepted.(*net.TCPConn).File()
	b.requireNoError(err)
	defer shared.Close()
	b.requireNoError(s.Adopt(accepted, -1, nil))
	ref := s.wantOpened(1)[0]
	owner, _, _ := ref.Location()
	c.CloseWrite()
	s.wantClosed(io.EOF)
	b.requireNoError(s.Dial(engine.DialRequest{Target: target, Count: 1, Loop: owner + 1, Timeout: short}))
	s.wantDialFailed(engine.ErrDialTimeout)
}

// newNeverAcceptingListener returns a listener with the shortest possible backlog.
func newNeverAcceptingListener(b *testEnv) netip.AddrPort {
	fd := listenWithShortestQueue(b, syscall.AF_INET, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	addr, err := syscall.Getsockname(fd)
	b.requireNoError(err)
	at := addr.(*syscall.SockaddrInet4)
	return netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
}

// listenWithShortestQueue listens with a socket of a domain, from which nobody accepts.
func listenWithShortestQueue(b *testEnv, domain int, at syscall.Sockaddr) (fd int) {
	fd, err := syscall.Socket(domain, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	b.requireNoError(err)
	b.Cleanup(func() { syscall.Close(fd) })
	b.requireNoError(syscall.Bind(fd, at))
	b.requireNoError(syscall.Listen(fd, 0))
	return fd
}

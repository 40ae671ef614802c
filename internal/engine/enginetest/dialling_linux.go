package enginetest

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

func init() {
	systemCases = append(systemCases,
		testCase{"Dial with Reset", dialReset},
		testCase{"Dial from an address that is not ours", dialFromNowhere},
		testCase{"Stop while dialling", stopWhileDialling},
	)
}

// dialReset closes dialled connections: their ports must not be left in
// TIME_WAIT.
func dialReset(b *bench) {
	const n = 5
	target := echoServer(b)
	before := timeWaits(b, target)
	s := b.serve(caller(b, target), dialsOnly, func(cfg *engine.Config) { cfg.Reset = true })
	if err := s.Dial(engine.Dial{Target: target, Count: n}); err != nil {
		b.Fatalf("Dial: %v", err)
	}
	s.wantClosed(make([]error, n)...)
	for local := range timeWaits(b, target) {
		if !before[local] {
			b.Errorf("port %s is left in TIME_WAIT", local)
		}
	}
}

// timeWaits are the local addresses of connections to a target on 127.0.0.1
// that are in TIME_WAIT, as the kernel's table writes them.
func timeWaits(b *bench, target netip.AddrPort) map[string]bool {
	b.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		b.Fatal(err)
	}
	const timeWait = "06"
	remote := fmt.Sprintf("0100007F:%04X", target.Port())
	locals := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); f[2] == remote && f[3] == timeWait {
			locals[f[1]] = true
		}
	}
	return locals
}

// dialFromNowhere dials from an address that is not ours, which fails at once
// and must give back the room that it took.
func dialFromNowhere(b *bench) {
	target := echoServer(b)
	s := b.serve(&Script{}, dialsOnly, limited(func(l *engine.Limits) { l.MaxConns = 1 }))
	for i := range 3 {
		source := netip.MustParseAddr("192.0.2.1")
		if err := s.Dial(engine.Dial{Target: target, Source: source, Count: 1}); err != nil {
			b.Fatalf("Dial: %v", err)
		}
		s.wantDialFailed(slices.Repeat([]error{syscall.EADDRNOTAVAIL}, i+1)...)
	}
	if err := s.Dial(engine.Dial{Target: target, Count: 1}); err != nil {
		b.Fatalf("Dial: %v", err)
	}
	s.wantOpened(1)
}

// stopWhileDialling stops while connections are being made to someone who
// takes none: those fail at once. A few, up to the backlog, are made.
func stopWhileDialling(b *bench) {
	const n = 20
	s := b.serve(&Script{}, dialsOnly, limited(func(l *engine.Limits) { l.Linger = 100 * time.Millisecond }))
	if err := s.Dial(engine.Dial{Target: deafListener(b), Count: n}); err != nil {
		b.Fatalf("Dial: %v", err)
	}
	eventually(b.T, "no dial succeeds", func() bool { return s.Counters()[engine.Dialled] > 0 })
	if err := s.stopNow(b); err != nil {
		b.Errorf("Stop: %v", err)
	}
	made := len(s.reasons())
	if made == n {
		b.Errorf("all %d dials succeeded at once", n)
	}
	s.wantClosed(slices.Repeat([]error{engine.ErrServerClosed}, made)...)
	s.wantDialFailed(slices.Repeat([]error{engine.ErrClosed}, n-made)...)
}

// deafListener accepts nothing and has the shortest backlog there is.
func deafListener(b *bench) netip.AddrPort {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		b.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		b.Fatal(err)
	}
	addr, err := syscall.Getsockname(fd)
	if err != nil {
		b.Fatal(err)
	}
	at := addr.(*syscall.SockaddrInet4)
	return netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
}

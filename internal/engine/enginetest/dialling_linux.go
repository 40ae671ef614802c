package enginetest

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

func init() {
	systemCases = append(systemCases,
		testCase{"Dial with Reset", dialReset},
		testCase{"Stop while dialling", stopWhileDialling},
	)
}

// dialReset closes dialled connections: their ports must not be left in
// TIME_WAIT.
func dialReset(b *bench) {
	const n = 5
	target := echoServer(b)
	s := b.serve(caller(b, target), dialsOnly, func(cfg *engine.Config) { cfg.Reset = true })
	if err := s.Dial(engine.Dial{Target: target, Count: n}); err != nil {
		b.Fatalf("Dial: %v", err)
	}
	s.wantClosed(make([]error, n)...)
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		b.Fatal(err)
	}
	const timeWait = "06"
	remote := fmt.Sprintf("0100007F:%04X", target.Port())
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); f[2] == remote && f[3] == timeWait {
			b.Errorf("a port is left in TIME_WAIT: %s", line)
		}
	}
}

// stopWhileDialling stops while connections are being made to someone who
// takes none: those fail at once.
func stopWhileDialling(b *bench) {
	const n = 5
	s := b.serve(&Script{}, dialsOnly, limited(func(l *engine.Limits) { l.Linger = 100 * time.Millisecond }))
	if err := s.Dial(engine.Dial{Target: deafListener(b), Count: n}); err != nil {
		b.Fatalf("Dial: %v", err)
	}
	s.wantOpened(1) // its backlog
	if err := s.stopNow(b); err != nil {
		b.Errorf("Stop: %v", err)
	}
	s.wantClosed(engine.ErrServerClosed)
	s.wantDialFailed(engine.ErrClosed, engine.ErrClosed, engine.ErrClosed, engine.ErrClosed)
}

// deafListener accepts nothing and has the shortest backlog there is, which is
// one connection.
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

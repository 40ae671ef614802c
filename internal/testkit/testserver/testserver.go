// Package testserver runs servers and builds programs in tests.
package testserver

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/myriad-go/myriad/tcp"
)

// Start starts the server s, waits until s listens, and returns the address on which s listens. s serves until stop is
// called or the test ends. If s.Addr is empty, s listens on a free loopback port.
func Start(t testing.TB, s *tcp.Server) (addr string, stop func()) {
	t.Helper()
	up, ended := make(chan net.Addr, 1), make(chan error, 1)
	s.Addr, s.Listening = cmp.Or(s.Addr, "127.0.0.1:0"), func(a net.Addr) { up <- a }
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- s.ListenAndServe(ctx) }()
	select {
	case a := <-up:
		addr = a.String()
	case err := <-ended:
		cancel()
		t.Fatalf("ListenAndServe: %v", err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ListenAndServe: %v", err)
		}
	})
	t.Cleanup(stop)
	return addr, stop
}

// FreeAddr returns a loopback address with a free port. The port is from a range that the kernel does not use for
// outgoing connections.
func FreeAddr(t testing.TB) string {
	t.Helper()
	const low, high, attempts = 20_000, 32_000, 100
	var err error
	for range attempts {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", low+rand.IntN(high-low))); err == nil {
			l.Close()
			return l.Addr().String()
		}
	}
	t.Fatalf("%d ports of 127.0.0.1 from %d to %d are not free: %v", attempts, low, high, err)
	return ""
}

// Build builds a command of the module in moduleDir, without cgo. It writes the program to outputDir and returns the
// path of the program.
func Build(outputDir, moduleDir, command string) (program string, err error) {
	program = filepath.Join(outputDir, filepath.Base(command))
	build := exec.Command("go", "build", "-o", program, command)
	build.Dir, build.Env = moduleDir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return program, nil
}

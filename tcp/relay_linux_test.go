package tcp

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
)

// listenRaw listens on a descriptor that takes no memory of this process.
func listenRaw(t *testing.T, backlog int) (fd int, addr string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	requireNoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	requireNoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	requireNoError(t, unix.Listen(fd, backlog))
	at, err := unix.Getsockname(fd)
	requireNoError(t, err)
	return fd, fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)
}

// An idle relay on an event loop takes two connection entries and the handlers.
func TestIdleRelayMemory(t *testing.T) {
	const few, many, most = 512, 3584, 256 // entries come 512 at a time; the heap may grow by 20 KB for other reasons
	testkit.AcquireDescriptorsOrSkip(t, 4*many+100)
	forEachLoopModel(t, func(t *testing.T, model string) {
		target, addr := listenRaw(t, 16)
		s := startServer(t, &Server{Model: model, Handler: relayTo(addr, nil)})
		open := make([]int, 0, 2*many)
		defer func() {
			for _, fd := range open {
				unix.Close(fd)
			}
		}()
		openRelays := func(n int) {
			for range n {
				client, err := dialRaw(s.addr)
				requireNoError(t, err)
				peer, _, err := unix.Accept4(target, unix.SOCK_CLOEXEC)
				requireNoError(t, err)
				open = append(open, client, peer)
				one := []byte("x") // which has come when the two are joined
				_, err = unix.Write(client, one)
				requireNoError(t, err)
				_, err = unix.Read(peer, one)
				requireNoError(t, err)
			}
		}
		openRelays(few)
		before := testkit.LiveHeapBytes()
		openRelays(many - few)
		pair := (testkit.LiveHeapBytes() - before) / (many - few)
		t.Logf("%d bytes a pair", pair)
		if pair > most {
			t.Errorf("a pair takes %d bytes, want at most %d", pair, most)
		}
		expectEqual(t, "open connections", s.Stats().Open, 2*many)
	})
}

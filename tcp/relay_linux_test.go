package tcp

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
)

// An idle relay on an event loop takes two connection entries and the handlers. Clients and
// target are mere descriptors, which take no memory of this process.
func TestIdleRelayMemory(t *testing.T) {
	const few, many, most = 512, 1536, 256 // entries come 512 at a time
	testkit.ReserveDescriptors(t, 4*many+100)
	for _, model := range Models()[1:] {
		t.Run(model, func(t *testing.T) {
			target, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			requireNoError(t, err)
			defer unix.Close(target)
			requireNoError(t, unix.Bind(target, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
			requireNoError(t, unix.Listen(target, 16))
			at, err := unix.Getsockname(target)
			requireNoError(t, err)
			s := startServer(t, &Server{Model: model, Handler: relayingHandler{to: fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)}})
			open := make([]int, 0, 2*many)
			defer func() {
				for _, fd := range open {
					unix.Close(fd)
				}
			}()
			relay := func() {
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
			for range few {
				relay()
			}
			before := liveHeapBytes()
			for range many - few {
				relay()
			}
			pair := (liveHeapBytes() - before) / (many - few)
			t.Logf("%d bytes a pair", pair)
			if pair > most {
				t.Errorf("a pair takes %d bytes, want at most %d", pair, most)
			}
			if n := s.Stats().Open; n != 2*many {
				t.Errorf("%d connections are open, want %d", n, 2*many)
			}
		})
	}
}

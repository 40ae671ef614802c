package tcp

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
)

// An idle relay on an event loop costs its two entries and what its handlers are. Clients
// and target are descriptors, which take no memory of this process.
func TestIdleRelayMemory(t *testing.T) {
	const few, many, most = 512, 1536, 256 // entries come 512 at a time
	testkit.ReserveDescriptors(t, 4*many+100)
	for _, model := range Models()[1:] {
		t.Run(model, func(t *testing.T) {
			target, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			must(t, err)
			defer unix.Close(target)
			must(t, unix.Bind(target, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
			must(t, unix.Listen(target, 16))
			at, err := unix.Getsockname(target)
			must(t, err)
			s := start(t, &Server{Model: model, Handler: forward{to: fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)}})
			open := make([]int, 0, 2*many)
			defer func() {
				for _, fd := range open {
					unix.Close(fd)
				}
			}()
			relay := func() {
				client, err := dialRaw(s.addr)
				must(t, err)
				peer, _, err := unix.Accept4(target, unix.SOCK_CLOEXEC)
				must(t, err)
				open = append(open, client, peer)
				one := []byte("x") // which has come when the two are joined
				_, err = unix.Write(client, one)
				must(t, err)
				_, err = unix.Read(peer, one)
				must(t, err)
			}
			for range few {
				relay()
			}
			before := heap()
			for range many - few {
				relay()
			}
			pair := (heap() - before) / (many - few)
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

// What a client sends much of by TLS reaches a partner in clear as it was before that.
func TestRelayOfTLS(t *testing.T) {
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			defer l.Close()
			sent := make([]byte, 8<<20)
			rand.New(rand.NewSource(1)).Read(sent)
			got := make(chan []byte, 1)
			go func() {
				c, err := l.Accept()
				if err != nil {
					got <- nil
					return
				}
				defer c.Close()
				all, _ := io.ReadAll(c)
				got <- all
			}()
			cfg, client := identity()
			s := start(t, &Server{Model: model, TLSConfig: cfg, Handler: forward{to: l.Addr().String()}})
			c := tls.Client(dial(t, s.addr), client)
			if _, err := c.Write(sent); err != nil {
				l.Close() // nothing may come
				t.Error(err)
			}
			c.CloseWrite()
			if all := <-got; !bytes.Equal(all, sent) {
				t.Errorf("%d bytes have come of %d, or others", len(all), len(sent))
			}
		})
	}
}

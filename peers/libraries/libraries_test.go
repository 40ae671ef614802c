// Package libraries has tests of libraries that know nothing of Myriad and are served by
// it, by way of myriad.NetListener and myriad.Blocking, and of such that are clients of
// package web.
package libraries

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
)

const patience = time.Minute

// underModels runs a test under every model that this machine has.
func underModels(t *testing.T, test func(t *testing.T, model string)) {
	for _, model := range []string{myriad.Goroutine, myriad.Epoll, myriad.Uring, myriad.Auto} {
		t.Run(model, func(t *testing.T) { test(t, model) })
	}
}

// serve starts a server on a free port, which ends with the test.
func serve(t *testing.T, srv *myriad.Server) (addr string) {
	t.Helper()
	srv.Addr, srv.Log = "127.0.0.1:0", slog.New(slog.DiscardHandler)
	srv.Limits.Linger = cmp.Or(srv.Limits.Linger, 50*time.Millisecond)
	ready, ended := make(chan net.Addr, 1), make(chan error, 1)
	srv.Listening = func(a net.Addr) { ready <- a }
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- srv.ListenAndServe(ctx) }()
	select {
	case a := <-ready:
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("ListenAndServe: %v", err)
			}
		})
		return a.String()
	case err := <-ended:
		t.Fatalf("ListenAndServe: %v", err)
	case <-time.After(patience):
		t.Fatal("the server does not listen")
	}
	return ""
}

// numbers is a stream that is not the same anywhere.
type numbers struct{ at, end int64 }

func (n *numbers) Read(p []byte) (int, error) {
	if n.at == n.end {
		return 0, io.EOF
	}
	m := int(min(int64(len(p)), n.end-n.at))
	for i := range m {
		at := n.at + int64(i)
		p[i] = byte(at ^ at>>8 ^ at>>16)
	}
	n.at += int64(m)
	return m, nil
}

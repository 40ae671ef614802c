// Package libraries tests libraries that know nothing about Myriad and are served by it, with tcp.NetListener
// and tcp.Blocking, and clients of package web.
package libraries

import (
	"cmp"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

const testTimeout = time.Minute

func runUnderModels(t *testing.T, test func(t *testing.T, model string)) {
	for _, model := range []string{tcp.Goroutine, tcp.Epoll, tcp.Uring, tcp.Auto} {
		t.Run(model, func(t *testing.T) { test(t, model) })
	}
}

// startServer starts a server on a free port, which ends with the test.
func startServer(t *testing.T, srv *tcp.Server) (addr string) {
	t.Helper()
	srv.Log = slog.New(slog.DiscardHandler)
	srv.Limits.Linger = cmp.Or(srv.Limits.Linger, 50*time.Millisecond)
	addr, _ = testserver.Start(t, srv)
	return addr
}

// numberStream is a deterministic stream without repetitions.
type numberStream struct{ at, end int64 }

func (n *numberStream) Read(p []byte) (int, error) {
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

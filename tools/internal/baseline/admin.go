package baseline

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/admin"
)

func (s *plainServer) Stats() tcp.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return tcp.Stats{Model: "net", Open: int64(len(s.conns)), Draining: s.closed}
}

// startAdminServer starts an HTTP server for metrics on addr, and returns when the server listens. If onListening is
// not nil, startAdminServer calls it with the server's address. The returned function stop stops the server and waits
// until the server's goroutine has ended.
func (s *plainServer) startAdminServer(ctx context.Context, addr string, onListening func(net.Addr)) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	ready := make(chan error, 2) // receives nil when Serve listens, and the error of Serve when it returns
	wait.Go(func() {
		ready <- admin.Serve(ctx, addr, admin.Config{Source: s}, func(at net.Addr) {
			if onListening != nil {
				onListening(at)
			}
			ready <- nil
		})
	})
	stop = func() {
		cancel()
		wait.Wait()
	}
	if err := <-ready; err != nil {
		stop()
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return stop, nil
}

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

// startAdminServer starts an HTTP server for metrics on addr, and waits until it listens. The function onListening, if
// not nil, receives the server's address. The function stop stops the server and waits for its end.
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

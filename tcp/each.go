package tcp

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
)

// Each calls f once for every open connection, including dialed ones. It returns after all calls have returned. If ctx
// ends first, Each returns context.Cause(ctx), and f may still be called afterwards.
//
// As with Ref.Do, f runs on the connection's event loop or goroutine. It is never called concurrently with another call
// for the same connection. Calls for different connections may be concurrent. Closing connections are skipped.
// Connections that open during the call, or have not completed their PROXY header or TLS handshake, may be skipped.
//
// Each fails with ErrServerClosed before the start and after the end. In the goroutine model, it fails with ErrFull if
// connections were skipped because their mailboxes were full. With Server.Processes, f is called only for the
// connections of the calling process. A handler must not call Each, because the call would wait for this handler.
func (s *Server) Each(ctx context.Context, f func(*Conn)) error {
	e, err := s.engineServingConns()
	if err != nil {
		return err
	}
	v, ok := e.(engine.ConnVisitor)
	if !ok {
		return ErrServerClosed
	}
	var pending atomic.Int64
	pending.Store(1) // released when every mailbox has the request
	missed, allCalled := 0, make(chan struct{})
	release := func() {
		if pending.Add(-1) == 0 {
			close(allCalled)
		}
	}
	err = v.PostToEveryConn(&engine.Shared{
		Do:     func(c *engine.Conn) { defer release(); f((*Conn)(c)) },
		OnLost: release,
	}, func() { pending.Add(1) }, func(full int) { missed = full; release() })
	if err != nil {
		return publicError(err)
	}
	select {
	case <-allCalled:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if missed > 0 {
		return fmt.Errorf("myriad: %d connections were skipped: %w", missed, ErrFull)
	}
	return nil
}

package tcp

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
)

// Each calls f once for each open connection, dialed ones included. As with Ref.Do, f runs on the
// connection's event loop or goroutine and never at the same time as another call for that
// connection; calls for different connections may be concurrent. A loop makes a few hundred calls
// a turn, so others are served meanwhile. Each returns after all calls have returned, or with
// ctx's cause when ctx ends first; f may then still be called. Connections that open meanwhile,
// and those before their first message (TLS handshake), may be omitted; closing ones are.
//
// Each fails with ErrServerClosed before the start and after the end and, in the goroutine model,
// with ErrFull if full mailboxes made it skip connections. With Server.Processes it visits the
// connections of the calling process. A handler must not call it: it would wait for itself.
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
	pending.Store(1) // for the visit itself
	missed, allCalled := 0, make(chan struct{})
	release := func() {
		if pending.Add(-1) == 0 {
			close(allCalled)
		}
	}
	err = v.PostToAllConns(&engine.Shared{
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

package tcp

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
)

// Each calls f once for each connection that is open, those that were dialled too, as
// Ref.Do does: on its event loop or goroutine, not at the same time as another call for
// it, a few hundred in a turn of a loop, so that nobody is held up. Calls for different
// connections may come at the same time. It returns when all have been called; when ctx
// ends first, with its cause, and f may still be called. A connection that opens
// meanwhile may be left out, and so is one before its first message (TLS handshake); one
// that begins to close is not called for.
//
// It fails with ErrServerClosed before the start and after the end, and, under the
// goroutine model, with ErrFull when some connections' mailboxes were full, which were
// left out. With Server.Processes it is for the connections of the process that calls
// it. It must not be called by a handler, which would wait for itself.
func (s *Server) Each(ctx context.Context, f func(*Conn)) error {
	e, err := s.serving()
	if err != nil {
		return err
	}
	v, ok := e.(engine.ConnVisitor)
	if !ok {
		return ErrServerClosed
	}
	var left atomic.Int64
	left.Store(1) // for the visit itself
	missed, ended := 0, make(chan struct{})
	less := func() {
		if left.Add(-1) == 0 {
			close(ended)
		}
	}
	err = v.VisitConns(&engine.Shared{
		Do:     func(c *engine.Conn) { defer less(); f((*Conn)(c)) },
		OnLost: less,
	}, func() { left.Add(1) }, func(full int) { missed = full; less() })
	if err != nil {
		return named(err)
	}
	select {
	case <-ended:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if missed > 0 {
		return fmt.Errorf("%d connections were left out: %w", missed, ErrFull)
	}
	return nil
}

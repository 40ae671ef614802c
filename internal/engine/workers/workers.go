// Package workers joins a pool.Pool to the engines, which know nothing of it.
package workers

import (
	"errors"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/pool"
)

// Of is a pool as the engines know it. A connection is its own job, so that nothing is
// allocated.
func Of(p *pool.Pool) engine.Pool { return workers{p} }

type workers struct{ pool *pool.Pool }

var _ pool.Dropper = (*engine.Conn)(nil)

func (w workers) TrySubmit(c *engine.Conn) error {
	return w.pool.TrySubmitTask(pool.Task{Job: c})
}

func (workers) Closed(why error) bool { return errors.Is(why, pool.ErrClosed) }

// Package workers joins a pool.Pool to the engines, which know nothing of it.
package workers

import (
	"errors"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/pool"
)

// NewEnginePool is a pool as the engines know it. A connection is its own job, so that nothing is
// allocated.
func NewEnginePool(p *pool.Pool) engine.Pool { return enginePool{p} }

type enginePool struct{ pool *pool.Pool }

var _ pool.Dropper = (*engine.Conn)(nil)

func (w enginePool) TrySubmit(c *engine.Conn) error {
	return w.pool.TrySubmitTask(pool.Task{Job: c})
}

func (enginePool) IsClosedErr(why error) bool { return errors.Is(why, pool.ErrClosed) }

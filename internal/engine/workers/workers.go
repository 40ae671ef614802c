// Package workers adapts a pool.Pool to the engines.
package workers

import (
	"errors"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/pool"
)

// NewEnginePool returns an engine.Pool that submits connections to p. Each connection is itself the job.
func NewEnginePool(p *pool.Pool) engine.Pool { return enginePool{p} }

type enginePool struct{ pool *pool.Pool }

var _ pool.Dropper = (*engine.Conn)(nil)

func (w enginePool) TrySubmit(c *engine.Conn) error {
	return w.pool.TrySubmitTask(pool.Task{Job: c})
}

func (enginePool) IsClosedErr(reason error) bool { return errors.Is(reason, pool.ErrClosed) }

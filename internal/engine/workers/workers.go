// Package workers joins a pool.Pool to the engines, which know nothing of it.
package workers

import (
	"errors"
	"math/rand/v2"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/pool"
)

// Of is a pool as one engine knows it. A connection is a job of its own, so that
// nothing is allocated. All of them have one key, so that the pool is fair between
// this engine and who else uses it. It needs none to be fair between connections: of
// each there is one job at most, and they take turns.
func Of(p *pool.Pool) engine.Pool { return workers{p, rand.Uint64()} }

type workers struct {
	pool *pool.Pool
	key  uint64
}

var _ pool.Dropper = (*engine.Conn)(nil)

func (w workers) TrySubmit(c *engine.Conn) error {
	return w.pool.TrySubmitTask(pool.Task{Job: c, Key: w.key})
}

func (workers) Closed(why error) bool { return errors.Is(why, pool.ErrClosed) }

package models_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/enginetest"
	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/engine/workers"
	"github.com/myriad-go/myriad/pool"
)

// full runs all cases with all variants and numbers of loops. Without it each case runs once per
// model with two loops; variants run only the cases that may differ.
var full = os.Getenv("MYRIAD_TEST_FULL") != ""

// TestConformance runs the suite on each model and variant.
func TestConformance(t *testing.T) {
	for _, m := range models.All() {
		t.Run(m.Name, func(t *testing.T) {
			if err := m.Available(); err != nil {
				t.Skip(err)
			}
			if full && m.HasLoops {
				t.Run("one loop", func(t *testing.T) { enginetest.Run(t, m, 1, enginetest.All) })
			}
			if testing.Short() && m.HasLoops && m.Name != "epoll" {
				enginetest.Run(t, m, 2, enginetest.Sockets)
				return
			}
			t.Run("plain", func(t *testing.T) { enginetest.Run(t, m, 2, enginetest.All) })
			if !m.HasLoops || testing.Short() {
				return
			}
			type variant struct {
				name  string
				loops int
				kind  enginetest.Kind
				model engine.Model
			}
			variants := []variant{
				{"shards", 2, enginetest.Sockets, withShards(m)},
				// The queue is mostly full, and everything possible is shed.
				{"1 worker that sheds", 1, enginetest.Handlers, withPool(m, pool.Config{Max: 1, Queue: 1, Target: 100 * time.Microsecond, Interval: 100 * time.Microsecond})},
				{"auto", 2, enginetest.Moves, withAuto(m)},
			}
			switch {
			case full:
				variants = append(variants, variant{"8 workers", 2, enginetest.All, withPool(m, fixedPool(8))})
			case m.Name != "epoll": // loops call handlers alike
				variants = variants[:1]
			}
			for _, v := range variants {
				if full {
					v.kind = enginetest.All
				}
				t.Run(v.name, func(t *testing.T) { enginetest.Run(t, v.model, v.loops, v.kind) })
			}
		})
	}
}

// withAuto returns a model that moves handlers automatically.
func withAuto(m engine.Model) engine.Model {
	m = withPool(m, fixedPool(64))
	start := m.Start
	m.Start = func(cfg engine.Config) (engine.Engine, error) {
		cfg.AutoWorkers = true
		return start(cfg)
	}
	return m
}

// withShards returns a model whose loops have separate descriptor tables.
func withShards(m engine.Model) engine.Model {
	start := m.Start
	m.Start = func(cfg engine.Config) (engine.Engine, error) {
		cfg.MaxConnsPerShard = cfg.Limits.MaxConns
		return start(cfg)
	}
	return m
}

// fixedPool configures a pool of n workers and queue entries.
func fixedPool(n int) pool.Config {
	return pool.Config{Max: n, Queue: n, FixedLimit: true, KeepQueued: true, FIFO: true}
}

// withPool returns a model that starts a pool with each engine.
func withPool(m engine.Model, settings pool.Config) engine.Model {
	start := m.Start
	m.Start = func(cfg engine.Config) (engine.Engine, error) {
		p, err := pool.New(settings)
		if err != nil {
			return nil, err
		}
		cfg.Pool = workers.NewEnginePool(p)
		e, err := start(cfg)
		if err != nil {
			closePool(p)
			return nil, err
		}
		migrator, _ := e.(engine.Migrator)
		return &engineWithPool{Engine: e, Migrator: migrator, pool: p}, nil
	}
	return m
}

func closePool(p *pool.Pool) { _, _ = p.Close(context.Background()) }

// engineWithPool closes the pool with the engine.
type engineWithPool struct {
	engine.Engine
	engine.Migrator
	pool *pool.Pool
	end  sync.Once
}

func (p *engineWithPool) Stop(ctx context.Context) error {
	err := p.Engine.Stop(ctx)
	p.end.Do(func() { closePool(p.pool) })
	return err
}

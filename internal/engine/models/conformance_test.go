package models_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/enginetest"
	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/engine/workers"
	"github.com/myriad-go/myriad/pool"
)

func TestConformance(t *testing.T) {
	for _, m := range models.All() {
		t.Run(m.Name, func(t *testing.T) {
			if err := m.Available(); err != nil {
				t.Skip(err)
			}
			enginetest.Run(t, m)
		})
	}
}

// Handlers on workers keep every promise: with enough of them, and with one whose
// queue is full most of the time, and which sheds all it can.
func TestConformanceWithWorkers(t *testing.T) {
	for _, m := range models.All()[1:] { // the first has no loops to hold up
		for name, cfg := range map[string]pool.Config{
			"8 workers":           noRules(8),
			"1 worker that sheds": {Max: 1, Queue: 1, Target: 100 * time.Microsecond, Interval: 100 * time.Microsecond},
		} {
			t.Run(m.Name+" with "+name, func(t *testing.T) {
				if err := m.Available(); err != nil {
					t.Skip(err)
				}
				enginetest.Run(t, withPool(m, cfg))
			})
		}
	}
}

// So does a model that moves handlers between loops and workers by itself.
func TestConformanceOfAuto(t *testing.T) {
	for _, m := range models.All()[1:] {
		t.Run(m.Name, func(t *testing.T) {
			if err := m.Available(); err != nil {
				t.Skip(err)
			}
			start := withPool(m, noRules(64)).Start
			m.Start = func(cfg engine.Config) (engine.Engine, error) {
				cfg.Auto = true
				return start(cfg)
			}
			enginetest.Run(t, m)
		})
	}
}

// So do loops that have a descriptor table each.
func TestConformanceOfShards(t *testing.T) {
	for _, m := range models.All()[1:] {
		t.Run(m.Name, func(t *testing.T) {
			if err := m.Available(); err != nil {
				t.Skip(err)
			}
			start := m.Start
			m.Start = func(cfg engine.Config) (engine.Engine, error) {
				cfg.Shard = cfg.Limits.MaxConns
				return start(cfg)
			}
			enginetest.Run(t, m)
		})
	}
}

// noRules is a pool of n workers with as much room.
func noRules(n int) pool.Config { return pool.Config{Max: n, Queue: n, Off: pool.AllRules} }

// withPool is a model that starts a pool with each engine.
func withPool(m engine.Model, settings pool.Config) engine.Model {
	start := m.Start
	m.Start = func(cfg engine.Config) (engine.Engine, error) {
		p, err := pool.New(settings)
		if err != nil {
			return nil, err
		}
		cfg.Pool = workers.Of(p)
		e, err := start(cfg)
		if err != nil {
			closePool(p)
			return nil, err
		}
		return &pooled{Engine: e, pool: p}, nil
	}
	return m
}

func closePool(p *pool.Pool) { _, _ = p.Close(context.Background()) }

// pooled ends the pool with the engine.
type pooled struct {
	engine.Engine
	pool *pool.Pool
	end  sync.Once
}

func (p *pooled) Stop(ctx context.Context) error {
	err := p.Engine.Stop(ctx)
	p.end.Do(func() { closePool(p.pool) })
	return err
}

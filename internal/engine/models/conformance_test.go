package models_test

import (
	"context"
	"sync"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/enginetest"
	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/engine/workers"
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

// Handlers on workers keep every promise: with enough of them, and with one,
// whose queue is full most of the time.
func TestConformanceWithWorkers(t *testing.T) {
	for _, m := range models.All()[1:] { // the first has no loops to hold up
		for name, n := range map[string]int{"8 workers": 8, "1 worker": 1} {
			t.Run(m.Name+" with "+name, func(t *testing.T) {
				if err := m.Available(); err != nil {
					t.Skip(err)
				}
				enginetest.Run(t, withWorkers(m, n))
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
			start := withWorkers(m, 64).Start
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

// withWorkers is a model that starts n workers with each engine.
func withWorkers(m engine.Model, n int) engine.Model {
	start := m.Start
	m.Start = func(cfg engine.Config) (engine.Engine, error) {
		pool := workers.New(n)
		cfg.Pool = pool
		e, err := start(cfg)
		if err != nil {
			pool.Close()
			return nil, err
		}
		return &pooled{Engine: e, pool: pool}, nil
	}
	return m
}

// pooled ends the pool with the engine.
type pooled struct {
	engine.Engine
	pool *workers.Pool
	end  sync.Once
}

func (p *pooled) Stop(ctx context.Context) error {
	err := p.Engine.Stop(ctx)
	p.end.Do(p.pool.Close)
	return err
}

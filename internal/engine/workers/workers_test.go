package workers_test

import (
	"context"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/workers"
	"github.com/myriad-go/myriad/pool"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// owner is a Loop that records returned connections.
type owner struct {
	engine.Loop
	returned chan error
}

func (o owner) ReturnFromWorker(_ *engine.Conn, why error) { o.returned <- why }

// TestSubmitAllocatesNothing checks that submitting and returning a connection does not allocate.
func TestSubmitAllocatesNothing(t *testing.T) {
	p, err := pool.New(pool.Config{Max: 1})
	if err != nil {
		t.Fatal(err)
	}
	returned := make(chan error, 1)
	host := engine.Runtime{Now: engine.MonotonicNow, Counters: &engine.Counters{}, Loop: owner{returned: returned}}
	var c engine.Conn
	c.Bind(&host, 0, 0)
	w := workers.NewEnginePool(p)
	turn := func() {
		if err := w.TrySubmit(&c); err != nil {
			t.Fatal(err)
		}
		if why := <-returned; why != nil {
			t.Fatalf("not run: %v", why)
		}
	}
	turn() // the worker starts
	if n := testing.AllocsPerRun(1000, turn); n >= 1 {
		t.Errorf("%v allocations for each submit, want none", n)
	}
	if _, err := p.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := w.TrySubmit(&c); err == nil || !w.IsClosedErr(err) {
		t.Errorf("a closed pool answers %v; want an error that says so", err)
	}
	for _, err := range []error{pool.ErrFull, pool.ErrShed} {
		if w.IsClosedErr(err) {
			t.Errorf("%v is taken for the end of the pool", err)
		}
	}
}

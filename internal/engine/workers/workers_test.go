package workers_test

import (
	"context"
	"testing"

	"github.com/myriad-go/myriad/internal/leaktest"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/workers"
	"github.com/myriad-go/myriad/pool"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// A connection goes to the pool and back without an allocation.
func TestSubmitAllocatesNothing(t *testing.T) {
	p, err := pool.New(pool.Config{Max: 1})
	if err != nil {
		t.Fatal(err)
	}
	returned := make(chan error, 1)
	host := engine.Host{Now: engine.Since, Counters: &engine.Counters{}, Returned: func(_ *engine.Conn, why error) { returned <- why }}
	var c engine.Conn
	c.Bind(&host, 0, 0)
	w := workers.Of(p)
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
	if err := w.TrySubmit(&c); err == nil || !w.Closed(err) {
		t.Errorf("a closed pool answers %v; want an error that says so", err)
	}
	for _, err := range []error{pool.ErrFull, pool.ErrShed} {
		if w.Closed(err) {
			t.Errorf("%v is taken for the end of the pool", err)
		}
	}
}

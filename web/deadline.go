package web

import (
	"context"
	"os"
	"sync"
	"time"
)

// deadline ends waits: of reads of a body, and of writes. Its lock is the exchange's.
type deadline struct {
	expired bool
	timer   *time.Timer
	ctx     context.Context // ends when it is over; nil if there is none
	cancel  context.CancelFunc
}

// callWithContext calls f with a context that ends at the deadline.
func (d *deadline) callWithContext(mu *sync.Mutex, f func(context.Context) error) error {
	mu.Lock()
	ctx := d.ctx
	mu.Unlock()
	if ctx == nil {
		ctx = context.Background()
	}
	err := f(ctx)
	if err != nil && ctx.Err() != nil {
		return os.ErrDeadlineExceeded
	}
	return err
}

// set has f called, with mu, at t.
func (d *deadline) set(mu *sync.Mutex, t time.Time, onExpiry func()) {
	mu.Lock()
	defer mu.Unlock()
	d.reset()
	if t.IsZero() {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.ctx, d.cancel = ctx, cancel
	d.timer = time.AfterFunc(time.Until(t), func() {
		mu.Lock()
		defer mu.Unlock()
		if d.ctx == ctx {
			d.expired = true
			cancel()
			onExpiry()
		}
	})
}

func (d *deadline) reset() {
	d.stopTimer()
	*d = deadline{}
}

// stopTimer stops its timer. Whether it was over is still known.
func (d *deadline) stopTimer() {
	if d.timer != nil {
		d.timer.Stop()
		d.cancel()
	}
}

package web

import (
	"context"
	"os"
	"sync"
	"time"
)

// deadline limits the time for reading a request body or for writing a response. exchange.mu guards each deadline.
type deadline struct {
	expired bool
	timer   *time.Timer
	ctx     context.Context // ends at the deadline; nil if there is no deadline
	cancel  context.CancelFunc
}

func (d *deadline) callUntilDeadline(mu *sync.Mutex, f func(context.Context) error) error {
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

// set changes the deadline to t, or removes the deadline if t is zero. When t is reached, onExpiryLocked is called with
// mu locked. The caller of set must not hold mu.
func (d *deadline) set(mu *sync.Mutex, t time.Time, onExpiryLocked func()) {
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
			onExpiryLocked()
		}
	})
}

func (d *deadline) reset() {
	d.stopTimerAndCancelContextLocked()
	*d = deadline{}
}

func (d *deadline) stopTimerAndCancelContextLocked() {
	if d.timer != nil {
		d.timer.Stop()
		d.cancel()
	}
}

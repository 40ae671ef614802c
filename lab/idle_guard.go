package lab

import (
	"context"
	"fmt"
)

// watchFree returns a context that ends, with the reason as its cause, when memory
// is about to run out: when half of what is to be kept is gone. The returned
// function releases it and waits. It watches Full workloads only.
func (m *measurement) watchFree(ctx context.Context) (context.Context, func()) {
	if !m.workload.Full {
		return ctx, func() {}
	}
	room, err := m.room()
	if err != nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	guard := &memoryGuard{keep: room.kept(leastKept), room: m.room, over: func(err error) {
		cancel(fmt.Errorf("%w; %s of %s connections were open",
			err, thousands(float64(m.open.Load())), thousands(float64(m.workload.Connections))))
	}}
	guard.begin()
	return ctx, func() {
		guard.end()
		cancel(nil)
	}
}

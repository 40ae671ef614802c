package baseline

import (
	"context"
	"fmt"
	"runtime"
	"sync"
)

// MaxParked is the most goroutines that Park parks.
const MaxParked = 64 << 20

// ParkGoroutines parks n goroutines, 1 to MaxParked, each waiting for the same channel and doing
// nothing else, and calls sample before the first of them, with "ready", and when all wait,
// with "parked". So what a goroutine takes is seen without a connection. The process should
// do nothing else. All of them have ended when it returns. It fails when sample does, or
// when ctx ends.
func ParkGoroutines(ctx context.Context, n int, sample func(checkpoint string) error) error {
	if n < 1 || n > MaxParked {
		return fmt.Errorf("%d goroutines; expected 1 to %d", n, MaxParked)
	}
	runtime.GC()
	if err := sample("ready"); err != nil {
		return err
	}
	release := make(chan struct{})
	var begun, ended sync.WaitGroup
	defer ended.Wait()
	defer close(release)
	for range n {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		begun.Add(1)
		ended.Go(func() {
			begun.Done()
			<-release
		})
	}
	begun.Wait()
	return sample("parked")
}

package baseline

import (
	"context"
	"fmt"
	"runtime"
	"sync"
)

const MaxParked = 64 << 20

// ParkGoroutines starts n goroutines that wait on a channel. To measure their memory, it calls the function sample with
// "ready" before the start, and with "parked" when all goroutines wait. n must be from 1 to MaxParked.
//
// If sample fails or ctx ends, ParkGoroutines returns an error. When it returns, all goroutines have ended.
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

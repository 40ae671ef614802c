package upgrade

import (
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
)

func newTestOrderConns(t *testing.T) (supervisor, worker *OrderConn) {
	t.Helper()
	supervisor, theirs, err := NewOrderConnPair()
	testkit.RequireNoError(t, err)
	t.Cleanup(supervisor.Close)
	fd, err := unix.Dup(int(theirs.Fd()))
	theirs.Close()
	if err == nil {
		worker, err = InheritOrderConn(fd)
	}
	testkit.RequireNoError(t, err)
	t.Cleanup(worker.Close)
	return supervisor, worker
}

// TestOrderConn sends more descriptors than a message can hold, aborts an order, and sends another.
func TestOrderConn(t *testing.T) {
	supervisor, worker := newTestOrderConns(t)
	over := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		defer close(over)
		worker.ServeOrders(func(ctx context.Context, order string, files []*os.File) any {
			closeFiles(files)
			if order == "wait" {
				<-ctx.Done()
				ended <- ctx.Err()
			}
			return len(files)
		})
	}()
	for _, n := range []int{0, 3, 450} {
		files := make([]*os.File, n)
		for i := range files {
			files[i] = os.Stdin
		}
		got := -1
		if err := supervisor.SendOrderAndAwaitReply(t.Context(), "count", &got, files...); err != nil || got != n {
			t.Errorf("%d descriptors: %d have come, %v", n, got, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := supervisor.SendOrderAndAwaitReply(ctx, "wait", &got); err != nil || <-ended == nil {
			t.Errorf("an order that was given up: %v; want its answer", err)
		}
		cancel()
	}
	supervisor.Close()
	<-over
	if err := supervisor.SendOrderAndAwaitReply(t.Context(), "count", new(int)); err == nil {
		t.Error("a link that has ended answers")
	}
}

func TestOrderConnClosed(t *testing.T) {
	supervisor, worker := newTestOrderConns(t)
	carriesOut, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		worker.ServeOrders(func(ctx context.Context, _ string, _ []*os.File) any {
			close(carriesOut)
			<-ctx.Done() // the supervisor's end
			return nil
		})
	}()
	asked := make(chan error, 1)
	go func() { asked <- supervisor.SendOrderAndAwaitReply(context.Background(), "wait", new(any)) }()
	<-carriesOut
	supervisor.Close()
	if err := <-asked; err == nil {
		t.Error("an order is answered by a link that was closed")
	}
	<-over
}

// TestOrderConnLateReply sends an order after one whose reply came too late.
func TestOrderConnLateReply(t *testing.T) {
	supervisor, worker := newTestOrderConns(t)
	release, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		worker.ServeOrders(func(_ context.Context, order string, _ []*os.File) any {
			if order == "late" {
				<-release
			}
			return order
		})
	}()
	var got string
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-Timeout)) // so that the wait ends at once
	if err := supervisor.SendOrderAndAwaitReply(ctx, "late", &got); err == nil {
		t.Errorf("an order without a reply returned %q; want an error", got)
	}
	cancel()
	close(release)
	if err := supervisor.SendOrderAndAwaitReply(t.Context(), "next", &got); err != nil || got != "next" {
		t.Errorf("the next order returned %q, %v; want its own reply", got, err)
	}
	supervisor.Close()
	<-over
}

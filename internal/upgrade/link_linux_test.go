package upgrade

import (
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// linked are both ends of a link.
func linked(t *testing.T) (supervisor, worker *Link) {
	t.Helper()
	supervisor, theirs, err := NewLink()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(supervisor.Close)
	fd, err := unix.Dup(int(theirs.Fd()))
	theirs.Close()
	if err == nil {
		worker, err = InheritLink(fd)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(worker.Close)
	return supervisor, worker
}

// TestLink asks with more descriptors than a message takes, has an order ended, and asks again.
func TestLink(t *testing.T) {
	supervisor, worker := linked(t)
	over := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		defer close(over)
		worker.Answer(func(ctx context.Context, order string, files []*os.File) any {
			closeAll(files)
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
		if err := supervisor.Ask(t.Context(), "count", &got, files...); err != nil || got != n {
			t.Errorf("%d descriptors: %d have come, %v", n, got, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := supervisor.Ask(ctx, "wait", &got); err != nil || <-ended == nil {
			t.Errorf("an order that was given up: %v; want its answer", err)
		}
		cancel()
	}
	supervisor.Close()
	<-over
	if err := supervisor.Ask(t.Context(), "count", new(int)); err == nil {
		t.Error("a link that has ended answers")
	}
}

// TestLinkEnds has the other side end while an order is carried out.
func TestLinkEnds(t *testing.T) {
	supervisor, worker := linked(t)
	carriesOut, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		worker.Answer(func(ctx context.Context, _ string, _ []*os.File) any {
			close(carriesOut)
			<-ctx.Done() // the supervisor's end
			return nil
		})
	}()
	asked := make(chan error, 1)
	go func() { asked <- supervisor.Ask(context.Background(), "wait", new(any)) }()
	<-carriesOut
	supervisor.Close()
	if err := <-asked; err == nil {
		t.Error("an order is answered by a link that was closed")
	}
	<-over
}

package upgrade

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
)

// Link is between a supervisor and one of its worker processes, in whose name it hands
// connections over or takes them. The supervisor sends an order with descriptors; the worker
// sends an answer to each.
type Link struct {
	control
	asking sync.Mutex // held by who waits for an answer
}

const answered = "answer"

// NewLink makes a link; the second end is for the worker.
func NewLink() (l *Link, theirs *os.File, err error) {
	pair, err := sock.RightsPair()
	if err != nil {
		return nil, nil, err
	}
	return &Link{control: control{pair[0]}}, pair[1], nil
}

// InheritLink makes the worker's end of a descriptor.
func InheritLink(fd int) (*Link, error) {
	c, err := inherit(fd, "link")
	if err != nil {
		return nil, fmt.Errorf("descriptor %d is no link to a supervisor: %w", fd, err)
	}
	return &Link{control: c}, nil
}

// Ask sends an order with descriptors, which stay the caller's, and waits for the answer, which
// is JSON. When ctx ends the worker is told so; then it has Timeout for its answer, as without a
// deadline. It fails when the worker ends.
func (l *Link) Ask(ctx context.Context, order string, answer any, files ...*os.File) error {
	l.asking.Lock()
	defer l.asking.Unlock()
	if err := l.send(order, len(files), files...); err != nil {
		return err
	}
	within := Timeout
	if end, ok := ctx.Deadline(); ok {
		within += time.Until(end)
	}
	defer context.AfterFunc(ctx, func() { _ = l.send(abort, struct{}{}) })() // if it fails, so does expect
	more, err := l.expect(context.Background(), answered, answer, within)
	closeAll(more)
	return err
}

// Answer has orders carried out, one at a time, until the other side ends. do owns the
// descriptors; its context ends when the supervisor's does, and with the supervisor.
func (l *Link) Answer(do func(ctx context.Context, order string, files []*os.File) (answer any)) {
	var busy sync.WaitGroup
	defer busy.Wait()
	ctx, end := context.WithCancel(context.Background())
	defer end()
	cancel := func() {} // the order under way
	var files []*os.File
	for {
		word, rest, fds, err := l.read()
		if err != nil {
			closeAll(files)
			return
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), word))
		}
		var n int
		switch {
		case word == abort:
			cancel()
		case len(rest) == 0: // some of the descriptors
		case json.Unmarshal(rest, &n) != nil || n != len(files):
			closeAll(files)
			files = nil
		default:
			with := files
			files = nil
			until, stop := context.WithCancel(ctx)
			cancel = stop
			busy.Go(func() {
				defer stop()
				_ = l.send(answered, do(until, word, with)) // it fails with the supervisor
			})
		}
	}
}

// Close ends the link.
func (l *Link) Close() { _ = l.file.Close() }

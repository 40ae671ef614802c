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

// OrderConn is a connection between a supervisor and one of its workers. The supervisor uses it during a handoff to
// send orders with descriptors. The worker replies to every order.
type OrderConn struct {
	controlSocket
	sending sync.Mutex // held while waiting for a reply
	orders  int        // sent by the supervisor; guarded by sending
}

const kindReply = "answer"

// numberedReply is a reply to the order with the given number. Both ends number the orders from 1.
type numberedReply[T any] struct {
	Order int `json:"order"`
	Reply T   `json:"reply"`
}

// NewOrderConnPair returns both ends of a connection between a supervisor and a worker. The worker process must inherit
// workerEnd and pass its descriptor to InheritOrderConn.
func NewOrderConnPair() (supervisorEnd *OrderConn, workerEnd *os.File, err error) {
	pair, err := sock.NewFDSocketpair()
	if err != nil {
		return nil, nil, err
	}
	return &OrderConn{controlSocket: controlSocket{pair[0]}}, pair[1], nil
}

// InheritOrderConn returns the worker's end of an OrderConn. fd is the descriptor that the worker has inherited.
func InheritOrderConn(fd int) (*OrderConn, error) {
	c, err := inheritControlSocket(fd, "link")
	if err != nil {
		return nil, fmt.Errorf("descriptor %d is not connected to a supervisor: %w", fd, err)
	}
	return &OrderConn{controlSocket: c}, nil
}

// SendOrderAndAwaitReply sends an order with files to the worker, waits for the worker's JSON reply, and decodes it
// into reply. The files still belong to the caller.
//
// When ctx ends, SendOrderAndAwaitReply tells the worker to abort the order, and still waits for the reply. If no reply
// has arrived when Timeout has passed after the deadline of ctx, it fails. Without a deadline, it fails if no reply
// arrives within Timeout. A reply that arrives later is ignored.
func (l *OrderConn) SendOrderAndAwaitReply(ctx context.Context, order string, reply any, files ...*os.File) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	if err := l.sendMessage(order, len(files), files...); err != nil {
		return err
	}
	l.orders++
	number := l.orders
	timeout := Timeout
	if end, ok := ctx.Deadline(); ok {
		timeout += time.Until(end)
	}
	defer context.AfterFunc(ctx, func() { _ = l.sendMessage(kindAbort, number) })() // if it fails, readExpectedMessage fails as well
	for until := time.Now().Add(timeout); ; {
		var r numberedReply[json.RawMessage]
		more, err := l.readExpectedMessage(context.Background(), kindReply, &r, max(time.Until(until), 1))
		closeFiles(more)
		if err != nil {
			return err
		}
		if r.Order == number {
			return json.Unmarshal(r.Reply, reply)
		}
	}
}

// ServeOrders calls the function handle for each order and sends the returned answer as JSON. It returns when the
// supervisor has closed the connection and all calls of handle have ended. handle must close the files. The context
// passed to handle ends when the supervisor aborts the order or exits.
func (l *OrderConn) ServeOrders(handle func(ctx context.Context, order string, files []*os.File) (answer any)) {
	var busy sync.WaitGroup
	defer busy.Wait()
	ctx, end := context.WithCancel(context.Background())
	defer end()
	cancel, orders := func() {}, 0 // cancel cancels the last order
	var files []*os.File
	for {
		word, rest, fds, err := l.readMessage()
		if err != nil {
			closeFiles(files)
			return
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), word))
		}
		var n int
		switch {
		case word == kindAbort: // it may arrive after the next order
			if json.Unmarshal(rest, &n) == nil && n == orders {
				cancel()
			}
		case len(rest) == 0: // a part of the descriptors
		case json.Unmarshal(rest, &n) != nil || n != len(files):
			orders++
			closeFiles(files)
			files = nil
		default:
			orders++
			with, number := files, orders
			files = nil
			until, stop := context.WithCancel(ctx)
			cancel = stop
			busy.Go(func() {
				defer stop()
				// It fails if the supervisor has exited.
				_ = l.sendMessage(kindReply, numberedReply[any]{number, handle(until, word, with)})
			})
		}
	}
}

func (l *OrderConn) Close() { _ = l.file.Close() }

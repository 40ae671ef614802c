package baseline

import (
	"container/heap"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/app"
)

// The following constants are ways in which a server sends heartbeats.
const (
	// HeartbeatTickers has a goroutine and a ticker for each connection.
	HeartbeatTickers = "tickers"
	// HeartbeatBatches divides the connections into heartbeatBatches batches, with a goroutine and a ticker each.
	HeartbeatBatches = "batches"
	// HeartbeatHeap has one goroutine, which waits for the earliest deadline in a heap of all connections.
	HeartbeatHeap = "heap"
)

var heartbeatShapes = []string{HeartbeatTickers, HeartbeatBatches, HeartbeatHeap}

const heartbeatBatches = 64

// withSharedHeartbeatsAndReadDeadline returns a handler that adds heartbeats and read deadlines to the given handler. A
// goroutine that sends heartbeats serves many connections. With HeartbeatTickers, in contrast, each connection has a
// goroutine for its heartbeats.
func (s *plainServer) withSharedHeartbeatsAndReadDeadline(ctx context.Context, handle func(net.Conn, int), o Options) func(net.Conn, int) {
	start := s.startHeartbeatBatches
	if o.HeartbeatBy == HeartbeatHeap {
		start = s.startHeartbeatHeap
	}
	add := start(ctx, o.Heartbeat)
	return func(conn net.Conn, buffer int) {
		add(conn)
		handle(deadlineConn{conn, (maxMissedHeartbeats + 1) * o.Heartbeat, conn.SetReadDeadline}, buffer)
	}
}

func sendHeartbeatOrClose(conn net.Conn, timeout time.Duration) (sent bool) {
	_ = conn.SetWriteDeadline(time.Now().Add(timeout))
	_, err := io.WriteString(conn, app.Heartbeat)
	if err != nil {
		conn.Close()
	}
	return err == nil
}

func sleepOrUntilDone(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (s *plainServer) startHeartbeatBatches(ctx context.Context, interval time.Duration) (add func(net.Conn)) {
	batches := make([]sync.Map, heartbeatBatches)
	for i := range batches {
		s.wait.Go(func() {
			ticker := time.NewTicker(interval)
			defer ticker.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
				}
				for conn := range batches[i].Range {
					if !sendHeartbeatOrClose(conn.(net.Conn), interval) {
						batches[i].Delete(conn)
					}
				}
			}
		})
	}
	var next atomic.Uint32
	return func(conn net.Conn) { batches[next.Add(1)%heartbeatBatches].Store(conn, nil) }
}

type dueHeartbeat struct {
	at   time.Time
	conn net.Conn
}

type heartbeatHeap []dueHeartbeat

func (h heartbeatHeap) Len() int           { return len(h) }
func (h heartbeatHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h heartbeatHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heartbeatHeap) Push(x any)        { *h = append(*h, x.(dueHeartbeat)) }
func (h *heartbeatHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = dueHeartbeat{}
	*h = (*h)[:last]
	return x
}

func (s *plainServer) startHeartbeatHeap(ctx context.Context, interval time.Duration) (add func(net.Conn)) {
	var mu sync.Mutex
	var all heartbeatHeap
	push := func(at time.Time, conn net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		heap.Push(&all, dueHeartbeat{at, conn})
	}
	// popIfDue removes and returns the first heartbeat if it is due. Otherwise, wait is the time until it is due, at
	// most interval, because no heartbeat added later is due earlier.
	popIfDue := func() (first dueHeartbeat, wait time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if len(all) == 0 {
			return first, interval
		}
		if wait = time.Until(all[0].at); wait <= 0 {
			first = heap.Pop(&all).(dueHeartbeat)
		}
		return first, wait
	}
	s.wait.Go(func() {
		for ctx.Err() == nil {
			first, wait := popIfDue()
			if wait > 0 {
				sleepOrUntilDone(ctx, wait)
			} else if sendHeartbeatOrClose(first.conn, interval) {
				push(first.at.Add(interval), first.conn)
			}
		}
	})
	return func(conn net.Conn) { push(time.Now().Add(interval), conn) }
}

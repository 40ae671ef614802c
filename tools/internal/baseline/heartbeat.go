package baseline

import (
	"io"
	"net"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/app"
)

// missedBeats is how many heartbeats a client may leave without a byte.
const missedBeats = 2

// beating adds heartbeats to a handler in the way that most code does: each
// connection has a second goroutine with a time.Ticker, which sends one every time
// whatever the client does, and the reader moves its deadline with every Read.
// It is that of the chat example of gorilla/websocket, which most others come
// from.
func beating(handle func(net.Conn, int), every time.Duration) func(net.Conn, int) {
	return func(conn net.Conn, buffer int) {
		var beats sync.WaitGroup
		done := make(chan struct{})
		beats.Go(func() { beat(conn, every, done) })
		handle(deadlineConn{conn, (missedBeats + 1) * every}, buffer)
		close(done)
		conn.Close() // so that a Write that waits ends
		beats.Wait()
	}
}

// beat sends heartbeats until done or until one can't be sent.
func beat(conn net.Conn, every time.Duration, done chan struct{}) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			if _, err := io.WriteString(conn, app.Heartbeat); err != nil {
				conn.Close() // so that the reader ends
				return
			}
		}
	}
}

// deadlineConn waits for input for so long.
type deadlineConn struct {
	net.Conn
	timeout time.Duration
}

func (c deadlineConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

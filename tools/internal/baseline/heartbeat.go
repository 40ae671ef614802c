package baseline

import (
	"io"
	"net"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/app"
)

// maxMissedHeartbeats is the number of heartbeats that a client may miss.
const maxMissedHeartbeats = 2

// withHeartbeatsAndReadDeadline adds heartbeats to a handler in the way most code does. Each connection has a second
// goroutine with a time.Ticker, which sends a heartbeat at each tick regardless of the client. The reader extends its
// deadline with every Read. The model is the chat example of gorilla/websocket, from which most other code derives.
func withHeartbeatsAndReadDeadline(handle func(net.Conn, int), interval time.Duration) func(net.Conn, int) {
	return func(conn net.Conn, buffer int) {
		var beats sync.WaitGroup
		done := make(chan struct{})
		beats.Go(func() { sendHeartbeats(conn, interval, done) })
		handle(deadlineConn{conn, (maxMissedHeartbeats + 1) * interval}, buffer)
		close(done)
		conn.Close() // ends a Write that blocks
		beats.Wait()
	}
}

// sendHeartbeats sends heartbeats until done is closed or a write fails.
func sendHeartbeats(conn net.Conn, interval time.Duration, done chan struct{}) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			if _, err := io.WriteString(conn, app.Heartbeat); err != nil {
				conn.Close() // ends the reader
				return
			}
		}
	}
}

// deadlineConn applies a timeout to each Read.
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

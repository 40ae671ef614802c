package baseline

import (
	"io"
	"net"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/app"
)

// maxMissedHeartbeats is how many heartbeats a client may miss.
const maxMissedHeartbeats = 2

// withHeartbeatsAndReadDeadline adds heartbeats to a handler the way most code does: each connection has a second
// goroutine with a time.Ticker, which sends one every time whatever the client does, and the reader
// extends its deadline with every Read. It follows the chat example of gorilla/websocket, from
// which most others derive.
func withHeartbeatsAndReadDeadline(handle func(net.Conn, int), interval time.Duration) func(net.Conn, int) {
	return func(conn net.Conn, buffer int) {
		var beats sync.WaitGroup
		done := make(chan struct{})
		beats.Go(func() { sendHeartbeats(conn, interval, done) })
		handle(deadlineConn{conn, (maxMissedHeartbeats + 1) * interval}, buffer)
		close(done)
		conn.Close() // so that a Write that waits ends
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
				conn.Close() // so that the reader ends
				return
			}
		}
	}
}

// deadlineConn limits each Read by a timeout.
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

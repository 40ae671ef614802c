package baseline

import (
	"io"
	"net"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/app"
)

const maxMissedHeartbeats = 2

// withHeartbeatsAndReadDeadline adds heartbeats to a handler, as gorilla/websocket's chat example does. Reads fail
// after maxMissedHeartbeats+1 intervals without input.
func withHeartbeatsAndReadDeadline(handle func(net.Conn, int), interval time.Duration) func(net.Conn, int) {
	return func(conn net.Conn, buffer int) {
		var beats sync.WaitGroup
		done := make(chan struct{})
		beats.Go(func() { sendHeartbeatsOrCloseConn(conn, interval, done) })
		handle(deadlineConn{conn, (maxMissedHeartbeats + 1) * interval, conn.SetReadDeadline}, buffer)
		close(done)
		conn.Close() // ends a Write that blocks
		beats.Wait()
	}
}

func sendHeartbeatsOrCloseConn(conn net.Conn, interval time.Duration, done chan struct{}) {
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

type deadlineConn struct {
	net.Conn
	timeout time.Duration
	set     func(time.Time) error // sets the deadline before each Read
}

func (c deadlineConn) Read(p []byte) (int, error) {
	if err := c.set(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

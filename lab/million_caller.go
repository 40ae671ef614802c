package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// MillionCaller is what became of the connection that has asked for the broadcast.
type MillionCaller struct {
	// Messages is how many lines it has sent, Heartbeats how many it got.
	Messages   int64 `json:"messages"`
	Heartbeats int64 `json:"heartbeats"`
	// Error says why it did not get the broadcast itself, "" when it did.
	Error string `json:"error,omitempty"`
}

// caller is that connection. It has a goroutine of its own, which reads until the
// connection is closed.
type caller struct {
	conn  net.Conn
	heard chan struct{} // closed when the broadcast is there, or nothing will come
	done  chan struct{} // closed when the goroutine has ended
	seen  MillionCaller // the goroutine's until then
}

// callBound bounds the connecting, and the waiting for the broadcast when all others
// have it.
const callBound = 10 * time.Second

// call asks the server for a broadcast.
func call(ctx context.Context, addr string) (*caller, error) {
	conn, err := dialTraceless(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("asking for the broadcast: %w", err)
	}
	if _, err := io.WriteString(conn, "!"+news+"\n"); err != nil {
		conn.Close()
		return nil, fmt.Errorf("asking for the broadcast: %w", err)
	}
	c := &caller{conn: conn, heard: make(chan struct{}), done: make(chan struct{})}
	c.seen.Messages = 1
	go c.read()
	return c, nil
}

// dialTraceless connects so that nothing is left of the connection when it is closed: no
// TIME_WAIT.
func dialTraceless(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: callBound}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		err = tcp.SetLinger(0)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// read reads what the server sends.
func (c *caller) read() {
	defer close(c.done)
	heard := false
	hear := func(problem string) {
		if !heard {
			heard, c.seen.Error = true, problem
			close(c.heard)
		}
	}
	for lines := bufio.NewReaderSize(c.conn, 4096); ; {
		switch line, err := lines.ReadSlice('\n'); {
		case errors.Is(err, net.ErrClosed):
			hear("it did not come")
			return
		case err != nil:
			hear(err.Error())
			return
		case string(line) == Heartbeat:
			c.seen.Heartbeats++
		case string(line) == news+"\n":
			hear("")
		default:
			hear(fmt.Sprintf("the server said %.100q", line))
		}
	}
}

// end awaits the broadcast, closes the connection and waits for the goroutine.
func (c *caller) end() *MillionCaller {
	timer := time.NewTimer(callBound)
	defer timer.Stop()
	select {
	case <-c.heard:
	case <-timer.C:
	}
	c.conn.Close()
	<-c.done
	return &c.seen
}

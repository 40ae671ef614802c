package supervisor

import (
	"bufio"
	"net"
	"os/exec"
	"time"
)

// child is the life of a process. Three goroutines of its own, which end with it,
// listen to its life-line, write to it, and wait for its end.
type child struct {
	cmd   *exec.Cmd
	line  *net.UnixConn
	out   *outbox
	heard func(frame []byte) // is told of broadcasts
	stuck bool               // it had no room for the last broadcast; the relay's
	term  func()             // sends a SIGTERM, once
	end   error              // set before hasEnded is closed

	isServing, hasLeft, hasEnded chan struct{}
}

func (c *child) pid() int                 { return c.cmd.Process.Pid }
func (c *child) serving() <-chan struct{} { return c.isServing }
func (c *child) left() <-chan struct{}    { return c.hasLeft }
func (c *child) ended() <-chan struct{}   { return c.hasEnded }
func (c *child) err() error               { return c.end }

// listen hears what the worker says until it has left.
func (c *child) listen() {
	defer close(c.hasLeft)
	in := bufio.NewReader(c.line)
	for serves := false; ; {
		what, frame, err := hear(in)
		switch {
		case err != nil:
			return
		case what == carries, what == commands:
			c.heard(frame)
		case what == saysServing && !serves:
			serves = true
			close(c.isServing)
		}
	}
}

// wait waits for the end of the process, and then for all that it has said.
func (c *child) wait() {
	defer close(c.hasEnded)
	c.end = c.cmd.Wait()
	_ = c.line.SetReadDeadline(time.Now().Add(lineTimeout)) // fails only on a closed one
	<-c.hasLeft
	c.out.close()
	c.line.Close()
}

// pass passes a broadcast on to a worker that serves; others have no connections.
func (c *child) pass(frame []byte) error {
	if !closed(c.isServing) || closed(c.hasLeft) {
		return nil
	}
	most := lineTimeout
	if c.stuck {
		most = 0
	}
	err := c.out.put(frame, most)
	c.stuck = err != nil
	return err
}

// drain orders a drain that is bounded by a kill. A worker that serves makes the
// signal of it for its program by itself, see [Worker.Run]. The errors mean that
// the process has ended.
func (c *child) drain() {
	c.out.hurry([]byte{ordersDrain})
	if closed(c.out.closing) || !closed(c.isServing) {
		c.term()
	}
}

// write writes to the life-line. An order that can't be written becomes a signal.
func (c *child) write() {
	c.out.write()
	if len(c.out.urgent) > 0 && !closed(c.hasEnded) {
		c.term()
	}
}

func (c *child) kill() { _ = c.cmd.Process.Kill() }

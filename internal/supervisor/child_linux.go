package supervisor

import (
	"net"
	"os/exec"
	"syscall"
	"time"
)

// child is the life of a process. Two goroutines of its own, which end with it,
// listen to its life-line and wait for its end.
type child struct {
	cmd  *exec.Cmd
	line *net.UnixConn
	end  error // set before hasEnded is closed

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
	said := make([]byte, 1)
	for serves := false; ; {
		n, err := c.line.Read(said)
		if err != nil {
			return
		}
		if n == 1 && said[0] == saysServing && !serves {
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
	c.line.Close()
}

// drain orders a drain that is bounded by a kill. A worker that serves makes the
// signal of it for its program by itself, see [Worker.Run]. The errors mean that
// the process has ended.
func (c *child) drain() {
	_ = c.line.SetWriteDeadline(time.Now().Add(lineTimeout))
	_, _ = c.line.Write([]byte{ordersDrain})
	if !closed(c.isServing) {
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
	}
}

func (c *child) kill() { _ = c.cmd.Process.Kill() }

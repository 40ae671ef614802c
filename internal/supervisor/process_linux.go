package supervisor

import (
	"bufio"
	"net"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/upgrade"
)

// osProcess is a worker as a process of the system. Three goroutines of its own, which
// end with it, read from its control socket, write to it, and wait for its end.
type osProcess struct {
	cmd     *exec.Cmd
	socket  *net.UnixConn
	link    *upgrade.Link
	out     *outbox
	receive func(frame []byte) // gets broadcasts and commands
	full    bool               // the outbox had no room for the last message; the relay's
	term    func()             // sends a SIGTERM, once
	end     error              // set before hasEnded is closed

	isServing, hasStopped, hasEnded chan struct{}
}

// follow starts the goroutines of a process that has been started.
func follow(cmd *exec.Cmd, socket *net.UnixConn, link *upgrade.Link, receive func(frame []byte)) *osProcess {
	p := &osProcess{
		cmd: cmd, socket: socket, link: link, out: newOutbox(socket), receive: receive,
		term:      sync.OnceFunc(func() { _ = cmd.Process.Signal(syscall.SIGTERM) }), // it may have ended
		isServing: make(chan struct{}), hasStopped: make(chan struct{}), hasEnded: make(chan struct{}),
	}
	go p.read()
	go p.write()
	go p.wait()
	return p
}

func (p *osProcess) pid() int                 { return p.cmd.Process.Pid }
func (p *osProcess) serving() <-chan struct{} { return p.isServing }
func (p *osProcess) stopped() <-chan struct{} { return p.hasStopped }
func (p *osProcess) ended() <-chan struct{}   { return p.hasEnded }
func (p *osProcess) err() error               { return p.end }
func (p *osProcess) kill()                    { _ = p.cmd.Process.Kill() }

// read reads what the worker sends until it has stopped serving.
func (p *osProcess) read() {
	defer close(p.hasStopped)
	in := bufio.NewReader(p.socket)
	for {
		frame, err := receive(in)
		switch {
		case err != nil:
			return
		case frame[0] != kindServing:
			p.receive(frame)
		case !closed(p.isServing):
			close(p.isServing)
		}
	}
}

// write writes to the control socket. An order to drain that can't be written becomes
// a signal.
func (p *osProcess) write() {
	p.out.write()
	if len(p.out.urgent) > 0 && !closed(p.hasEnded) {
		p.term()
	}
}

// wait waits for the end of the process, and then for all that it has sent.
func (p *osProcess) wait() {
	defer close(p.hasEnded)
	p.end = p.cmd.Wait()
	_ = p.socket.SetReadDeadline(time.Now().Add(controlTimeout)) // fails only on a closed one
	<-p.hasStopped
	p.out.close()
	p.socket.Close()
	p.link.Close()
}

// send sends a message to a worker that serves; others have no connections.
func (p *osProcess) send(frame []byte) error {
	if !closed(p.isServing) || closed(p.hasStopped) {
		return nil
	}
	bound := controlTimeout
	if p.full {
		bound = 0
	}
	err := p.out.put(frame, bound)
	p.full = err != nil
	return err
}

// drain orders a drain. A worker that serves sends its program the signal itself, see
// [Worker.Run].
func (p *osProcess) drain() {
	p.out.putUrgent(newFrame(kindDrain, nil))
	if closed(p.out.closing) || !closed(p.isServing) {
		p.term()
	}
}

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

// osProcess is a worker process of the operating system.
type osProcess struct {
	cmd         *exec.Cmd
	socket      *net.UnixConn
	link        *upgrade.OrderConn
	out         *outbox
	onFrame     func(frame []byte) // receives broadcasts and commands
	outboxFull  bool               // the last message did not fit; used by the relay only
	sendSIGTERM func()             // sends SIGTERM, once
	exitErr     error              // set before hasEnded is closed

	isServing, hasStopped, hasEnded chan struct{}
}

// newMonitoredProcess returns an osProcess for startedCmd, which must already be started. The osProcess calls onFrame
// with each frame that the worker sends, except the frame that reports that the worker serves.
func newMonitoredProcess(startedCmd *exec.Cmd, socket *net.UnixConn, link *upgrade.OrderConn, onFrame func(frame []byte)) *osProcess {
	p := &osProcess{
		cmd: startedCmd, socket: socket, link: link, out: newUnstartedOutbox(socket), onFrame: onFrame,
		sendSIGTERM: sync.OnceFunc(func() { _ = startedCmd.Process.Signal(syscall.SIGTERM) }), // it may have ended
		isServing:   make(chan struct{}), hasStopped: make(chan struct{}), hasEnded: make(chan struct{}),
	}
	go p.readFramesUntilStopped()
	go p.writeFramesThenSIGTERMIfDrainUnsent()
	go p.waitForExitAndClose()
	return p
}

func (p *osProcess) pid() int                 { return p.cmd.Process.Pid }
func (p *osProcess) serving() <-chan struct{} { return p.isServing }
func (p *osProcess) stopped() <-chan struct{} { return p.hasStopped }
func (p *osProcess) ended() <-chan struct{}   { return p.hasEnded }
func (p *osProcess) err() error               { return p.exitErr }
func (p *osProcess) kill()                    { _ = p.cmd.Process.Kill() }

func (p *osProcess) readFramesUntilStopped() {
	defer close(p.hasStopped)
	in := bufio.NewReader(p.socket)
	for {
		frame, err := readFrameWithHeader(in)
		switch {
		case err != nil:
			return
		case frame[0] != kindServing:
			p.onFrame(frame)
		case !isClosed(p.isServing):
			close(p.isServing)
		}
	}
}

// writeFramesThenSIGTERMIfDrainUnsent writes queued frames until the outbox is closed or a write fails. If a drain
// request is still queued then, it sends SIGTERM to the worker instead.
func (p *osProcess) writeFramesThenSIGTERMIfDrainUnsent() {
	p.out.writeUntilClosedAndDrained()
	if len(p.out.urgent) > 0 && !isClosed(p.hasEnded) {
		p.sendSIGTERM()
	}
}

func (p *osProcess) waitForExitAndClose() {
	defer close(p.hasEnded)
	p.exitErr = p.cmd.Wait()
	_ = p.socket.SetReadDeadline(time.Now().Add(controlTimeout)) // fails only if it is closed
	<-p.hasStopped
	p.out.close()
	p.socket.Close()
	p.link.Close()
}

func (p *osProcess) enqueueFrameIfServing(frame []byte) error {
	if !isClosed(p.isServing) || isClosed(p.hasStopped) {
		return nil
	}
	bound := controlTimeout
	if p.outboxFull {
		bound = 0
	}
	err := p.out.enqueue(frame, bound)
	p.outboxFull = err != nil
	return err
}

func (p *osProcess) requestDrainAndSIGTERMIfNotServing() {
	p.out.enqueueUrgent(encodeFrame(kindDrain, nil))
	if isClosed(p.out.closing) || !isClosed(p.isServing) {
		p.sendSIGTERM()
	}
}

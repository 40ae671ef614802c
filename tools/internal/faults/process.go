package faults

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"
)

// The bounds of a Process.
const (
	// orderBound is how long it may take to start, or to answer.
	orderBound = 30 * time.Second
	// logKept is how much of what it says on its standard error is kept.
	logKept = 16 << 10
	// killGrace is how long others may hold its output when it has ended.
	killGrace = 5 * time.Second
)

// Process is a server in a process of its own. It reads orders from its standard
// input, a line each, and answers on its standard output with a line of JSON; the
// first such line, unasked, says where it listens. The end of its input is the
// order to shut down. Obey is the other side. Its methods are for one goroutine.
type Process struct {
	// Addr is where it listens.
	Addr string

	cmd    *exec.Cmd
	orders io.WriteCloser
	lines  chan []byte // answers; closed at the end of its output
	log    tail
	ended  chan struct{} // closed when it has been waited for
	err    error         // of its end
}

// Launch starts a command and waits until it listens. In, if not nil, is the
// network to start it in.
func Launch(cmd *exec.Cmd, in *Namespace) (*Process, error) {
	p := &Process{cmd: cmd, lines: make(chan []byte, 1), ended: make(chan struct{})}
	orders, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.orders, cmd.Stderr, cmd.WaitDelay = orders, &p.log, killGrace
	begin := cmd.Start
	if in != nil {
		begin = func() error { return in.Do(cmd.Start) }
	}
	if err := begin(); err != nil {
		return nil, err
	}
	go p.listen(answers)
	if err := p.answer(&p.Addr); err != nil {
		p.Kill()
		return nil, fmt.Errorf("faults: the server has not started: %w", err)
	}
	return p, nil
}

// listen passes its answers on, and waits for its end.
func (p *Process) listen(answers io.Reader) {
	defer close(p.ended)
	in := bufio.NewScanner(answers)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		select {
		case p.lines <- bytes.Clone(in.Bytes()):
		default: // nobody has waited for the one before
		}
	}
	_, _ = io.Copy(io.Discard, answers) // behind a line that was too long
	p.err = p.cmd.Wait()
	close(p.lines) // when all that it has said is in the log
}

// Ask gives an order and puts the answer into what v points to.
func (p *Process) Ask(order string, v any) error {
	if _, err := io.WriteString(p.orders, order+"\n"); err != nil {
		return fmt.Errorf("faults: the server takes no orders: %w\n%s", err, p.log.String())
	}
	return p.answer(v)
}

func (p *Process) answer(v any) error {
	select {
	case line, ok := <-p.lines:
		if !ok {
			return fmt.Errorf("its output has ended\n%s", p.log.String())
		}
		return json.Unmarshal(line, v)
	case <-time.After(orderBound):
		return fmt.Errorf("no answer within %v\n%s", orderBound, p.log.String())
	}
}

// Pid is its number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Said is the last that it said on its standard error.
func (p *Process) Said() string { return p.log.String() }

// Stop orders it to shut down, waits for its end, and says how that went.
func (p *Process) Stop() error {
	p.orders.Close()
	return p.await(orderBound)
}

// Kill ends it at once.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // an error means that it has ended
	p.orders.Close()
	_ = p.await(0)
}

func (p *Process) await(most time.Duration) error {
	select {
	case <-p.ended:
		return p.err
	case <-time.After(most):
	}
	_ = p.cmd.Process.Kill() // an error means that it has ended
	<-p.ended
	return fmt.Errorf("faults: it had not ended %v after the order, and was killed\n%s", most, p.log.String())
}

// Obey is the loop of a server that Launch has started. It says where it listens
// and then answers orders, each by the function of that name, until its input
// ends.
func Obey(in io.Reader, out io.Writer, addr string, orders map[string]func() any) error {
	answer := json.NewEncoder(out)
	if err := answer.Encode(addr); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		order, ok := orders[lines.Text()]
		if !ok {
			return fmt.Errorf("faults: unknown order %q", lines.Text())
		}
		if err := answer.Encode(order()); err != nil {
			return err
		}
	}
	return lines.Err()
}

// tail keeps the end of what is written to it. It is safe for concurrent use.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - logKept; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}

package faults

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// pipeliner is a client that sends lines without waiting for answers.
type pipeliner struct {
	*net.TCPConn
	in *bufio.Reader
}

// pipeliners connects clients of which each has had an answer.
func pipeliners(s *subject, n int) []*pipeliner {
	s.Helper()
	all := make([]*pipeliner, n)
	for i := range all {
		c, err := net.DialTimeout("tcp", s.Addr, patience)
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(patience))
		all[i] = &pipeliner{TCPConn: c.(*net.TCPConn), in: bufio.NewReader(c)}
		all[i].send(s, "hello\n")
		if err := all[i].answered("hello\n"); err != nil {
			s.Fatal(err)
		}
	}
	return all
}

func (p *pipeliner) send(s *subject, lines string) {
	s.Helper()
	if _, err := io.WriteString(p, lines); err != nil {
		s.Fatalf("%v: %v\n%s", p.LocalAddr(), err, s.Said())
	}
}

func (p *pipeliner) answered(line string) error {
	if got, err := p.in.ReadString('\n'); err != nil || got != line {
		return fmt.Errorf("asked %.40q, got %.40q, %w", line, got, err)
	}
	return nil
}

// unacknowledged is how much of what was sent the server's kernel has not taken.
func (p *pipeliner) unacknowledged() (n int, err error) {
	raw, err := p.SyscallConn()
	if err != nil {
		return 0, err
	}
	if e := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); e != nil {
		return 0, e
	}
	return n, err
}

// taken waits until the server's kernel has all that was sent to it.
func taken(s *subject, all []*pipeliner) {
	s.Helper()
	for _, p := range all {
		testkit.WaitFor(s, "all bytes are acknowledged", func() bool {
			n, err := p.unacknowledged()
			if err != nil {
				s.Fatal(err)
			}
			return n == 0
		})
	}
}

// What the kernel has received when a server is told to drain is answered, wherever
// handlers run: also what nobody has read yet, because a worker has the connection.
func TestDrainAnswersAll(t *testing.T) {
	onModelsAtOnce(t, 300, func(t *testing.T, model string) {
		drained(t, serve(t, spec{Model: model}, nil), "1ms")
		if model != tcp.Goroutine { // which leaves workers alone
			drained(t, serve(t, spec{Model: model, Workers: 8}, nil), "50ms")
		}
	})
	t.Run(tcp.Auto, func(t *testing.T) {
		testkit.ReserveDescriptors(t, 200)
		s := serve(t, spec{Model: tcp.Auto, Loops: 1}, nil)
		s.attack(sleepers(s, 4))
		s.counts("handlers have moved to workers", func(st tcp.Stats) bool { return st.OnWorkers > 0 })
		drained(t, s, "20ms")
	})
}

// drained stops a server whose clients have just sent about as much as a socket
// takes, while handlers are at work for some time, and checks that they have all
// answers before the end.
func drained(t *testing.T, s *subject, work string) {
	t.Helper()
	const conns, lines = 100, 100 // more than is read at once
	line := func(n int) string { return fmt.Sprintf("%01023d\n", n) }
	var rest strings.Builder
	for n := range lines {
		rest.WriteString(line(n))
	}
	all := pipeliners(s, conns)
	first := "sleep " + work + "\n"
	for _, next := range []string{first, rest.String()} {
		for _, p := range all {
			p.send(s, next)
		}
		taken(s, all)
	}
	var mu sync.Mutex
	missing, short := 0, 0
	var why error
	var ended sync.WaitGroup
	for _, p := range all {
		ended.Go(func() {
			err := p.answered(first)
			n := 0
			for ; err == nil && n < lines; n++ {
				err = p.answered(line(n))
			}
			if err == nil {
				if _, err = p.in.ReadByte(); errors.Is(err, io.EOF) {
					return
				}
			}
			mu.Lock()
			defer mu.Unlock()
			missing, short = missing+lines-n, short+1
			why = err
		})
	}
	s.shut()
	ended.Wait()
	if short > 0 {
		t.Errorf("%d of %d connections were closed before they had all answers; %d lines of %d are missing: %v",
			short, conns, missing, conns*lines, why)
	}
}

// A server that was stopped does not blame its peers: what they have sent meanwhile
// is read before it is judged how long they have been silent.
func TestFrozenProcess(t *testing.T) {
	onModelsAtOnce(t, 150, func(t *testing.T, model string) {
		const n, limit = 50, 2 * time.Second
		s := serve(t, spec{Model: model, Limits: tcp.Limits{IdleTimeout: limit, MessageTimeout: limit}}, nil)
		talkers, halves := pipeliners(s, n), pipeliners(s, n)
		begun := time.Now()
		for i := range n { // their silence begins here, however long it took them to come
			talkers[i].send(s, "hello\n")
			halves[i].send(s, "half a ")
		}
		for _, p := range talkers {
			if err := p.answered("hello\n"); err != nil {
				t.Fatal(err)
			}
		}
		taken(s, halves)
		s.counts("half messages have been read", func(st tcp.Stats) bool { return st.BytesIn == n*(6+6+6+7) })
		if err := unix.Kill(s.Pid(), unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(begun.Add(limit / 2)))
		for i := range n {
			talkers[i].send(s, "still here\n")
			halves[i].send(s, "line\n")
		}
		time.Sleep(time.Until(begun.Add(2 * limit)))
		if err := unix.Kill(s.Pid(), unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		lost := 0
		var why error
		for i := range n {
			for _, err := range []error{talkers[i].answered("still here\n"), halves[i].answered("half a line\n")} {
				if err != nil {
					lost, why = lost+1, err
				}
			}
		}
		if lost > 0 {
			t.Fatalf("%d of %d clients that have sent something were given up: %v", lost, 2*n, why)
		}
		s.counts("those that have nothing more to say are idle", func(st tcp.Stats) bool { return st.Closed.Idle == 2*n })
		s.shut()
	})
}

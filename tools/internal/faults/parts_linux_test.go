package faults

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// The tests in this file are of the parts of this package, without a Server.

// listen serves connections with f, a goroutine each, until the test ends.
func listen(t *testing.T, f func(c net.Conn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				f(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// Honest clients notice wrong answers, answers in the wrong order, and lost ones.
func TestHonestNotices(t *testing.T) {
	for name, serve := range map[string]struct {
		answer func(n int, line []byte, c net.Conn) error
		is     func(r Report) bool
	}{
		"another line": {func(n int, line []byte, c net.Conn) error {
			if n == 5 {
				line[3] ^= 1
			}
			_, err := c.Write(line)
			return err
		}, func(r Report) bool { return r.Wrong == 1 && r.Lost == 0 && r.Answers == 5 }},
		"no more": {func(n int, line []byte, c net.Conn) error {
			if n == 5 {
				return io.EOF
			}
			_, err := c.Write(line)
			return err
		}, func(r Report) bool { return r.Wrong == 0 && r.Lost == 1 && r.Answers == 5 }},
		"silence": {func(n int, line []byte, c net.Conn) error {
			if n == 5 {
				return nil
			}
			_, err := c.Write(line)
			return err
		}, func(r Report) bool {
			return r.Lost == 1 && r.Answers == 5 && strings.Contains(r.First.Error(), "timeout")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // where nobody is held up
				ours, theirs := net.Pipe()
				var serving sync.WaitGroup
				serving.Go(func() {
					defer theirs.Close()
					in := bufio.NewReader(theirs)
					for n := 0; ; n++ {
						line, err := in.ReadBytes('\n')
						if err != nil || serve.answer(n, line, theirs) != nil {
							return
						}
					}
				})
				h := &Honest{Conns: 1, Patience: 200 * time.Millisecond, Dial: func() (net.Conn, error) { return ours, nil }}
				if err := h.Start(); err != nil {
					t.Fatal(err)
				}
				h.ended.Wait() // it has noticed
				serving.Wait()
				if r := h.Stop(); !serve.is(r) {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}

// A swarm that comes and goes makes as many connections as it may.
func TestSwarmComesAndGoes(t *testing.T) {
	var came atomic.Int64
	to := listen(t, func(c net.Conn) {
		b := make([]byte, 2)
		if n, _ := io.ReadFull(c, b); n == 2 {
			came.Add(1)
			c.Write(bytes.ToUpper(b))
			io.Copy(io.Discard, c)
		}
	})
	w := &Swarm{Target: to, Conns: 5, Every: 2 * time.Millisecond, First: []byte("hi"), Acts: 10, Redial: true, Most: 37}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	testkit.WaitFor(t, "all have gone", func() bool { return w.Counts().Left == 37 })
	testkit.WaitFor(t, "all have come", func() bool { return came.Load() == 37 })
	if c := w.Counts(); c.Made != 37 || c.Connected != 37 || c.Lost+c.Failed != 0 || c.Answered != 37 || c.Received != 74 {
		t.Errorf("%+v", c)
	}
}

func TestSwarmSettings(t *testing.T) {
	to := netip.MustParseAddrPort("127.0.0.1:1")
	for _, w := range []*Swarm{
		{Target: to}, {Conns: 1}, {Target: to, Conns: maxSwarm + 1}, {Target: to, Conns: 1, Every: -1}, {Target: to, Conns: 1, Piece: -1},
	} {
		if err := w.Start(); err == nil {
			w.Stop()
			t.Errorf("%+v has started", w)
		}
	}
}

// A process that does not start, does not answer or does not end is an error that
// has what it said last.
func TestProcessFails(t *testing.T) {
	if p, err := Launch(exec.Command("sh", "-c", "echo why >&2; exit 3"), nil); err == nil {
		p.Kill()
		t.Error("a process that ends at once has started")
	} else if !strings.Contains(err.Error(), "why") {
		t.Errorf("the error does not have what it said: %v", err)
	}
	p, err := Launch(exec.Command("sh", "-c", `echo '"127.0.0.1:1"'; read order; echo "got $order" >&2; exit 3`), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	var v any
	if err := p.Ask("something", &v); err == nil || !strings.Contains(err.Error(), "something") {
		t.Errorf("a process that has ended: %v", err)
	}
	if err := p.Stop(); err == nil {
		t.Error("a process that has failed has stopped in order")
	}
}

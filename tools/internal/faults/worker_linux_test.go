package faults

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/tcp"
)

// A worker process that is killed costs its own connections, whose clients can
// come back at once, and no other.
func TestWorkerKilled(t *testing.T) {
	onModelsAtOnce(t, 100, func(t *testing.T, model string) {
		const conns = 15
		s := serve(t, spec{Model: model, Processes: 2}, nil)
		first, err := s.meet()
		if err != nil {
			t.Fatal(err)
		}
		first.Close()
		victim := first.pid
		var killed atomic.Bool
		victims := &Honest{Conns: conns, Think: 5 * time.Millisecond, Redial: true, Dial: func() (net.Conn, error) {
			return s.dialWorker(func(pid int) bool { return pid == victim || killed.Load() })
		}}
		if err := victims.Start(); err != nil {
			t.Fatal(err)
		}
		defer victims.Stop()
		s.begin(&Honest{Conns: conns, Think: 5 * time.Millisecond, Dial: func() (net.Conn, error) {
			return s.dialWorker(func(pid int) bool { return pid != victim })
		}})

		killed.Store(true)
		if err := unix.Kill(victim, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		s.eventually(func() bool { return victims.Report().Lost == conns }, func() string {
			return fmt.Sprintf("the worker's %d connections are lost: %+v", conns, victims.Report())
		})
		at := victims.Report().Answers
		s.eventually(func() bool { return victims.Report().Answers > at+10*conns }, func() string {
			return fmt.Sprintf("those who have lost theirs connect again: %+v", victims.Report())
		})
		s.round()
		s.counts("the worker is started again", func(st tcp.Stats) bool {
			return st.Restarts == 1 && st.Processes == 2 && st.Open == 2*conns
		})
		if r := victims.Stop(); r.Lost != conns || r.Wrong > 0 {
			t.Errorf("the worker had %d connections: %+v", conns, r)
		}
		s.back()
		s.end()
	})
}

// worker is a connection to a server with worker processes.
type worker struct {
	net.Conn
	pid int
}

// meet connects and asks who serves. It is safe for concurrent use.
func (s *subject) meet() (w worker, err error) {
	if w.Conn, err = net.DialTimeout("tcp", s.Addr, patience); err != nil {
		return w, err
	}
	w.SetDeadline(time.Now().Add(patience))
	io.WriteString(w, "pid\n")
	answer, err := bufio.NewReader(w).ReadString('\n')
	if err == nil {
		w.pid, err = strconv.Atoi(strings.TrimSpace(answer))
	}
	if err != nil {
		w.Close()
	}
	return w, err
}

// dialWorker connects until it meets a worker that will do.
func (s *subject) dialWorker(does func(pid int) bool) (net.Conn, error) {
	for range 200 {
		w, err := s.meet()
		if err != nil {
			return nil, err
		}
		if does(w.pid) {
			return w.Conn, nil
		}
		w.Close()
	}
	return nil, errors.New("200 connections, and none went to the right worker")
}

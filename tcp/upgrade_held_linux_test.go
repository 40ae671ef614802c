package tcp

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/upgrade"
)

// oldProcess is the old side of an upgrade, with one listener and no engine.
type oldProcess struct {
	net.Listener
	next  *upgrade.Successor
	ready upgrade.Ready
}

// startNext starts a new process, and waits until that is ready.
func startNext(t *testing.T, cfg successorConfig, paused bool) *oldProcess {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	cfg.Addr = "127.0.0.1:0"
	cmd, err := succeeded(t, cfg)()
	must(t, err)
	o := &oldProcess{Listener: l}
	o.next, err = upgrade.Start(cmd, patience)
	must(t, err)
	t.Cleanup(o.next.Abort)
	hello := upgrade.Hello{PID: os.Getpid(), Paused: paused, Listeners: []upgrade.Listener{{Network: "tcp", Addr: cfg.Addr, Sockets: 1}}}
	must(t, o.next.Greet(hello, func(control *os.File) error {
		fd, err := sock.Detach(l)
		if err != nil {
			return err
		}
		defer sock.Close(fd)
		if errno := sock.SendRights(int32(control.Fd()), []byte(upgrade.SocketsWord), []int{int(fd)}); errno != 0 {
			return errno
		}
		return nil
	}))
	o.ready, err = o.next.AwaitReady(context.Background())
	must(t, err)
	return o
}

// wantAccepted has some connect, all of whom the old process accepts.
func (o *oldProcess) wantAccepted(t *testing.T) {
	t.Helper()
	must(t, o.Listener.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
	for i := range 50 {
		client := newLineClient(t, "tcp", o.Addr().String())
		nc, err := o.Accept()
		if err != nil {
			t.Fatalf("connection %d is not accepted by the old process: %v", i, err)
		}
		nc.Close()
		client.Close()
	}
}

// TestUpgradeHeld has the new process accept nothing until the old one can't go on any more: so
// nobody is lost if it does.
func TestUpgradeHeld(t *testing.T) {
	for _, c := range []struct {
		model string
		most  int
	}{{"epoll", 0}, {"uring", 0}, {"goroutine", 0}, {"epoll", shardConns}, {"uring", shardConns}} {
		cfg := successorConfig{Model: c.model, MaxConns: c.most}
		t.Run(fmt.Sprintf("%s/%d/aborted", c.model, c.most), func(t *testing.T) {
			o := startNext(t, cfg, false)
			o.wantAccepted(t)
			o.next.Abort()
			awaitGone(t, o.next.PID())
			o.wantAccepted(t) // the end of a new process is not that of the listener
		})
		t.Run(fmt.Sprintf("%s/%d/taken", c.model, c.most), func(t *testing.T) {
			o := startNext(t, cfg, false)
			channels, err := o.next.Channels(context.Background(), 1, max(o.ready.Loops, 1), nil, nil)
			must(t, err)
			client := newLineClient(t, "tcp", o.Addr().String())
			client.want(t, "a", "a 1")
			for _, f := range channels {
				f.Close()
			}
			must(t, o.next.Done(upgrade.Done{}))
			client.want(t, "b", "b 2")
			ends(t, "tcp", o.Addr().String())
		})
	}
}

// TestUpgradePaused has the new process accept nothing as long as an operator does not let the old
// one.
func TestUpgradePaused(t *testing.T) {
	o := startNext(t, successorConfig{Model: "epoll"}, true)
	channels, err := o.next.Channels(context.Background(), 1, max(o.ready.Loops, 1), nil, nil)
	must(t, err)
	for _, f := range channels {
		f.Close()
	}
	if o.next.Died() {
		t.Fatal("the new process does not say that it is alive")
	}
	o.wantAccepted(t)

	s := start(t, &Server{Model: "epoll", Successor: succeeded(t, successorConfig{Addr: "127.0.0.1:0", Model: "epoll", Does: "die"})})
	newLineClient(t, "tcp", s.addr).want(t, "a", "a")
	must(t, s.PauseAccepting())
	testkit.WaitFor(t, "accepting does not pause", func() bool { return s.Stats().AcceptingPaused })
	if u, err := s.Upgrade(context.Background()); err == nil || u.Lost != 1 {
		t.Errorf("Upgrade to a process that dies: %+v, %v; want an error and a connection lost", u, err)
	}
	late := newLineClient(t, "tcp", s.addr)
	must(t, late.SetDeadline(time.Now().Add(100*time.Millisecond)))
	if answer, err := late.ask("b"); err == nil {
		t.Errorf("answered %q though accepting is paused", answer)
	}
	must(t, s.ResumeAccepting())
	newLineClient(t, "tcp", s.addr).want(t, "c", "c")
}

package tcp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// serveRooms serves rooms, with so many members.
func serveRooms(t *testing.T, srv *Server, n int) (h *rooms, all []*guest) {
	t.Helper()
	ready := make(chan string, 1)
	srv.Addr, srv.Listening = "127.0.0.1:0", func(a net.Addr) { ready <- a.String() }
	h = newRooms(srv, 0)
	ended := make(chan error, 1)
	go func() { ended <- srv.ListenAndServe(context.Background()) }()
	t.Cleanup(func() {
		_ = srv.Close()
		testkit.Receive(t, ended, "the end of the server")
	})
	addr := testkit.Receive(t, ready, "the address")
	for range n {
		c := newLineClient(t, "tcp", addr)
		_, err := io.WriteString(c, "join 0\n")
		must(t, err)
		for line := ""; line != "joined\n"; {
			line, err = c.in.ReadString('\n')
			must(t, err)
		}
		all = append(all, &guest{c, map[string]int{}})
	}
	return h, all
}

// TestBroadcastUpgradeFails has the new process die in the middle: what is held then reaches those
// who are left, once, and what is published afterwards is not held.
func TestBroadcastUpgradeFails(t *testing.T) {
	for _, model := range []string{"epoll", "uring", "goroutine"} {
		t.Run(model, func(t *testing.T) {
			const n = 400
			srv := &Server{Model: model, Log: slog.New(slog.DiscardHandler)}
			srv.Successor = succeeded(t, successorConfig{Addr: "127.0.0.1:0", Model: "epoll", Rooms: true, After: 50})
			h, all := serveRooms(t, srv, n)
			results := make(chan error, n)
			for _, m := range all {
				go func() { results <- m.until(2, func(string) bool { return false }) }()
			}
			u, err := srv.Upgrade(context.Background())
			if err == nil || u.Lost < 50 {
				t.Fatalf("Upgrade: %+v, %v; want an error, and at least 50 lost", u, err)
			}
			receivers, err := srv.Broadcast(Broadcast{Group: "none"})
			if receivers != 0 || err != nil {
				t.Errorf("published to nobody: %d receivers, %v", receivers, err)
			}
			srv.Stopping() // and with it the numbers end
			h.inside.Wait()
			whole := 0
			for range n {
				switch err := <-results; {
				case err == nil:
					whole++
				case !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset"):
					t.Error(err)
				}
			}
			if whole != n-u.Lost {
				t.Errorf("%d have got all, want %d", whole, n-u.Lost)
			}
		})
	}
}

// TestBroadcastHeldTooLong has publishing go on in the middle of a hand-over that takes too long.
func TestBroadcastHeldTooLong(t *testing.T) {
	was := holdTimeout
	holdTimeout = 50 * time.Millisecond
	defer func() { holdTimeout = was }()
	const n = 20
	srv := &Server{Model: "epoll", Log: slog.New(slog.DiscardHandler)}
	srv.Successor = succeeded(t, successorConfig{Addr: "127.0.0.1:0", Model: "epoll", Rooms: true})
	h, all := serveRooms(t, srv, n)
	publish := func() int {
		n, err := srv.Broadcast(Broadcast{Group: "none"})
		if err != nil {
			t.Error(err)
		}
		return n
	}
	saved := make(chan int, 1)
	h.saving = func() { saved <- publish() }     // before its time begins
	_, err := io.WriteString(all[0], "retain\n") // it is busy from then on
	must(t, err)
	retained := testkit.Receive(t, h.retained, "a busy connection")
	var reading sync.WaitGroup
	for _, m := range all[1:] { // the busy one may get a message twice
		reading.Go(func() {
			if err := m.until(2, func(string) bool { return false }); err != nil {
				t.Error(err)
			}
		})
	}
	over := make(chan error, 1)
	go func() {
		_, err := srv.Upgrade(context.Background())
		over <- err
	}()
	if n := testkit.Receive(t, saved, "the saving of the state"); n != Held {
		t.Errorf("published while the state is saved: %d receivers, want that it is held", n)
	}
	testkit.WaitFor(t, "it is held for ever", func() bool { return publish() != Held })
	select {
	case err := <-over:
		t.Fatalf("the upgrade does not wait for the busy one: %v", err)
	default:
	}
	retained()
	must(t, testkit.Receive(t, over, "the end of the upgrade")) // and this process's numbers end
	reading.Wait()
	_, err = io.WriteString(all[0], "stop\n")
	must(t, err)
}

// slowPublisher takes its time with one message.
type slowPublisher struct {
	rawEcho
	entered, leave chan struct{}
}

func (s *slowPublisher) SendToGroup(b Broadcast) (receivers int) {
	if b.Group == "slow" {
		close(s.entered)
		<-s.leave
	}
	return 1
}

// TestUpgradeWaitsForPublishers has an upgrade give up where the one before has not caught up, ahead
// of a new process, or where broadcasts in progress do not end; then publishing goes on.
func TestUpgradeWaitsForPublishers(t *testing.T) {
	was := broadcastTimeout
	broadcastTimeout = 50 * time.Millisecond
	defer func() { broadcastTimeout = was }()
	h := &slowPublisher{entered: make(chan struct{}), leave: make(chan struct{})}
	srv := &Server{Addr: "127.0.0.1:0", Model: "epoll", Handler: h, Log: slog.New(slog.DiscardHandler)}
	started := 0
	successor := succeeded(t, successorConfig{Addr: srv.Addr, Model: "epoll"})
	srv.Successor = func() (*exec.Cmd, error) {
		started++
		return successor()
	}
	s := start(t, srv)
	fails := func(ctx context.Context, says string, processes int) {
		t.Helper()
		_, err := s.Upgrade(ctx)
		if err == nil || !strings.Contains(err.Error(), says) || started != processes {
			t.Errorf("Upgrade: %v, with %d processes; want that %q, with %d", err, started, says, processes)
		}
		if n, err := s.Broadcast(Broadcast{}); n != 1 || err != nil {
			t.Errorf("published afterwards: %d receivers, %v", n, err)
		}
	}
	srv.here, srv.caughtUp = make(chan struct{}), make(chan struct{})
	close(srv.here)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	fails(ctx, "the upgrade before has not ended", 0)
	close(srv.caughtUp)
	var publishing sync.WaitGroup
	publishing.Go(func() { _, _ = s.Broadcast(Broadcast{Group: "slow"}) })
	<-h.entered
	fails(context.Background(), "broadcasts in progress do not end", 1)
	close(h.leave)
	publishing.Wait()
}

// TestStateLost has a state that can't be saved, or restored, lost alone.
func TestStateLost(t *testing.T) {
	for state, says := range map[string]string{"fails": "not today", "panics": "panic: oh", "is wrong": ""} {
		t.Run(state, func(t *testing.T) {
			log := &lockedLog{}
			srv := &Server{Model: "epoll", Log: slog.New(slog.NewTextHandler(log, nil))}
			srv.Successor = succeeded(t, successorConfig{Addr: "127.0.0.1:0", Model: "epoll", Rooms: true})
			h, all := serveRooms(t, srv, 3)
			h.state = state
			u, err := srv.Upgrade(context.Background())
			if must(t, err); u.Moved != 3 {
				t.Errorf("%+v; want 3 moved", u)
			}
			if said := log.String(); says != "" && (!strings.Contains(said, "the handler's state is lost") || !strings.Contains(said, says)) {
				t.Errorf("the log has %q; want that %q", said, says)
			}
			_, err = io.WriteString(all[0], "stop\n")
			must(t, err)
			_, _ = io.Copy(io.Discard, all[0])
			awaitGone(t, u.PID)
		})
	}
}

// lockedLog is a log that is read while it is written.
type lockedLog struct {
	mu   sync.Mutex
	text []byte
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	return len(p), nil
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

// TestBroadcastToGroup is Broadcast to a group without an upgrade, and what may be held at the most.
func TestBroadcastToGroup(t *testing.T) {
	if _, err := (&Server{Handler: Base{}}).Broadcast(Broadcast{}); !errors.Is(err, ErrBadUse) {
		t.Errorf("without a BroadcastHandler: %v, want ErrBadUse", err)
	}
	srv := &Server{Model: "epoll"}
	srv.Limits.MaxMailBytes = 3*64 + len("to all\n") + 2*len("0held")
	_, all := serveRooms(t, srv, 1)
	srv.Stopping() // no numbers from inside
	for _, topic := range []string{"0", "1"} {
		want := map[string]int{"0": len(all)}[topic]
		if n, err := srv.Broadcast(Broadcast{Group: topic, Message: []byte("hello")}); n != want || err != nil {
			t.Errorf("room %s: %d receivers, %v; want %d", topic, n, err, want)
		}
	}
	if _, err := srv.Broadcast(Broadcast{Group: strings.Repeat("x", 1<<20+1)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a topic that is too long: %v, want ErrTooLarge", err)
	}
	g := srv.broadcasts.Load()
	must(t, g.Hold(context.Background()))
	_, err := srv.Broadcast(Broadcast{All: true, Message: []byte("to all\n")})
	must(t, err)
	for i := range 3 {
		n, err := srv.Broadcast(Broadcast{Group: "0", Message: []byte("held")})
		if full := i == 2; full != errors.Is(err, ErrFull) || !full && n != Held {
			t.Errorf("message %d of 3 that may be held: %d receivers, %v", i+2, n, err)
		}
	}
	if _, err := srv.Broadcast(Broadcast{All: true, Message: []byte("x")}); !errors.Is(err, ErrFull) {
		t.Errorf("broadcast beyond what may be held: %v", err)
	}
	g.Release(context.Background(), nil)
	var got []string
	for len(got) < 4 {
		line, err := all[0].in.ReadString('\n')
		must(t, err)
		if !strings.Contains(line, "-") {
			got = append(got, line)
		}
	}
	if slices.Sort(got); !slices.Equal(got, []string{"held\n", "held\n", "hello\n", "to all\n"}) {
		t.Errorf("a member has got %q", got)
	}
}

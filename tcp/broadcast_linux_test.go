package tcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// broadcastNumbers broadcasts numbered messages to each room and to all until quiet is closed.
func (h *upgradeHandler) broadcastNumbers() {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i, last := 1, ""; last == ""; i++ {
		select {
		case <-tick.C:
		case <-h.quiet:
			last = " end"
		}
		for _, b := range []Broadcast{{Group: "0"}, {Group: "1"}, {All: true}} {
			b.Message = fmt.Appendf(nil, "%v-%d %d%s\n", b.All, os.Getpid(), i, last)
			for {
				if _, err := h.srv.Broadcast(b); !errors.Is(err, ErrFull) {
					break
				}
				<-tick.C
			}
		}
	}
}

func (h *upgradeHandler) SendToGroup(b Broadcast) (receivers int) {
	g := h.members[b.Group]
	if g == nil {
		return 0
	}
	h.mu.Lock()
	h.newest[b.Group] = string(b.Message)
	h.mu.Unlock()
	receivers, full := g.Broadcast(b.Message)
	if full > 0 {
		panic("a mailbox is full")
	}
	return receivers
}

func (h *upgradeHandler) SaveState(w io.Writer) error {
	if h.saving != nil {
		h.saving()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch h.state {
	case "fails":
		return errors.New("not today")
	case "panics":
		panic("oh")
	case "is wrong":
		_, err := io.WriteString(w, "wrong")
		return err
	}
	if h.tag != "" {
		h.newest["tag"] = h.tag
	}
	return json.NewEncoder(w).Encode(h.newest)
}

func (h *upgradeHandler) RestoreState(r io.Reader) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return json.NewDecoder(r).Decode(&h.newest)
}

// joinRooms connects n members, half of them in each room.
func joinRooms(t *testing.T, addr string, n int) (members []*testkit.Conn) {
	t.Helper()
	for i := range n {
		c := dial(t, addr)
		c.Send(fmt.Sprintf("join %d\n", i%2))
		for c.ReadLine() != "joined" { // but what is to all
		}
		members = append(members, c)
	}
	return members
}

// checkBroadcastNumbers reads a member's messages until the given number of publishers have ended, and
// checks that each publisher's numbers are consecutive. Those of this process may begin later.
func checkBroadcastNumbers(member *testkit.Conn, publishers int) error {
	numbers := make(map[string]int)
	for publishers > 0 {
		line, err := member.R.ReadString('\n')
		if err != nil {
			return err
		}
		words := strings.Fields(line)
		n, err := strconv.Atoi(words[1])
		if err != nil {
			return fmt.Errorf("got %q", line)
		}
		last, known := numbers[words[0]]
		if known && n != last+1 || !known && n != 1 && !strings.HasSuffix(words[0], fmt.Sprint("-", os.Getpid())) {
			return fmt.Errorf("%s: number %d behind %d", words[0], n, last)
		}
		numbers[words[0]] = n
		if len(words) > 2 {
			publishers--
		}
	}
	return nil
}

// askForReply sends a question and returns the reply, which begins with word, skipping broadcasts.
func askForReply(c *testkit.Conn, question, word string) string {
	c.Send(question + "\n")
	for {
		if line := c.ReadLine(); strings.HasPrefix(line, word) {
			return line
		}
	}
}

func TestUpgradePublishes(t *testing.T) {
	const n = 60
	for _, models := range [][2]string{{Epoll, Uring}, {Goroutine, Epoll}} {
		t.Run(models[0]+" to "+models[1], func(t *testing.T) {
			s, _ := startUpgradable(t, successorConfig{Model: models[0]}, successorConfig{Model: models[1], Publishes: true})
			members := joinRooms(t, s.addr, n)
			var reading sync.WaitGroup
			for i, m := range members {
				reading.Go(func() {
					if err := checkBroadcastNumbers(m, 6); err != nil { // a room's and that to all, of three processes
						t.Errorf("member %d: %v", i, err)
					}
				})
			}
			boss := dial(t, s.addr)
			waitFor(t, "nothing is published", func() bool { return s.Stats().Broadcasts > 3 })
			u := s.upgradeMoving(t, n+1, nil)
			expectNoError(t, s.waitResult(t))
			boss.Send("upgrade\n")
			waitProcessEnd(t, u.PID)
			seen := map[string]bool{}
			waitFor(t, "nothing is published after the upgrades", func() bool {
				seen[askForReply(boss, "newest 0", "false-")] = true
				return len(seen) > 3
			})
			boss.Send("quiet\n")
			reading.Wait()
			if newest := askForReply(boss, "newest 0", "false-"); !strings.HasSuffix(newest, " end") {
				t.Errorf("the newest message is %q", newest)
			}
			boss.Send("stop\n")
			boss.ExpectClosed()
		})
	}
}

// TestBroadcastHeldTooLong checks that broadcasts resume during a transfer that takes too long.
func TestBroadcastHeldTooLong(t *testing.T) {
	defer func(was time.Duration) { holdTimeout = was }(holdTimeout)
	holdTimeout = 50 * time.Millisecond
	s, h := startUpgradable(t, successorConfig{Model: Epoll}, successorConfig{Model: Epoll})
	member := joinRooms(t, s.addr, 1)[0]
	publish := func() int {
		n, err := s.Broadcast(Broadcast{Group: "0", Message: []byte("news\n")})
		expectNoError(t, err)
		return n
	}
	saved := make(chan int, 1)
	h.saving = func() { saved <- publish() } // before its time begins
	member.Send("retain\n")                  // it is busy from then on
	release := testkit.Receive(t, h.retained, "a busy connection")
	over := make(chan error, 1)
	go func() {
		_, err := s.Upgrade(context.Background())
		over <- err
	}()
	if n := testkit.Receive(t, saved, "the saving of the state"); n != BroadcastQueued || s.HandedOver() {
		t.Errorf("published while the state is saved: %d receivers, want that it is held", n)
	}
	waitFor(t, "it is held for ever", func() bool { return publish() != BroadcastQueued })
	if !s.HandedOver() {
		t.Error("broadcasts are delivered, but not handed over")
	}
	if len(over) > 0 {
		t.Fatalf("the upgrade does not wait for the busy one: %v", <-over)
	}
	release()
	expectReason(t, "the end of the upgrade", over, nil)
	member.Expect("news\nnews\n")
	member.Send("stop\n")
	member.ExpectClosed()
}

// slowGroupHandler blocks SendToGroup for the group "slow".
type slowGroupHandler struct {
	Base
	entered, leave chan struct{}
}

func (s *slowGroupHandler) SendToGroup(b Broadcast) (receivers int) {
	if b.Group == "slow" {
		close(s.entered)
		<-s.leave
	}
	return 1
}

// TestUpgradeWaitsForPublishers checks that an upgrade fails if the previous one has not
// completed, or if broadcasts in progress do not end, and that broadcasting continues.
func TestUpgradeWaitsForPublishers(t *testing.T) {
	defer func(was time.Duration) { broadcastTimeout = was }(broadcastTimeout)
	broadcastTimeout = 50 * time.Millisecond
	h := &slowGroupHandler{entered: make(chan struct{}), leave: make(chan struct{})}
	s := startServer(t, &Server{Model: Epoll, Handler: h, Successor: newSuccessorFunc(t, successorConfig{Model: Epoll})})
	expectFails := func(timeout time.Duration, says string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if _, err := s.Upgrade(ctx); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Upgrade: %v; want that %q", err, says)
		}
		if n, err := s.Broadcast(Broadcast{}); n != 1 || err != nil {
			t.Errorf("published afterwards: %d receivers, %v", n, err)
		}
	}
	s.handoverDone, s.backlogDone = make(chan struct{}), make(chan struct{})
	close(s.handoverDone)
	expectFails(20*time.Millisecond, "the previous upgrade has not completed")
	close(s.backlogDone)
	var publishing sync.WaitGroup
	publishing.Go(func() { _, _ = s.Broadcast(Broadcast{Group: "slow"}) })
	<-h.entered
	expectFails(testkit.Timeout, "waiting for broadcasts in progress")
	close(h.leave)
	publishing.Wait()
}

// TestStateLost checks that a failure to save or restore the state does not fail the upgrade.
func TestStateLost(t *testing.T) {
	for state, says := range map[string]string{"fails": "not today", "panics": "panic: oh", "is wrong": ""} {
		t.Run(state, func(t *testing.T) {
			log := new(logRecorder)
			s, h := startUpgradable(t, successorConfig{}, successorConfig{}, func(srv *Server) { srv.Log = log.newLogger() })
			h.state = state
			dialManyWithPartialLine(t, s.addr, 3, "")
			s.upgradeMoving(t, 3, nil)
			if says != "" {
				log.waitForLine(t, "handler state was lost", says)
			}
			stopServerAt(t, s.addr)
		})
	}
}

func TestBroadcastToGroup(t *testing.T) {
	_, err := (&Server{Handler: Base{}}).Broadcast(Broadcast{})
	expectError(t, "without a BroadcastHandler", err, ErrBadUse)
	srv, _ := startUpgradable(t, successorConfig{}, successorConfig{})
	member := joinRooms(t, srv.addr, 1)[0]
	for group, want := range map[string]int{"0": 1, "1": 0} {
		if n, err := srv.Broadcast(Broadcast{Group: group, Message: []byte("hello\n")}); n != want || err != nil {
			t.Errorf("room %s: %d receivers, %v; want %d", group, n, err, want)
		}
	}
	member.Expect("hello\n")
	_, err = srv.Broadcast(Broadcast{Group: strings.Repeat("x", 1<<20+1)})
	expectError(t, "a group's name that is too long", err, ErrTooLarge)
}

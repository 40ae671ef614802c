package tcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// travelling are counts that go on from one process to the next.
type travelling struct {
	Accepted, HandedOver, TakenOver, Closed, Messages, Reads, BytesIn, BytesOut, Broadcasts int64
	ListenerAccepted, ListenerRefused                                                       int64
}

func countsOf(srv *Server) travelling {
	s := srv.Stats()
	n := travelling{
		Accepted: s.Accepted, HandedOver: s.HandedOver, TakenOver: s.TakenOver, Closed: s.Closed.Peer + s.Closed.Handler + s.Closed.Other + s.Closed.Reset + s.Closed.Shutdown,
		Messages: s.Messages, Reads: s.Reads, BytesIn: s.BytesIn, BytesOut: s.BytesOut, Broadcasts: s.Broadcasts,
	}
	for _, l := range srv.ListenerStats() {
		n.ListenerAccepted += l.Accepted
		n.ListenerRefused += l.Refused
	}
	return n
}

// TestUpgradeCounters has counters go on through two upgrades: they are what all processes together
// have counted, to a byte, and nobody is counted as closed.
func TestUpgradeCounters(t *testing.T) {
	for _, models := range [][2]string{{"epoll", "uring"}, {"uring", "goroutine"}, {"goroutine", "epoll"}} {
		t.Run(models[0]+" to "+models[1], func(t *testing.T) {
			const n = 20
			srv := &Server{Addr: "127.0.0.1:0", Model: models[0]}
			srv.Successor = succeeded(t, successorConfig{Addr: srv.Addr, Model: models[1]})
			srv.Handler = Lines(&counted{srv: srv})
			s := start(t, srv)
			var in, out int64
			want := travelling{}
			ask := func(c *lineClient, line string) string {
				t.Helper()
				answer, err := c.ask(line)
				must(t, err)
				want.Messages++
				in += int64(len(line)) + 1
				out += int64(len(answer)) + 1
				return answer
			}
			connect := func() *lineClient {
				want.Accepted++
				return newLineClient(t, "tcp", s.addr)
			}
			leaver := connect()
			ask(leaver, "bye")
			leaver.Close()
			_, err := io.WriteString(connect(), "stay\n")
			must(t, err)
			want.Messages++
			in += int64(len("stay\n"))
			want.Closed = 2 // what the old process counts of that one comes when it ends
			var clients []*lineClient
			for range n {
				clients = append(clients, connect())
			}
			pid := 0
			for i := range 2 {
				for _, c := range clients {
					ask(c, "hello")
				}
				eventually(t, func() bool { return i > 0 || s.Stats().Closed.Peer == 1 }, func() string { return "who leaves is not counted" })
				want.HandedOver, want.TakenOver = want.HandedOver+int64(len(clients)), want.TakenOver+int64(len(clients))
				if i == 0 {
					u, err := s.Upgrade(context.Background())
					must(t, err)
					pid = u.PID
					ok(t, s.result(t)) // it has drained who stays
					clients = append(clients, connect())
					continue
				}
				_, err = io.WriteString(clients[0], "upgrade\n")
				must(t, err)
				want.Messages++
				in += int64(len("upgrade\n"))
				last := pid
				testkit.WaitFor(t, "there is no second upgrade", func() bool {
					pid, _ = strconv.Atoi(ask(clients[0], "pid"))
					return pid != last
				})
				awaitGone(t, last)
			}
			var got travelling
			want.ListenerAccepted = want.Accepted
			testkit.WaitFor(t, "what the old process has counted does not come", func() bool {
				want.BytesOut = out
				must(t, json.Unmarshal([]byte(ask(clients[0], "stats")), &got))
				return got.Closed == want.Closed
			})
			want.Messages-- // it is counted behind the call
			want.BytesIn, want.Reads = in, got.Reads
			if got != want {
				t.Errorf("counted\n%+v, want\n%+v", got, want)
			}
			if got.Reads < got.Messages {
				t.Errorf("%d reads of %d messages, one at a time", got.Reads, got.Messages)
			}
			ends(t, "tcp", s.addr)
		})
	}
}

// rooms is a handler of rooms, to whose members messages go by Broadcast, and of numbered messages
// from inside: to each room, and to all. It keeps the newest message of each room.
type rooms struct {
	MessageFunc
	srv    *Server
	fails  int    // Restore ends the process when it has been called so often; 0 is never
	state  string // what SaveState does instead
	saving func() // and first, if it is set
	quiet  chan struct{}
	inside sync.WaitGroup
	// retained gives what lets a connection go that was to be busy.
	retained chan func()

	mu       sync.Mutex
	members  map[string]*Group
	newest   map[string]string
	restored int
}

func newRooms(srv *Server, fails int) *rooms {
	h := &rooms{srv: srv, fails: fails, quiet: make(chan struct{}), retained: make(chan func(), 1), members: map[string]*Group{}, newest: map[string]string{}}
	srv.Handler = Lines(h)
	listening := srv.Listening
	srv.Listening = func(a net.Addr) {
		h.mu.Lock()
		h.inside.Go(h.publishInside)
		h.mu.Unlock()
		if listening != nil {
			listening(a)
		}
	}
	end := sync.OnceFunc(func() {
		h.mu.Lock() // inside has begun
		defer h.mu.Unlock()
		close(h.quiet)
	})
	srv.Stopping = func() {
		end()
		h.inside.Wait()
	}
	return h
}

const testRooms = 10

// publishInside numbers its messages, to one room after the other and now and then to all, until
// it is to be quiet.
func (h *rooms) publishInside() {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	publish := func(do func() error) {
		for errors.Is(do(), ErrFull) {
			time.Sleep(time.Millisecond)
		}
	}
	var n [testRooms]int
	toRoom := func(room int, last string) {
		n[room]++
		publish(func() error {
			_, err := h.srv.Broadcast(Broadcast{Group: strconv.Itoa(room), Message: fmt.Appendf(nil, "inside-%d %d%s", os.Getpid(), n[room], last)})
			return err
		})
	}
	toAll := func(i int, last string) {
		publish(func() error {
			_, err := h.srv.Broadcast(Broadcast{All: true, Message: fmt.Appendf(nil, "all-%d %d%s\n", os.Getpid(), i, last)})
			return err
		})
	}
	for i := 0; ; i++ {
		select {
		case <-h.quiet:
			for room := range testRooms {
				toRoom(room, " end")
			}
			toAll(i/testRooms+1, " end")
			return
		case <-tick.C:
			toRoom(i%testRooms, "")
			if i%testRooms == testRooms-1 {
				toAll(i/testRooms+1, "")
			}
		}
	}
}

func (h *rooms) SendToGroup(b Broadcast) (receivers int) {
	h.mu.Lock()
	g := h.members[b.Group]
	h.newest[b.Group] = string(b.Message)
	h.mu.Unlock()
	if g == nil {
		return 0
	}
	receivers, full := g.Broadcast(append(b.Message[:len(b.Message):len(b.Message)], '\n'))
	if full > 0 {
		panic("a mailbox is full")
	}
	return receivers
}

func (h *rooms) join(c *Conn, room string) {
	c.SetValue(room)
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.members[room]
	if g == nil {
		g = new(Group)
		h.members[room] = g
	}
	g.Add(c.Ref())
}

func (h *rooms) Message(c *Conn, line []byte) {
	word, rest, _ := strings.Cut(string(line), " ")
	switch word {
	case "join":
		h.join(c, rest)
		fmt.Fprintln(c, "joined")
	case "say":
		room, text, _ := strings.Cut(rest, " ")
		if _, err := h.srv.Broadcast(Broadcast{Group: room, Message: []byte(text)}); err != nil {
			fmt.Fprintln(c, "full")
			return
		}
		fmt.Fprintln(c, "said")
	case "newest":
		h.mu.Lock()
		defer h.mu.Unlock()
		fmt.Fprintln(c, h.newest[rest])
	case "pid":
		fmt.Fprintln(c, "pid", os.Getpid())
	case "upgrade":
		upgradeFor(c)
	case "retain":
		c.Retain()
		ref := c.Ref()
		h.retained <- func() { _ = ref.Release() }
	case "quiet":
		go h.srv.Stopping()
	case "stop":
		go h.srv.Close()
	}
}

func (h *rooms) Save(c *Conn, to []byte) ([]byte, error) {
	room, _ := c.Value().(string)
	return append(to, room...), nil
}

func (h *rooms) Restore(c *Conn, state []byte) error {
	if len(state) > 0 {
		h.join(c, string(state))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.restored++; h.restored == h.fails {
		os.Exit(9)
	}
	return nil
}

func (h *rooms) SaveState(w io.Writer) error {
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
	return json.NewEncoder(w).Encode(h.newest)
}

func (h *rooms) RestoreState(r io.Reader) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return json.NewDecoder(r).Decode(&h.newest)
}

// Closed lets a member go.
func (h *rooms) Closed(c *Conn, _ error) {
	room, ok := c.Value().(string)
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.members[room].Remove(c.Ref())
}

// guest is a client of rooms that compares the numbers of each publisher.
type guest struct {
	*lineClient
	last map[string]int
}

// until reads until so many publishers have said their last word, and says what was wrong.
func (m *guest) until(ends int, whole func(publisher string) bool) error {
	for ends > 0 {
		line, err := m.in.ReadString('\n')
		if err != nil {
			return err
		}
		words := strings.Fields(line)
		n, err := strconv.Atoi(words[1])
		if err != nil {
			return fmt.Errorf("got %q", line)
		}
		last, known := m.last[words[0]]
		if known && n != last+1 || !known && whole(words[0]) && n != 1 {
			return fmt.Errorf("%s: number %d behind %d", words[0], n, last)
		}
		m.last[words[0]] = n
		if len(words) > 2 {
			ends--
		}
	}
	return nil
}

// TestUpgradePublishes publishes from inside and by connections, to rooms and to all, through two
// upgrades: each member gets each message of each publisher once, in order.
func TestUpgradePublishes(t *testing.T) {
	members, sayers := 300, 4
	if os.Getenv("MYRIAD_TEST_FULL") != "" && !raced() {
		members = 2000
		testkit.ReserveDescriptors(t, 2*members+200)
	}
	for _, models := range [][2]string{{"epoll", "uring"}, {"uring", "goroutine"}, {"goroutine", "epoll"}} {
		t.Run(models[0]+" to "+models[1], func(t *testing.T) {
			srv := &Server{Addr: "127.0.0.1:0", Model: models[0], Loops: 2}
			if models[0] == "goroutine" {
				srv.Loops = 0
			}
			ready := make(chan string, 1)
			srv.Listening = func(a net.Addr) { ready <- a.String() }
			srv.Successor = succeeded(t, successorConfig{Addr: "127.0.0.1:0", Model: models[1], Rooms: true})
			newRooms(srv, 0)
			ended := make(chan error, 1)
			go func() { ended <- srv.ListenAndServe(context.Background()) }()
			addr := testkit.Receive(t, ready, "the address")
			dial := func(room int) *guest {
				c := newLineClient(t, "tcp", addr)
				must(t, c.SetDeadline(time.Now().Add(6*patience)))
				_, err := fmt.Fprintf(c, "join %d\n", room)
				must(t, err)
				for {
					line, err := c.in.ReadString('\n')
					must(t, err)
					if line == "joined\n" {
						return &guest{c, map[string]int{}}
					}
				}
			}
			var all []*guest
			for i := range members {
				all = append(all, dial(i%testRooms))
			}
			// The old process's own numbers begin before there are members, everything else's at 1.
			whole := func(publisher string) bool { return !strings.HasSuffix(publisher, fmt.Sprint("-", os.Getpid())) }
			var reading, saying sync.WaitGroup
			for i, m := range all {
				reading.Go(func() {
					if err := m.until(sayers+6, whole); err != nil {
						t.Errorf("member %d: %v", i, err)
					}
				})
			}
			quiet := make(chan struct{})
			for i := range sayers {
				c := newLineClient(t, "tcp", addr)
				c.in = bufio.NewReader(&onlyAnswers{in: bufio.NewReader(c)})
				saying.Go(func() {
					tick := time.NewTicker(40 * time.Millisecond)
					defer tick.Stop()
					for n, last := 0, ""; last == ""; n++ {
						for room := 0; room < testRooms; {
							select {
							case <-tick.C:
							case <-quiet:
								if room == 0 {
									last = " end"
								}
							}
							answer, err := c.ask(fmt.Sprintf("say %d sayer-%d %d%s", room, i, n+1, last))
							switch {
							case err != nil:
								t.Errorf("publisher %d: %v", i, err)
								return
							case answer == "said":
								room++
							}
						}
					}
				})
			}
			boss := newLineClient(t, "tcp", addr)
			boss.in = bufio.NewReader(&onlyAnswers{in: bufio.NewReader(boss)})
			pid := func() string {
				answer, err := boss.ask("pid")
				must(t, err)
				return answer
			}
			pid()
			eventually(t, func() bool { return srv.Stats().Broadcasts > 3 }, func() string { return "nothing is published from inside" })
			u, err := srv.Upgrade(context.Background())
			if must(t, err); u.Moved != members+sayers+1 {
				t.Errorf("%+v; want %d moved", u, members+sayers+1)
			}
			ok(t, testkit.Receive(t, ended, "the end of the first process"))
			second := pid()
			_, err = io.WriteString(boss, "upgrade\n")
			must(t, err)
			testkit.WaitFor(t, "there is no second upgrade", func() bool { return pid() != second })
			testkit.WaitFor(t, "the second process does not end", func() bool { return len(childrenOf(t, second)) == 0 })
			seen := map[string]bool{}
			testkit.WaitFor(t, "nothing is published after the upgrades", func() bool {
				newest, err := boss.ask("newest 0")
				must(t, err)
				seen[newest] = true
				return len(seen) > 5
			})
			close(quiet)
			saying.Wait()
			_, err = io.WriteString(boss, "quiet\n")
			must(t, err)
			reading.Wait()
			answer, err := boss.ask("newest 0")
			if must(t, err); !strings.HasSuffix(answer, " end") {
				t.Errorf("the newest message is %q", answer)
			}
			_, err = io.WriteString(boss, "stop\n")
			must(t, err)
			_, _ = io.Copy(io.Discard, boss)
		})
	}
}

// childrenOf is a process of "pid N", if it is there.
func childrenOf(t *testing.T, pid string) []string {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + strings.TrimPrefix(pid, "pid ") + "/stat")
	if err != nil || strings.Contains(string(stat), ") Z ") {
		return nil
	}
	return []string{pid}
}

// onlyAnswers leaves out what is sent to all.
type onlyAnswers struct {
	in   *bufio.Reader
	rest []byte
}

func (a *onlyAnswers) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		line, err := a.in.ReadBytes('\n')
		if err != nil {
			return 0, err
		}
		if !strings.HasPrefix(string(line), "all-") {
			a.rest = line
		}
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// forgetful is a handler that keeps a Value and can't save it.
type forgetful struct {
	MessageFunc
	moved chan string // the log when a connection has moved
	log   *logBook
}

func (h forgetful) Closed(_ *Conn, why error) {
	if errors.Is(why, ErrHandedOver) {
		h.moved <- h.log.String()
	}
}

// TestUpgradeValues upgrades a server whose handler has Values and is no Migrator: before anything
// moves a warning names the handler and the cure, and the outcome has the number and the reason.
func TestUpgradeValues(t *testing.T) {
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) {
			log := &logBook{}
			srv := &Server{Addr: "127.0.0.1:0", Model: model, Log: log.logger()}
			srv.Successor = succeeded(t, successorConfig{Addr: srv.Addr, Model: model})
			h := forgetful{func(c *Conn, line []byte) {
				if string(line) == "keep" {
					c.SetValue("something")
				}
				fmt.Fprintf(c, "%s 1\n", line)
			}, make(chan string, 1), log}
			srv.Handler = Lines(h)
			s := start(t, srv)
			var last *lineClient
			for _, says := range []string{"keep", "keep", "keep", "go"} {
				last = newLineClient(t, "tcp", s.addr)
				last.want(t, says, says+" 1")
			}
			u, err := s.Upgrade(context.Background())
			if err != nil || u.Moved != 1 || len(u.Stayed) != 1 || u.Stayed["value without Migrator"] != 3 {
				t.Fatalf("Upgrade: %+v, %v; want one moved, and three with a value", u, err)
			}
			if want := "3 stay until they are drained (value without Migrator: 3)"; !u.Done || !strings.Contains(u.String(), want) {
				t.Errorf("it says %q; want %q", u, want)
			}
			before := <-h.moved
			for _, want := range []string{"level=WARN msg=\"connections with a Value will not move", "connections=3", "handler=tcp.forgetful", "Save and Restore"} {
				if !strings.Contains(before, want) {
					t.Errorf("the log has no %q before the hand-over:\n%s", want, before)
				}
			}
			if text := log.String(); !strings.Contains(text, "\"stay_reasons.value without Migrator\"=3") {
				t.Errorf("the log has no reasons:\n%s", text)
			}
			_, err = io.WriteString(last, "stop\n") // the new process
			must(t, err)
			awaitGone(t, u.PID)
		})
	}
}

// TestUpgradeNetConns upgrades servers with blocking code: the warning does not speak of a Migrator.
func TestUpgradeNetConns(t *testing.T) {
	log := &logBook{}
	l := NewNetListener()
	srv := &Server{Addr: "127.0.0.1:0", Handler: l, Log: log.logger()}
	srv.Successor = succeeded(t, successorConfig{Addr: srv.Addr})
	s := start(t, srv)
	dial(t, s.addr)
	n, err := l.Accept()
	must(t, err)
	defer n.Close()
	u, err := s.Upgrade(context.Background())
	if err != nil || u.Moved != 0 || len(u.Stayed) != 1 || u.Stayed["NetConn"] != 1 {
		t.Fatalf("Upgrade: %+v, %v; want one that stays as a NetConn", u, err)
	}
	if text := log.String(); !strings.Contains(text, "level=WARN msg=\"connections of a NetListener") || strings.Contains(text, "Save and Restore") {
		t.Errorf("the log has\n%s", text)
	}
	last := newLineClient(t, "tcp", s.addr)
	_, err = io.WriteString(last, "stop\n") // the new process
	must(t, err)
	awaitGone(t, u.PID)
}

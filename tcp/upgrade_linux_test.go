package tcp

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

func init() { successorMain = runSuccessor }

// successorConfig configures a process of these tests.
type successorConfig struct {
	Addr, Network, Model string
	Loops, MaxConns      int
	Processes            int
	Does                 string // instead of serving, or in Save or Restore
	After                int    // which call of those that is
	TLS, Publishes       bool
	Descriptors, Files   int    // the limit, and how many files it has open
	PIDs                 string // a file that each process adds its number to
}

// note is the Value of a connection, and its saved state.
type note struct {
	Lines      int    // that it has sent
	Room, Does string // where it is a member, and what Save does
}

// upgradeHandler is the handler of these tests. It answers a line with the line and its number,
// or executes a command.
type upgradeHandler struct {
	MessageFunc // for Opened
	srv         *Server
	config      successorConfig
	closed      func(why error)
	saving      func()      // called in SaveState, if it is set
	state       string      // what SaveState does instead
	retained    chan func() // releases a connection
	quiet       chan struct{}
	inside      sync.WaitGroup // publish

	mu      sync.Mutex
	calls   int
	members map[string]*Group
	newest  map[string]string // message of each room
}

func newUpgradeHandler(srv *Server, cfg successorConfig) *upgradeHandler {
	h := &upgradeHandler{
		srv: srv, config: cfg, retained: make(chan func(), 1), quiet: make(chan struct{}),
		members: map[string]*Group{"0": new(Group), "1": new(Group)}, newest: map[string]string{},
	}
	srv.Handler = Lines(h)
	if cfg.Publishes {
		srv.Listening = func(net.Addr) { h.inside.Go(h.broadcastNumbers) }
		end := sync.OnceFunc(func() { close(h.quiet) })
		srv.Stopping = func() {
			end()
			h.inside.Wait()
		}
	}
	return h
}

func (h *upgradeHandler) Message(c *Conn, line []byte) {
	n, ok := c.Value().(*note)
	if !ok {
		n = new(note)
		c.SetValue(n)
	}
	n.Lines++
	switch word, rest, _ := strings.Cut(string(line), " "); word {
	case "pid":
		fmt.Fprintln(c, os.Getpid())
	case "stop":
		go h.srv.Close()
	case "resume":
		fmt.Fprintln(c, h.srv.Stats().AcceptingPaused, h.srv.ResumeAccepting())
	case "upgrade":
		srv, ref := h.srv, c.Ref()
		go func() {
			if _, err := srv.Upgrade(context.Background()); err != nil {
				_ = ref.Send([]byte(err.Error() + "\n"))
			}
		}()
	case "own":
		_ = c.SetHandler(Lines(ownHandler{h})) // from the next call on
		fmt.Fprintln(c, "is")
	case "does":
		n.Does = rest
		fmt.Fprintln(c, "does")
	case "retain":
		c.Retain()
		ref := c.Ref()
		h.retained <- func() { _ = ref.Release() }
	case "totals":
		_ = json.NewEncoder(c).Encode(readTotals(h.srv))
	case "join":
		n.Room = rest
		h.members[rest].Add(c.Ref())
		fmt.Fprintln(c, "joined")
	case "newest":
		h.mu.Lock()
		defer h.mu.Unlock()
		c.WriteString(h.newest[rest])
	case "quiet":
		go h.srv.Stopping()
	default:
		fmt.Fprintf(c, "%s %d\n", line, n.Lines)
	}
}

// misbehaveIfConfigured counts calls of a method, and in the configured call does what the settings say.
func (h *upgradeHandler) misbehaveIfConfigured(method string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	does, ok := strings.CutSuffix(h.config.Does, " in "+method)
	if h.calls++; !ok || h.calls != h.config.After {
		return
	}
	switch does {
	case "die":
		os.Exit(9)
	case "stop":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		sleepForever() // other threads may be stopped sooner than this one
	case "kill its parent":
		_ = syscall.Kill(os.Getppid(), syscall.SIGKILL)
	}
}

func sleepForever() {
	for {
		<-time.After(time.Hour)
	}
}

func (h *upgradeHandler) Save(c *Conn, to []byte) ([]byte, error) {
	h.misbehaveIfConfigured("Save")
	n, ok := c.Value().(*note)
	if !ok {
		n = new(note)
	}
	switch n.Does {
	case "stay":
		return nil, errors.New("it stays")
	case "go later":
		return nil, ErrSaveLater
	case "panic":
		panic("in Save")
	}
	p, err := json.Marshal(n)
	return append(to, p...), err
}

func (h *upgradeHandler) Restore(c *Conn, state []byte) error {
	n := new(note)
	if err := json.Unmarshal(state, n); err != nil {
		return err
	}
	c.SetValue(n)
	if g := h.members[n.Room]; g != nil {
		g.Add(c.Ref())
	}
	h.misbehaveIfConfigured("Restore")
	return nil
}

// sendCloseReasonsTo sends the reasons of closed connections to whys.
func (h *upgradeHandler) sendCloseReasonsTo(reasons chan<- error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = func(why error) { reasons <- why }
}

func (h *upgradeHandler) Closed(_ *Conn, why error) {
	h.mu.Lock()
	closed := h.closed
	h.mu.Unlock()
	if closed != nil {
		closed(why)
	}
}

// ownHandler is the handler of connections that have sent "own".
type ownHandler struct{ *upgradeHandler }

func (h ownHandler) Message(c *Conn, line []byte) {
	_, _ = c.WriteString("own ")
	h.upgradeHandler.Message(c, line)
}

func (h *upgradeHandler) SaveHandler(c *Conn, of Handler, to []byte) ([]byte, error) {
	f, ok := of.(*framer)
	if ok {
		_, ok = f.MessageHandler.(ownHandler)
	}
	if !ok {
		return nil, errors.New("no handler of ours")
	}
	return h.Save(c, to)
}

func (h *upgradeHandler) RestoreHandler(c *Conn, state []byte) error {
	if err := h.Restore(c, state); err != nil || c.Value().(*note).Does == "forget" {
		return err
	}
	return c.SetHandler(Lines(ownHandler{h}))
}

// runSuccessor is the main function of a successor process.
func runSuccessor(settings string) int {
	var cfg successorConfig
	err := json.Unmarshal([]byte(settings), &cfg)
	if err == nil && cfg.PIDs != "" {
		var f *os.File
		if f, err = os.OpenFile(cfg.PIDs, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			_, err = fmt.Fprintln(f, os.Getpid())
			f.Close()
		}
	}
	if err == nil && cfg.Descriptors > 0 {
		limit := syscall.Rlimit{Cur: uint64(cfg.Descriptors), Max: uint64(cfg.Descriptors)}
		err = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	}
	for range cfg.Files {
		f, _ := os.Open(os.DevNull)
		defer f.Close()
	}
	does, asWorker := strings.CutSuffix(cfg.Does, " as a worker")
	if _, worker := WorkerProcess(); worker == asWorker {
		switch does {
		case "crash":
			return 3
		case "leave":
			return 0
		case "hang":
			sleepForever()
		case "stop itself":
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			sleepForever()
		}
	}
	srv := &Server{Addr: cfg.Addr, Network: cfg.Network, Model: cfg.Model, Loops: cfg.Loops, Processes: cfg.Processes, Successor: newTestBinaryCommand}
	srv.Limits.MaxConns, srv.Limits.Linger = cfg.MaxConns, 50*time.Millisecond
	if cfg.TLS {
		srv.TLSConfig, _ = identity()
	}
	if cfg.Does == "other settings" {
		srv.Loops = -1
	}
	newUpgradeHandler(srv, cfg)
	ctx := context.Background()
	if cfg.Processes > 0 {
		ctx = handleTestSignals(srv)
	}
	if err == nil {
		err = srv.ListenAndServe(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// newTestBinaryCommand returns a command that runs this test binary with the same settings.
func newTestBinaryCommand() (*exec.Cmd, error) {
	cmd := exec.Command(os.Args[0])
	cmd.Stderr = os.Stderr
	return cmd, nil
}

// newSuccessorFunc returns a Server.Successor that starts a process with these settings.
func newSuccessorFunc(t testing.TB, cfg successorConfig) func() (*exec.Cmd, error) {
	t.Helper()
	settings, err := json.Marshal(cfg)
	requireNoError(t, err)
	return func() (*exec.Cmd, error) {
		cmd, err := newTestBinaryCommand()
		cmd.Env = append(os.Environ(), successorSettings+"="+string(settings), "GORACE=atexit_sleep_ms=0")
		if cfg.Does != "" {
			cmd.Stderr = nil
		}
		return cmd, err
	}
}

// startUpgradable starts a server whose successor has these settings.
func startUpgradable(t *testing.T, srv *Server, next successorConfig) (*started, *upgradeHandler) {
	t.Helper()
	h := newUpgradeHandler(srv, successorConfig{Publishes: next.Publishes})
	next.Addr, next.Network = "127.0.0.1:0", srv.Network
	if srv.Addr != "" {
		next.Addr = srv.Addr
	}
	srv.Successor = newSuccessorFunc(t, next)
	return startServer(t, srv), h
}

// dialManyWithPartialLine connects n clients that have sent one line and half of another.
func dialManyWithPartialLine(t *testing.T, addr string, n int, partialLine string) (clients []*testkit.Conn) {
	t.Helper()
	for range n {
		c := dial(t, addr)
		c.Exchange("a", "a 1")
		c.Send(partialLine)
		clients = append(clients, c)
	}
	return clients
}

// servingPID returns the PID of the process that serves a client.
func servingPID(t testing.TB, c *testkit.Conn) int {
	t.Helper()
	c.Send("pid\n")
	pid, err := strconv.Atoi(c.ReadLine())
	requireNoError(t, err)
	return pid
}

// stopServerAt stops the process that serves an address, and waits for its end.
func stopServerAt(t testing.TB, addr string) {
	t.Helper()
	c := dial(t, addr)
	pid := servingPID(t, c)
	c.Send("stop\n")
	waitProcessEnd(t, pid)
}

func waitProcessEnd(t testing.TB, pid int) {
	t.Helper()
	waitFor(t, fmt.Sprintf("process %d is left", pid), func() bool { return hasProcessEnded(pid) })
}

func hasProcessEnded(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// totals are counters that continue from one process to the next.
type totals struct {
	Accepted, OfListener, HandedOver, TakenOver, Closed, Messages, BytesIn, BytesOut int64
}

func readTotals(srv *Server) totals {
	s := srv.Stats()
	return totals{
		Accepted: s.Accepted, OfListener: srv.ListenerStats()[0].Accepted, HandedOver: s.HandedOver, TakenOver: s.TakenOver,
		Closed:   s.Closed.Peer + s.Closed.Handler + s.Closed.Other + s.Closed.Reset + s.Closed.Shutdown,
		Messages: s.Messages, BytesIn: s.BytesIn, BytesOut: s.BytesOut,
	}
}

// meteredConn counts what a client's connection sends and receives.
type meteredConn struct {
	net.Conn
	lines, out, in *atomic.Int64
}

func (m meteredConn) Write(p []byte) (int, error) {
	m.lines.Add(int64(strings.Count(string(p), "\n")))
	m.out.Add(int64(len(p)))
	return m.Conn.Write(p)
}

func (m meteredConn) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	m.in.Add(int64(n))
	return n, err
}

// TestUpgrade hands connections over twice, with half a message and the handler's state, together
// with the listeners. The new process must accept nothing earlier, nothing is written to disk, a
// connection that is not saved stays, and counters continue exactly.
func TestUpgrade(t *testing.T) {
	for _, c := range []struct {
		name                  string
		from, to              string
		loops, newLoops, most int
		network               string
		half                  int // bytes
	}{
		{"epoll", Epoll, Epoll, 2, 2, 0, "tcp", 7},
		{"uring to goroutine", Uring, Goroutine, 2, 0, 0, "tcp", 7},
		{"goroutine to uring", Goroutine, Uring, 0, 3, 0, "tcp", 7},
		{"3 loops to 2, with more than a message of the processes takes", Epoll, Uring, 3, 2, 0, "tcp", 60 << 10},
		{"shards", Uring, Epoll, 0, 0, shardConns, "tcp", 7},
		{"unix socket", Epoll, Epoll, 1, 1, 0, "unix", 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n = 20
			srv := &Server{Network: c.network, Model: c.from, Loops: c.loops}
			if c.network == "unix" {
				srv.Addr = filepath.Join(t.TempDir(), "s")
			}
			t.Setenv("TMPDIR", "/none")
			t.Setenv("HOME", "/none")
			srv.Limits.MaxConns = c.most
			s, h := startUpgradable(t, srv, successorConfig{Model: c.to, Loops: c.newLoops, MaxConns: c.most})
			var lines, in, out atomic.Int64
			connect := func() *testkit.Conn {
				return testkit.NewConn(t, meteredConn{dial(t, s.addr).Conn, &lines, &in, &out})
			}
			whys := make(chan error, 2*n+1)
			h.sendCloseReasonsTo(whys)
			var clients []*testkit.Conn
			half := strings.Repeat("x", c.half)
			for range n {
				clients = append(clients, connect())
				clients[len(clients)-1].Exchange("a", "a 1")
				clients[len(clients)-1].Send(half)
			}
			stays := connect()
			stays.Exchange("does stay", "does")
			waitFor(t, "not all input has come", func() bool { return s.Stats().BytesIn == in.Load() })
			h.saving = func() { // the new process is ready
				for range n {
					early := connect()
					if pid := servingPID(t, early); pid != os.Getpid() {
						t.Errorf("process %d accepts before the upgrade", pid)
					}
					early.Close()
					<-whys
				}
			}
			u, err := s.Upgrade(t.Context())
			if err != nil || u.Moved != n || u.Lost != 0 || !maps.Equal(u.Stayed, map[string]int{"not saved": 1}) {
				t.Fatalf("Upgrade: %+v, %v; want %d connections moved, and one not saved", u, err, n)
			}
			if _, err := s.Upgrade(t.Context()); !errors.Is(err, ErrServerClosed) {
				t.Errorf("after an upgrade: %v, want ErrServerClosed", err)
			}
			stays.ExpectClosed()
			expectNoError(t, s.waitResult(t))
			for handed := 0; handed < n; {
				switch why := <-whys; {
				case errors.Is(why, ErrHandedOver):
					handed++
				case !errors.Is(why, ErrServerClosed):
					t.Fatalf("closed for %v, want ErrHandedOver", why)
				}
			}
			for _, client := range clients {
				client.Exchange(" line", half+" line 2")
				if pid := servingPID(t, client); pid != u.PID {
					t.Fatalf("process %d serves, want %d", pid, u.PID)
				}
			}
			clients[0].Send("upgrade\n")
			for _, client := range clients {
				testkit.WaitFor(t, "there is no second upgrade", func() bool { return servingPID(t, client) != u.PID })
			}
			waitProcessEnd(t, u.PID)
			for range n { // whichever socket of the listener they come to
				connect().Exchange("b", "b 1")
			}
			var got, want totals
			testkit.WaitForFunc(t, func() bool {
				want = totals{3*n + 1, 3*n + 1, 2 * n, 2 * n, n + 1, lines.Load(), 0, out.Load()}
				clients[0].Send("totals\n")
				want.BytesIn = in.Load()
				requireNoError(t, json.Unmarshal([]byte(clients[0].ReadLine()), &got))
				return got == want
			}, func() string { return fmt.Sprintf("counted\n%+v, want\n%+v", got, want) })
			stopServerAt(t, s.addr)
			if c.network == "unix" {
				if _, err := os.Lstat(s.addr); err == nil {
					t.Error("the socket's file is left behind")
				}
			}
		})
	}
}

// TestUpgradeFails tests all kinds of failures: the server continues as if nothing had happened.
func TestUpgradeFails(t *testing.T) {
	const n, soon = 20, 200 * time.Millisecond
	for _, c := range []struct {
		name, model, does, says string
		lost, paused            bool
		patience, timeout       time.Duration // of upgradeReplyTimeout, and of the context
		command                 func() (*exec.Cmd, error)
	}{
		{name: "crashes", model: Uring, does: "crash", says: "has ended: exit status 3"},
		{name: "ends at once", model: Epoll, does: "leave", says: "has ended by itself"},
		{name: "is stopped at its start", model: Goroutine, does: "stop itself", says: "did not send \"ready\" within 200ms", patience: soon},
		{name: "is stopped in the middle", model: Goroutine, does: "stop in Restore", says: "has gone", lost: true, patience: time.Second},
		{name: "can't be served with", model: Goroutine, does: "other settings", says: "cannot serve: myriad: Server.Loops is -1"},
		{name: "dies in the middle", model: Epoll, does: "die in Restore", says: "has gone", lost: true},
		{name: "dies in the middle", model: Uring, does: "die in Restore", says: "has gone", lost: true},
		{name: "dies while accepting is paused", model: Goroutine, does: "die in Restore", says: "has gone", lost: true, paused: true},
		{name: "no such file", model: Epoll, says: "no such file", command: func() (*exec.Cmd, error) { return exec.Command("/no/such/file"), nil }},
		{name: "no command", model: Uring, says: "not today", command: func() (*exec.Cmd, error) { return nil, errors.New("not today") }},
		{name: "another program", model: Epoll, says: "deadline exceeded", timeout: soon, command: func() (*exec.Cmd, error) { return exec.Command("sleep", "100"), nil }},
	} {
		t.Run(c.name+"/"+c.model, func(t *testing.T) {
			srv := &Server{Model: c.model}
			s, _ := startUpgradable(t, srv, successorConfig{Model: Epoll, Does: c.does, After: n / 2})
			if c.command != nil {
				srv.Successor = c.command
			}
			if c.patience > 0 {
				defer func(was time.Duration) { upgradeReplyTimeout = was }(upgradeReplyTimeout)
				upgradeReplyTimeout = c.patience
			}
			clients := dialManyWithPartialLine(t, s.addr, n, "")
			if c.paused {
				requireNoError(t, s.PauseAccepting())
				s.waitAcceptPaused(t, true)
			}
			before := countDescriptors(t)
			ctx := t.Context()
			if c.timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.timeout)
				defer cancel()
			}
			u, err := s.Upgrade(ctx)
			if err == nil || !strings.Contains(err.Error(), c.says) || (u.Lost > 0) != c.lost {
				t.Fatalf("Upgrade: %+v, %v; want an error that says %q, connections lost: %v", u, err, c.says, c.lost)
			}
			if text := u.String(); u.Done || !strings.Contains(text, "has not taken over") && !strings.Contains(text, "none was started") {
				t.Errorf("a failed upgrade says %q", text)
			}
			served := 0
			for _, client := range clients {
				_, _ = io.WriteString(client, "b\n") // it may be lost
				if answer, err := client.R.ReadString('\n'); err == nil && answer != "b 2\n" {
					t.Errorf("answered %q, want b 2", answer)
				} else if err == nil {
					served++
				}
			}
			if served+u.Lost != n {
				t.Errorf("%d of %d are served, %d are said to be lost", served, n, u.Lost)
			}
			if c.paused {
				s.waitAcceptPaused(t, true)
				requireNoError(t, s.ResumeAccepting())
			}
			another := dial(t, s.addr)
			another.Exchange("c", "c 1")
			another.Close()
			expectNoChildren(t)
			testkit.WaitFor(t, "descriptors are left", func() bool { return countDescriptors(t) <= before })
		})
	}
}

// TestUpgradeRefused checks when Upgrade is rejected.
func TestUpgradeRefused(t *testing.T) {
	s, _ := startUpgradable(t, &Server{}, successorConfig{Does: "hang"})
	if _, err := new(Server).Upgrade(t.Context()); !errors.Is(err, ErrServerClosed) {
		t.Errorf("before the start: %v, want ErrServerClosed", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := s.Upgrade(ctx)
		first <- err
	}()
	waitFor(t, "no process is started", func() bool { return len(childPIDs(t)) == 1 })
	if _, err := s.Upgrade(t.Context()); !errors.Is(err, ErrUpgrading) {
		t.Errorf("during another one: %v, want ErrUpgrading", err)
	}
	cancel()
	if err := testkit.Receive(t, first, "the end of Upgrade"); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	requireNoError(t, s.Close())
	if _, err := s.Upgrade(t.Context()); !errors.Is(err, ErrServerClosed) {
		t.Errorf("after the end: %v, want ErrServerClosed", err)
	}
}

// TestUpgradePaused checks that accepting stays paused in the new process.
func TestUpgradePaused(t *testing.T) {
	s, _ := startUpgradable(t, &Server{}, successorConfig{})
	c := dialManyWithPartialLine(t, s.addr, 1, "")[0]
	requireNoError(t, s.PauseAccepting())
	s.waitAcceptPaused(t, true)
	_, err := s.Upgrade(t.Context())
	requireNoError(t, err)
	expectNoError(t, s.waitResult(t))
	late := dial(t, s.addr)
	c.Exchange("resume", "true <nil>")
	late.Exchange("b", "b 1")
	stopServerAt(t, s.addr)
}

// TestUpgradeOwnHandlers hands over connections with their own handlers and half a line; one as
// soon as it can be saved. Those that are not saved stay, and one that gets no handler is closed.
func TestUpgradeOwnHandlers(t *testing.T) {
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) {
			s, h := startUpgradable(t, &Server{Model: model}, successorConfig{Model: model})
			whys := make(chan error, 10)
			h.sendCloseReasonsTo(whys)
			clients := map[string]*testkit.Conn{}
			for _, does := range []string{"move", "stay", "go later", "forget", "panic", "be plain"} {
				c := dial(t, s.addr)
				c.Exchange("a", "a 1")
				if does != "be plain" {
					c.Exchange("own", "is")
					c.Exchange("does "+does, "own does")
				}
				c.Send("half ")
				clients[does] = c
			}
			waitFor(t, "not all input has come", func() bool { return s.Stats().BytesIn == 6*(2+5)+5*(4+5+1)+4+4+8+6+5 })
			upgraded := make(chan Upgraded, 1)
			go func() {
				u, err := s.Upgrade(context.Background())
				expectNoError(t, err)
				upgraded <- u
			}()
			panicked := 0
			for range 4 { // all but those that stay or go later
				why := testkit.Receive(t, whys, "the end of a connection here")
				if _, ok := errors.AsType[*PanicError](why); ok {
					panicked++
				} else if !errors.Is(why, ErrHandedOver) {
					t.Errorf("closed for %v, want ErrHandedOver", why)
				}
			}
			if panicked != 1 {
				t.Errorf("%d were closed for a panic, want 1", panicked)
			}
			clients["go later"].Exchange("a line", "own half a line 4")
			clients["go later"].Exchange("does move", "own does")
			if u := testkit.Receive(t, upgraded, "the end of the upgrade"); u.Moved != 4 || u.Lost != 0 {
				t.Errorf("%+v; want 4 moved", u)
			}
			clients["move"].Exchange("a line", "own half a line 4")
			clients["go later"].Exchange("x", "own x 6")
			clients["be plain"].Exchange("a line", "half a line 2")
			clients["stay"].Exchange("a line", "own half a line 4") // then it is drained
			for _, does := range []string{"forget", "panic", "stay"} {
				if got := clients[does].ExpectClosed(); got != "" {
					t.Errorf("%s: a connection that was to end says %q", does, got)
				}
			}
			expectNoError(t, s.waitResult(t))
			stopServerAt(t, s.addr)
		})
	}
}

// unsavedValueHandler sets a Value and can't save it.
type unsavedValueHandler struct {
	MessageFunc
	moved chan string // the log when a connection has moved
	log   *logRecorder
}

func (h unsavedValueHandler) Closed(_ *Conn, why error) {
	if errors.Is(why, ErrHandedOver) {
		h.moved <- h.log.String()
	}
}

// TestUpgradeValues upgrades a server whose handler has Values and is no Migrator: a warning
// before the transfer names the handler and the remedy, and the result has the number and the
// reason.
func TestUpgradeValues(t *testing.T) {
	log := &logRecorder{}
	h := unsavedValueHandler{func(c *Conn, line []byte) {
		if string(line) == "keep" {
			c.SetValue("something")
		}
		echoLine(c, line)
	}, make(chan string, 1), log}
	srv := &Server{Addr: "127.0.0.1:0", Log: log.newLogger(), Handler: Lines(h), Successor: newSuccessorFunc(t, successorConfig{Addr: "127.0.0.1:0"})}
	s := startServer(t, srv)
	for _, says := range []string{"keep", "keep", "keep", "go"} {
		dial(t, s.addr).Exchange(says, says)
	}
	u, err := s.Upgrade(t.Context())
	if err != nil || u.Moved != 1 || !maps.Equal(u.Stayed, map[string]int{"value without Migrator": 3}) {
		t.Fatalf("Upgrade: %+v, %v; want one moved, and three with a value", u, err)
	}
	if want := "3 stay until they are drained (value without Migrator: 3)"; !u.Done || !strings.Contains(u.String(), want) {
		t.Errorf("it says %q; want %q", u, want)
	}
	before := <-h.moved
	for _, want := range []string{"level=WARN msg=\"connections with a Value will not move", "connections=3", "handler=tcp.unsavedValueHandler", "Save and Restore"} {
		if !strings.Contains(before, want) {
			t.Errorf("the log has no %q before the hand-over:\n%s", want, before)
		}
	}
	log.waitForLine(t, "\"stay_reasons.value without Migrator\"=3")
	expectNoError(t, s.waitResult(t))
	stopServerAt(t, s.addr)
}

// TestUpgradeNetConns upgrades servers with blocking code: the warning does not mention Migrator.
func TestUpgradeNetConns(t *testing.T) {
	log := &logRecorder{}
	l := NewNetListener()
	s := startServer(t, &Server{Addr: "127.0.0.1:0", Handler: l, Log: log.newLogger(), Successor: newSuccessorFunc(t, successorConfig{Addr: "127.0.0.1:0"})})
	dial(t, s.addr)
	n, err := l.Accept()
	requireNoError(t, err)
	defer n.Close()
	u, err := s.Upgrade(t.Context())
	if err != nil || u.Moved != 0 || !maps.Equal(u.Stayed, map[string]int{"NetConn": 1}) {
		t.Fatalf("Upgrade: %+v, %v; want one that stays as a NetConn", u, err)
	}
	log.waitForLine(t, "level=WARN msg=\"connections of a NetListener")
	if text := log.String(); strings.Contains(text, "Save and Restore") {
		t.Errorf("the log has\n%s", text)
	}
	stopServerAt(t, s.addr)
}

// TestUpgradeTLS checks that TLS connections are closed properly, at the rate of a shutdown, and
// that their clients resume their sessions in the new process and the one after that.
func TestUpgradeTLS(t *testing.T) {
	const n, rate = 4, 10
	for version, model := range map[uint16]string{tls.VersionTLS12: Epoll, tls.VersionTLS13: Uring} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			server, client := identity()
			client = client.Clone()
			client.MaxVersion, client.ClientSessionCache = version, tls.NewLRUClientSessionCache(0)
			srv := &Server{Model: model, TLSConfig: server, Limits: Limits{ShutdownRate: rate}}
			s, _ := startUpgradable(t, srv, successorConfig{Model: model, TLS: true})
			connect := func(resumes bool) *testkit.Conn {
				t.Helper()
				c := testkit.DialTLS(t, s.addr, client)
				c.Exchange("a", "a 1") // the answer comes behind the server's tickets
				if resumed := c.Conn.(*tls.Conn).ConnectionState().DidResume; resumed != resumes {
					t.Errorf("a session is resumed: %v, want %v", resumed, resumes)
				}
				return c
			}
			clients := []*testkit.Conn{connect(false)}
			for range n - 1 {
				clients = append(clients, connect(true))
			}
			begin := time.Now()
			u, err := s.Upgrade(t.Context())
			if err != nil || u.Moved != 0 || u.Lost != 0 {
				t.Fatalf("Upgrade: %+v, %v; want nothing moved", u, err)
			}
			for _, c := range clients {
				c.ExpectEOF("") // a close-notify
				c.Close()
			}
			if took, least := time.Since(begin), (n-1)*time.Second/rate-50*time.Millisecond; took < least {
				t.Errorf("%d connections are drained in %v, want at least %v with %d a second", n, took, least, rate)
			}
			expectNoError(t, s.waitResult(t))
			next := connect(true)
			if pid := servingPID(t, next); pid != u.PID {
				t.Errorf("process %d serves; want %d", pid, u.PID)
			}
			next.Send("upgrade\n")
			next.ExpectEOF("")
			waitProcessEnd(t, u.PID)
			last := connect(true)
			pid := servingPID(t, last)
			last.Send("stop\n")
			waitProcessEnd(t, pid)
		})
	}
}

// TestUpgradeDescriptors checks that connections stay if the new process runs out of descriptors,
// and that none is lost.
func TestUpgradeDescriptors(t *testing.T) {
	const n, limit = 200, 220
	for _, c := range []struct {
		from, to     string
		loops, files int // of the new process
	}{{Epoll, Epoll, 2, 0}, {Goroutine, Uring, 1, 100}, {Uring, Goroutine, 0, 100}} {
		t.Run(fmt.Sprintf("%s to %s, %d files", c.from, c.to, c.files), func(t *testing.T) {
			s, _ := startUpgradable(t, &Server{Model: c.from}, successorConfig{Model: c.to, Loops: c.loops, Descriptors: limit, Files: c.files})
			clients := dialManyWithPartialLine(t, s.addr, n, "half")
			waitFor(t, "not all input has come", func() bool { return s.Stats().BytesIn == n*6 })
			u, err := s.Upgrade(t.Context())
			if most := limit - c.files; err != nil || u.Lost != 0 || u.Moved == 0 || u.Moved > most {
				t.Errorf("Upgrade: %+v, %v; want some moved, %d at most, and none lost", u, err, most)
			}
			for _, client := range clients {
				client.Exchange(" line", "half line 2")
			}
			expectNoError(t, s.waitResult(t)) // the others have been drained
			served := 0
			for _, client := range clients {
				_, _ = io.WriteString(client, "b\n") // it may have ended
				if answer, err := client.R.ReadString('\n'); err == nil && answer == "b 3\n" {
					served++
				}
				client.Close()
			}
			if served != u.Moved {
				t.Errorf("%d are served by the new process, %d have moved", served, u.Moved)
			}
			stopServerAt(t, s.addr)
		})
	}
}

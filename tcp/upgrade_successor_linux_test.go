package tcp

import (
	"cmp"
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
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

func init() { successorMain = runSuccessor }

// successorConfig configures a server of these tests, in this process or another one.
type successorConfig struct {
	Addr, Network, Model string
	Loops, Processes     int
	Limits               Limits
	Does                 string // instead of serving, or in Save or Restore
	After                int    // which call of those that is
	TLS, Publishes       bool
	DisableCompactTLS    bool
	Ticks                bool   // broadcasts its number at each tick
	Descriptors, Files   int    // the limit, and how many files it has open
	PIDs                 string // a file that each process adds its number to
	Tagged               []taggedListener
	Clients              int // instead of serving, that many clients of Addr
}

func (cfg successorConfig) newServer() (*Server, *upgradeHandler) {
	srv := &Server{Addr: cmp.Or(cfg.Addr, "127.0.0.1:0"), Network: cfg.Network, Model: cfg.Model, Loops: cfg.Loops, Processes: cfg.Processes, DisableCompactTLS: cfg.DisableCompactTLS}
	srv.Limits = cfg.Limits
	srv.Limits.Linger = 50 * time.Millisecond
	if cfg.TLS {
		srv.TLSConfig, _ = identity()
	}
	newHandler := func(tag string) *upgradeHandler {
		return &upgradeHandler{
			srv: srv, config: cfg, tag: tag,
			closed: make(chan error, 1000), retained: make(chan func(), 1), quiet: make(chan struct{}),
			members: map[string]*Group{"0": new(Group), "1": new(Group)}, newest: map[string]string{},
		}
	}
	h := newHandler("")
	srv.Handler = Lines(h)
	for _, l := range cfg.Tagged {
		srv.Listeners = append(srv.Listeners, Listener{Name: l.Name, Addr: l.Addr, Handler: Lines(newHandler(l.Tag))})
	}
	if cfg.Ticks {
		srv.TickInterval = time.Millisecond
		srv.OnTick = func() { _, _ = srv.Broadcast(Broadcast{All: true, Message: fmt.Appendf(nil, "%d\n", os.Getpid())}) }
	}
	if cfg.Publishes {
		srv.Listening = func(net.Addr) { h.publishing.Go(h.broadcastNumbers) }
		end := sync.OnceFunc(func() { close(h.quiet) })
		srv.Stopping = func() {
			end()
			h.publishing.Wait()
		}
	}
	return srv, h
}

// note is the Value of a connection, and its saved state.
type note struct {
	Lines      int    // that it has sent
	Room, Does string // where it is a member, and what Save does
	Tag        string // of the handler that has saved it
}

// upgradeHandler is the handler of these tests. It answers a line with the line and its number, behind its tag and the
// tag of the handler whose state it has, or executes a command.
type upgradeHandler struct {
	MessageFunc // for Opened
	srv         *Server
	config      successorConfig
	tag         string
	closed      chan error  // close reasons, as long as there is room
	saving      func()      // called in SaveState, if it is set
	state       string      // what SaveState does instead
	retained    chan func() // releases a connection
	quiet       chan struct{}
	publishing  sync.WaitGroup

	mu      sync.Mutex
	calls   int
	members map[string]*Group
	newest  map[string]string // message of each room
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
	case "pause":
		fmt.Fprintln(c, h.srv.PauseAccepting())
	case "paused":
		fmt.Fprintln(c, h.srv.Stats().AcceptingPaused)
	case "resume":
		fmt.Fprintln(c, h.srv.ResumeAccepting())
	case "listener":
		fmt.Fprintln(c, c.Listener())
	case "cast":
		if _, err := h.srv.Broadcast(Broadcast{All: true, Message: []byte(rest + "\n")}); err != nil {
			fmt.Fprintln(c, err)
		}
	case "collect":
		runtime.GC()
		fmt.Fprintln(c, "collected")
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
		fmt.Fprintf(c, "%+v\n", readTotals(h.srv))
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
		if h.tag != "" {
			h.mu.Lock()
			fmt.Fprintf(c, "%s[%s] ", h.tag, h.newest["tag"])
			h.mu.Unlock()
		}
		fmt.Fprintf(c, "%s %d\n", line, n.Lines)
	}
}

func (h *upgradeHandler) Closed(_ *Conn, why error) {
	select {
	case h.closed <- why:
	default:
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
		stopItself()
	case "kill its parent":
		_ = syscall.Kill(os.Getppid(), syscall.SIGKILL)
	}
}

func stopItself() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	sleepForever() // other threads may be stopped sooner than this one
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
	n.Tag = h.tag
	p, err := json.Marshal(n)
	return append(to, p...), err
}

func (h *upgradeHandler) Restore(c *Conn, state []byte) error {
	n := new(note)
	if err := json.Unmarshal(state, n); err != nil || n.Tag != h.tag {
		return fmt.Errorf("state %s for the handler %q: %w", state, h.tag, err)
	}
	c.SetValue(n)
	if g := h.members[n.Room]; g != nil {
		g.Add(c.Ref())
	}
	h.misbehaveIfConfigured("Restore")
	return nil
}

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

func runSuccessor(settings string) int {
	var cfg successorConfig
	err := json.Unmarshal([]byte(settings), &cfg)
	if cfg.Clients > 0 {
		return runClients(cfg.Addr, cfg.Clients)
	}
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
	_, worker := WorkerProcess()
	if worker == asWorker {
		switch does {
		case "crash":
			return 3
		case "leave":
			return 0
		case "hang":
			sleepForever()
		case "stop itself":
			stopItself()
		}
	}
	srv, _ := cfg.newServer()
	srv.Successor = newTestBinaryCommand
	if cfg.Does == "other settings" {
		srv.Loops = -1
	}
	ctx := context.Background()
	if cfg.Processes > 0 && !worker {
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

// handleTestSignals upgrades a server at SIGUSR2, and returns a context that ends at SIGTERM.
func handleTestSignals(srv *Server) context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2)
	go func() {
		for range asked {
			if _, err := srv.Upgrade(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
	return ctx
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

// startUpgradable starts a server in this process, whose workers and successor are others. The successor
// gets the same address.
func startUpgradable(t *testing.T, from, to successorConfig, changes ...func(*Server)) (*started, *upgradeHandler) {
	t.Helper()
	to.Addr, to.Network, from.Publishes = from.Addr, from.Network, to.Publishes
	if from.Processes > 0 {
		settings, err := json.Marshal(from)
		requireNoError(t, err)
		t.Setenv(successorSettings, string(settings))
		t.Setenv("GORACE", "atexit_sleep_ms=0") // the race detector would hold up each exit by a second
	}
	srv, h := from.newServer()
	srv.Successor = newSuccessorFunc(t, to)
	for _, change := range changes {
		change(srv)
	}
	return startServer(t, srv), h
}

// upgradeMoving upgrades a server, of whose connections the given number moves, and others stay for the given reasons.
func (s *started) upgradeMoving(t *testing.T, moved int, stayed map[string]int) Upgraded {
	t.Helper()
	u, err := s.Upgrade(t.Context())
	if err != nil || u.Moved != moved || u.Lost != 0 || !maps.Equal(u.Stayed, stayed) {
		t.Fatalf("Upgrade: %+v, %v; want %d connections moved, none lost, and these staying: %v", u, err, moved, stayed)
	}
	return u
}

// dialResuming connects with TLS and asks for the serving process. It checks whether the session is resumed.
func dialResuming(t *testing.T, addr string, client *tls.Config, resumes bool) (c *testkit.Conn, pid int) {
	t.Helper()
	c = testkit.DialTLS(t, addr, client)
	pid = servingPID(t, c) // the answer comes behind the server's tickets
	expectEqual(t, "a session is resumed", c.Conn.(*tls.Conn).ConnectionState().DidResume, resumes)
	return c, pid
}

// dialManyWithPartialLine connects n clients that have sent one line and half of another.
func dialManyWithPartialLine(t *testing.T, addr string, n int, partialLine string) (clients []*testkit.Conn) {
	t.Helper()
	for range n {
		c := dial(t, addr)
		c.ExchangeLine("a", "a 1")
		c.Send(partialLine)
		clients = append(clients, c)
	}
	return clients
}

// countServed returns how many clients get this answer to the line b. Others have ended.
func countServed(t *testing.T, clients []*testkit.Conn, want string) (served int) {
	t.Helper()
	for _, client := range clients {
		_, _ = io.WriteString(client, "b\n") // it may have ended
		switch answer, err := client.R.ReadString('\n'); {
		case err != nil:
		case answer == want+"\n":
			served++
		default:
			t.Errorf("answered %q, want %q", answer, want)
		}
	}
	return served
}

func servingPID(t testing.TB, c *testkit.Conn) int {
	t.Helper()
	c.Send("pid\n")
	pid, err := strconv.Atoi(c.ReadLine())
	requireNoError(t, err)
	return pid
}

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

package tcp

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

func init() { successorMain = succeed }

// successorConfig is such a server.
type successorConfig struct {
	Addr, Network, Model string
	Loops, MaxConns      int
	Processes            int
	Does                 string // instead of serving
	After                int    // connections that have come, before it does that
	TLS                  bool
	Descriptors, Files   int    // the limit, and how many files it has open
	PIDs                 string // a file that each process adds its number to
	Rooms                bool   // its handler is of rooms
}

// counted is a handler whose connections know how many lines they have had. It answers each
// line with itself and that, but for commands.
type counted struct {
	MessageFunc
	srv    *Server
	closed func(why error)
	does   string
	after  int

	mu  sync.Mutex
	did int
}

func (h *counted) Message(c *Conn, line []byte) {
	n, _ := c.Value().(int)
	c.SetValue(n + 1)
	switch string(line) {
	case "pid":
		fmt.Fprintln(c, os.Getpid())
	case "stop":
		go h.srv.Close()
	case "own":
		_ = c.SetHandler(Lines(owning{h})) // from the next call on
		fmt.Fprintln(c, "is")
	case "upgrade":
		c.SetValue(n)
		upgradeFor(c)
	case "stay":
		c.SetValue("stays")
	case "stats":
		_ = json.NewEncoder(c).Encode(countsOf(h.srv))
	default:
		fmt.Fprintf(c, "%s %d\n", line, n+1)
	}
}

// upgradeFor upgrades a connection's server, and tells it if that fails.
func upgradeFor(c *Conn) {
	srv, ref := c.Server(), c.Ref()
	go func() {
		if _, err := srv.Upgrade(context.Background()); err != nil {
			_ = ref.Send([]byte(err.Error() + "\n"))
		}
	}()
}

func (h *counted) Save(c *Conn, to []byte) ([]byte, error) {
	if c.Value() == "stays" {
		return nil, errors.New("it stays")
	}
	n, _ := c.Value().(int)
	return binary.AppendUvarint(to, uint64(n)), nil
}

func (h *counted) Restore(c *Conn, state []byte) error {
	n, _ := binary.Uvarint(state)
	c.SetValue(int(n))
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.did++; h.did == h.after+1 {
		switch h.does {
		case "die":
			os.Exit(9)
		case "stop in the middle":
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			time.Sleep(time.Hour) // other threads may be stopped sooner than this one
		}
	}
	return nil
}

// Closed is how connections end.
func (h *counted) Closed(_ *Conn, why error) {
	if h.closed != nil {
		h.closed(why)
	}
}

// succeed is a process that takes another's place.
func succeed(settings string) int {
	var cfg successorConfig
	if err := json.Unmarshal([]byte(settings), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if cfg.PIDs != "" {
		f, err := os.OpenFile(cfg.PIDs, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = fmt.Fprintln(f, os.Getpid())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		f.Close()
	}
	if does, ok := strings.CutSuffix(cfg.Does, " as a worker"); ok {
		if _, worker := WorkerProcess(); worker {
			cfg.Does = does
		}
	}
	if cfg.Descriptors > 0 {
		limit := syscall.Rlimit{Cur: uint64(cfg.Descriptors), Max: uint64(cfg.Descriptors)}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	for range cfg.Files {
		f, err := os.Open(os.DevNull)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer f.Close()
	}
	switch cfg.Does {
	case "crash":
		return 3
	case "leave":
		return 0
	case "hang":
		time.Sleep(time.Hour)
	case "stop itself":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(time.Hour)
	}
	srv := &Server{Addr: cfg.Addr, Network: cfg.Network, Model: cfg.Model, Loops: cfg.Loops, Processes: cfg.Processes, Successor: again}
	srv.Limits.MaxConns, srv.Limits.Linger = cfg.MaxConns, 50*time.Millisecond
	if cfg.TLS {
		srv.TLSConfig, _ = identity()
	}
	if cfg.Does == "other settings" {
		srv.Loops = -1
	}
	h := &counted{srv: srv, does: cfg.Does, after: cfg.After}
	srv.Handler = Lines(h)
	if cfg.Rooms {
		newRooms(srv, cfg.After)
	}
	ctx := context.Background()
	if cfg.Processes > 0 {
		ctx = obeySignals(srv)
	}
	if err := srv.ListenAndServe(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// again is a process of this test binary with the same settings.
func again() (*exec.Cmd, error) {
	cmd := exec.Command(os.Args[0])
	cmd.Stderr = os.Stderr
	return cmd, nil
}

// succeeded has a server's successor be a process of these settings.
func succeeded(t testing.TB, cfg successorConfig) func() (*exec.Cmd, error) {
	t.Helper()
	settings, err := json.Marshal(cfg)
	must(t, err)
	return func() (*exec.Cmd, error) {
		cmd, err := again()
		cmd.Env = append(os.Environ(), successorSettings+"="+string(settings), "GORACE=atexit_sleep_ms=0")
		if cfg.Does != "" {
			cmd.Stderr = nil
		}
		return cmd, err
	}
}

// lineClient is one that asks a line at a time.
type lineClient struct {
	net.Conn
	in *bufio.Reader
}

func newLineClient(t testing.TB, network, addr string) *lineClient {
	t.Helper()
	nc, err := net.DialTimeout(network, addr, patience)
	must(t, err)
	t.Cleanup(func() { nc.Close() })
	must(t, nc.SetDeadline(time.Now().Add(2*patience)))
	return &lineClient{nc, bufio.NewReader(nc)}
}

func (c *lineClient) ask(line string) (string, error) {
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return "", err
	}
	answer, err := c.in.ReadString('\n')
	return strings.TrimSuffix(answer, "\n"), err
}

func (c *lineClient) want(t testing.TB, line, answer string) {
	t.Helper()
	if got, err := c.ask(line); err != nil || got != answer {
		t.Fatalf("asked %q: %q, %v; want %q", line, got, err, answer)
	}
}

// pid is who serves.
func (c *lineClient) pid(t testing.TB) int {
	t.Helper()
	answer, err := c.ask("pid")
	must(t, err)
	pid, err := strconv.Atoi(answer)
	must(t, err)
	return pid
}

// ends has the process that serves an address end, and waits for that.
func ends(t testing.TB, network, addr string) {
	t.Helper()
	pid := newLineClient(t, network, addr).pid(t)
	must(t, tryEnd(network, addr))
	awaitGone(t, pid)
}

// tryEnd has the process that serves an address end, if there is one.
func tryEnd(network, addr string) error {
	nc, err := net.DialTimeout(network, addr, patience)
	if err != nil {
		return err
	}
	defer nc.Close()
	c := &lineClient{nc, bufio.NewReader(nc)}
	if _, err = c.ask("pid"); err == nil {
		_, err = io.WriteString(c, "stop\n")
	}
	return err
}

func awaitGone(t testing.TB, pid int) {
	t.Helper()
	testkit.WaitFor(t, fmt.Sprintf("process %d is left", pid), func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// TestUpgrade hands connections on twice: half a message, what is known of each, and the place
// where others connect.
func TestUpgrade(t *testing.T) {
	for _, c := range []struct {
		name                  string
		from, to              string
		loops, newLoops, most int
		network               string
	}{
		{"epoll", "epoll", "epoll", 2, 2, 0, "tcp"},
		{"uring to goroutine", "uring", "goroutine", 2, 0, 0, "tcp"},
		{"goroutine to uring", "goroutine", "uring", 0, 3, 0, "tcp"},
		{"3 loops to 2", "epoll", "uring", 3, 2, 0, "tcp"},
		{"shards", "uring", "epoll", 0, 0, shardConns, "tcp"},
		{"unix socket", "epoll", "epoll", 1, 1, 0, "unix"},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n = 40
			addr := "127.0.0.1:0"
			if c.network == "unix" {
				addr = filepath.Join(t.TempDir(), "s")
			}
			whys := make(chan error, n)
			srv := &Server{Addr: addr, Network: c.network, Model: c.from, Loops: c.loops}
			srv.Limits.MaxConns = c.most
			srv.Successor = succeeded(t, successorConfig{Addr: addr, Network: c.network, Model: c.to, Loops: c.newLoops, MaxConns: c.most})
			srv.Handler = Lines(&counted{srv: srv, closed: func(why error) { whys <- why }})
			s := start(t, srv)
			var clients []*lineClient
			for range n {
				client := newLineClient(t, c.network, s.addr)
				client.want(t, "a", "a 1")
				_, err := io.WriteString(client, "half a ")
				must(t, err)
				clients = append(clients, client)
			}
			eventually(t, func() bool { return s.Stats().BytesIn == n*9 }, func() string { return "not all input has come" })
			u, err := s.Upgrade(context.Background())
			if err != nil || u.Moved != n || u.Lost != 0 {
				t.Fatalf("Upgrade: %+v, %v; want %d connections moved", u, err, n)
			}
			if _, err := s.Upgrade(context.Background()); !errors.Is(err, ErrServerClosed) {
				t.Errorf("after an upgrade: %v, want ErrServerClosed", err)
			}
			ok(t, s.result(t))
			for range n {
				if why := <-whys; !errors.Is(why, ErrHandedOver) {
					t.Fatalf("closed for %v, want ErrHandedOver", why)
				}
			}
			for _, client := range clients {
				client.want(t, "line", "half a line 2")
				if pid := client.pid(t); pid != u.PID {
					t.Fatalf("process %d serves, want %d", pid, u.PID)
				}
			}
			_, err = io.WriteString(clients[0], "upgrade\n")
			must(t, err)
			for _, client := range clients {
				testkit.WaitFor(t, "there is no second upgrade", func() bool { return client.pid(t) != u.PID })
			}
			awaitGone(t, u.PID)
			for range 20 { // whichever socket of the listener they come to
				newLineClient(t, c.network, s.addr).want(t, "b", "b 1")
			}
			ends(t, c.network, s.addr)
			if c.network == "unix" {
				if _, err := os.Lstat(addr); err == nil {
					t.Error("the socket's file is left behind")
				}
			}
		})
	}
}

// TestUpgradeFails has everything go wrong: the server goes on as if nothing had been.
func TestUpgradeFails(t *testing.T) {
	for _, c := range []struct {
		name, does, says string
		lost             bool
		patience         time.Duration
		command          func() (*exec.Cmd, error)
		models           []string // all, if none: those that wait are on one each, as nothing is held by then
	}{
		{name: "crashes", does: "crash", says: "has ended: exit status 3"},
		{name: "ends at once", does: "leave", says: "has ended by itself"},
		{name: "hangs", does: "hang", says: "deadline exceeded", models: []string{"epoll"}},
		{name: "says nothing", does: "hang", says: "does not say within 300ms that it is ready", patience: 300 * time.Millisecond, models: []string{"uring"}},
		{name: "is stopped at its start", does: "stop itself", says: "does not say within 300ms", patience: 300 * time.Millisecond, models: []string{"goroutine"}},
		{name: "is stopped in the middle", does: "stop in the middle", says: "has gone", lost: true, patience: time.Second, models: []string{"epoll", "goroutine"}},
		{name: "can't be served with", does: "other settings", says: "can't serve: myriad: Server.Loops is -1"},
		{name: "dies in the middle", does: "die", says: "has gone", lost: true},
		{name: "no such file", says: "no such file", command: func() (*exec.Cmd, error) { return exec.Command("/no/such/file"), nil }},
		{name: "no command", says: "not today", command: func() (*exec.Cmd, error) { return nil, errors.New("not today") }},
		{name: "another program", says: "deadline exceeded", command: func() (*exec.Cmd, error) { return exec.Command("sleep", "100"), nil }, models: []string{"epoll"}},
	} {
		if c.models == nil {
			c.models = []string{"epoll", "uring", "goroutine"}
		}
		for _, model := range c.models {
			t.Run(c.name+"/"+model, func(t *testing.T) {
				const n = 20
				srv := &Server{Addr: "127.0.0.1:0", Model: model}
				srv.Successor = succeeded(t, successorConfig{Addr: srv.Addr, Model: "epoll", Does: c.does, After: 10})
				if c.command != nil {
					srv.Successor = c.command
				}
				srv.Handler = Lines(&counted{srv: srv})
				if c.patience > 0 {
					defer func(was time.Duration) { upgradePatience = was }(upgradePatience)
					upgradePatience = c.patience
				}
				s := start(t, srv)
				var clients []*lineClient
				for range n {
					client := newLineClient(t, "tcp", s.addr)
					client.want(t, "a", "a 1")
					clients = append(clients, client)
				}
				before := openDescriptors(t)
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				if strings.Contains(c.says, "deadline") {
					cancel()
					ctx, cancel = context.WithTimeout(context.Background(), 300*time.Millisecond)
				}
				defer cancel()
				u, err := s.Upgrade(ctx)
				if err == nil || !strings.Contains(err.Error(), c.says) || (u.Lost > 0) != c.lost {
					t.Fatalf("Upgrade: %+v, %v; want an error that says %q, connections lost: %v", u, err, c.says, c.lost)
				}
				if text := u.String(); u.Done || strings.Contains(text, "has taken over with") || !strings.Contains(text, "has not taken over") && !strings.Contains(text, "none was started") {
					t.Errorf("a failed upgrade says %q", text)
				}
				served := 0
				for _, client := range clients {
					if answer, err := client.ask("b"); err == nil && answer != "b 2" {
						t.Errorf("answered %q, want b 2", answer)
					} else if err == nil {
						served++
					}
				}
				if served+u.Lost != n {
					t.Errorf("%d of %d are served, %d are said to be lost", served, n, u.Lost)
				}
				another := newLineClient(t, "tcp", s.addr)
				another.want(t, "c", "c 1")
				another.Close()
				if pids := children(t); len(pids) > 0 {
					t.Errorf("processes are left: %v", pids)
				}
				testkit.WaitFor(t, "descriptors are left", func() bool { return openDescriptors(t) <= before })
			})
		}
	}
}

// TestUpgradeRefused is what is no time, or no server, for an upgrade.
func TestUpgradeRefused(t *testing.T) {
	s := start(t, &Server{Model: "epoll", Successor: succeeded(t, successorConfig{Does: "hang"})})
	if _, err := new(Server).Upgrade(context.Background()); !errors.Is(err, ErrServerClosed) {
		t.Errorf("before the start: %v, want ErrServerClosed", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	first := make(chan error, 1)
	go func() {
		_, err := s.Upgrade(ctx)
		first <- err
	}()
	eventually(t, func() bool { return len(children(t)) == 1 }, func() string { return "no process is started" })
	if _, err := s.Upgrade(context.Background()); !errors.Is(err, ErrUpgrading) {
		t.Errorf("during another one: %v, want ErrUpgrading", err)
	}
	cancel()
	if err := testkit.Receive(t, first, "the end of Upgrade"); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	must(t, s.Close())
	if _, err := s.Upgrade(context.Background()); !errors.Is(err, ErrServerClosed) {
		t.Errorf("after the end: %v, want ErrServerClosed", err)
	}
}

// TestUpgradeKilled kills either process at some moment of an upgrade. A connection then goes
// on where it is, with what was known of it, or ends; and whoever is left serves.
func TestUpgradeKilled(t *testing.T) {
	for i := range 20 {
		model := []string{"epoll", "uring", "goroutine"}[i%3]
		t.Run(fmt.Sprintf("%d/%s", i, model), func(t *testing.T) {
			const n = 300
			dir := t.TempDir()
			path, pids := filepath.Join(dir, "s"), filepath.Join(dir, "pids")
			first, err := succeeded(t, successorConfig{Addr: path, Network: "unix", Model: model, PIDs: pids})()
			must(t, err)
			must(t, first.Start())
			over := make(chan error, 1)
			go func() { over <- first.Wait() }()
			testkit.WaitFor(t, "the server does not listen", func() bool {
				c, err := net.Dial("unix", path)
				if err == nil {
					c.Close()
				}
				return err == nil
			})
			var clients []*lineClient
			for range n {
				client := newLineClient(t, "unix", path)
				client.want(t, "a", "a 1")
				clients = append(clients, client)
			}
			_, err = io.WriteString(clients[0], "upgrade\n")
			must(t, err)
			var next int
			testkit.WaitFor(t, "no process is started", func() bool {
				all, _ := os.ReadFile(pids)
				_, err := fmt.Sscan(string(all), new(int), &next)
				return err == nil
			})
			time.Sleep(rand.N(12 * time.Millisecond)) // any moment will do
			victim := first.Process.Pid
			if i%2 == 0 {
				victim = next
			}
			_ = syscall.Kill(victim, syscall.SIGKILL) // it may have ended
			served := 0
			for j, client := range clients {
				answer, err := client.ask("b")
				for j == 0 && err == nil && !strings.HasPrefix(answer, "b ") { // how the upgrade has failed
					answer, err = client.in.ReadString('\n')
					answer = strings.TrimSuffix(answer, "\n")
				}
				switch {
				case err != nil:
				case answer != "b 2":
					t.Errorf("answered %q, want b 2", answer)
				default:
					served++
				}
			}
			t.Logf("%d of %d go on", served, n)
			if err := tryEnd("unix", path); err != nil && served > 0 {
				t.Errorf("%d are served, but nobody who connects: %v", served, err)
			}
			awaitGone(t, next)
			_ = first.Process.Kill()
			testkit.Receive(t, over, "the end of the first process")
		})
	}
}

package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/testkit"
)

// role is the variable that tells another process of these tests what it is:
// its supervisor or, in a worker, what that does.
const role = "MYRIAD_TEST_ROLE"

const patience = time.Minute

func TestMain(m *testing.M) {
	w := Own()
	switch r := os.Getenv(role); {
	case w != nil:
		os.Exit(w.act(r))
	case r == "supervisor":
		os.Exit(superviseOrphans())
	}
	os.Exit(m.Run())
}

// act is main in the workers of these tests.
func (w *Worker) act(role string) int {
	switch role {
	case "exit": // before it serves
		return 7
	case "hang", "supervisor": // serves, drains, and does not end then
		w.exit = 50 * time.Millisecond
		if err := w.serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		forever()
	}
	fmt.Fprintf(os.Stderr, "unknown role %q\n", role)
	return 1
}

// forever does not return. An empty select is no way to do so: without cgo the runtime
// ends a program in which nothing else goes on.
func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

func (w *Worker) serve() error {
	l, err := w.Take(w.Addrs, w.Processes)
	if err != nil {
		return err
	}
	if _, again := w.Take(w.Addrs, w.Processes); again == nil {
		return errors.New("the listener was given twice")
	}
	log := slog.New(slog.DiscardHandler)
	model, _ := models.BestAvailable()
	e, err := model.Start(engine.Config{Listeners: []engine.Listener{{Sockets: l[0]}}, Handler: silent{}, Loops: 1, Log: log, Limits: engine.Limits{
		MaxConns: 100, MaxMessage: 100, MaxUnsent: 100, MaxMail: 100, MaxMailBytes: 100, CloseTimeout: time.Second, Linger: time.Second,
	}})
	if err != nil {
		return err
	}
	return w.Run(context.Background(), e, 50*time.Millisecond, log)
}

// silent uses all input.
type silent struct{}

func (silent) Opened(*engine.Conn)                    {}
func (silent) Received(_ *engine.Conn, in []byte) int { return len(in) }
func (silent) Ended(_ *engine.Conn, in []byte) int    { return len(in) }
func (silent) Closed(*engine.Conn, error)             {}

func config(workers int, serving func(net.Addr)) Config {
	return Config{Addrs: []Address{{"tcp", "127.0.0.1:0"}}, Processes: workers, Serving: serving, Log: slog.New(slog.DiscardHandler)}
}

// superviseOrphans starts workers, says so, and waits to be killed.
func superviseOrphans() int {
	_, err := startWith(config(2, func(net.Addr) { fmt.Println("serving") }), standard)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {}
}

// short are times for tests.
var short = timing{backoff: time.Millisecond, maxBackoff: 4 * time.Millisecond, settled: time.Hour, attempts: 3,
	start: 100 * time.Millisecond, exit: 50 * time.Millisecond}

func TestWorkersThatExit(t *testing.T) {
	t.Setenv(role, "exit")
	p := short
	p.start = patience // on a busy machine it takes a while until they end
	s, err := startWith(config(2, nil), p)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Receive(t, s.done, "the end of the supervisor")
	if err := s.Err(); !errors.Is(err, ErrGaveUp) || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("%v; want an error that wraps ErrGaveUp and says how the workers ended", err)
	}
	if n := s.Restarts(); n < 4 {
		t.Errorf("two workers with three lives each were started again %d times", n)
	}
	if c, err := net.Dial("tcp", s.Addr().String()); err == nil {
		c.Close()
		t.Error("the address is still listened on")
	}
}

// A worker that has drained and does not end is killed, by a supervisor that
// stops too.
func TestWorkersThatHang(t *testing.T) {
	t.Setenv(role, "hang")
	serving := make(chan net.Addr, 1)
	p := short
	p.start = patience
	s, err := startWith(config(2, func(a net.Addr) { serving <- a }), p)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Receive(t, serving, "workers that serve")
	if n := s.Loops(); n != 2 {
		t.Errorf("%d loops in two processes", n)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// Workers whose supervisor was killed end, even when their main hangs.
func TestOrphans(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), role+"=supervisor")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(out)
	line, err := in.ReadString('\n')
	if err != nil || line != "serving\n" {
		t.Errorf("it said %q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	// The workers hold the other end of the pipe as long as they live.
	if err := out.(*os.File).SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Error(err)
	}
	if rest, err := in.ReadString('\n'); err != io.EOF {
		t.Errorf("the workers live on: %q, %v", rest, err)
	}
	_ = cmd.Wait() // it was killed
}

func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := config(2, nil)
	cfg.Addrs[0].Addr = l.Addr().String()
	if _, err := Start(cfg); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%v, want EADDRINUSE", err)
	}
}

// A program that finds the variable by accident is told so, and keeps its
// descriptors.
func TestAccidentalVariable(t *testing.T) {
	w := &Worker{identity: identity{Processes: 1, Addrs: []Address{{"tcp", ":9000"}}, Sockets: []int{1}}}
	if err := w.inherit(); err == nil || !strings.Contains(err.Error(), "unset it") {
		t.Errorf("%v, want what to do", err)
	}
}

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

// roleEnv is the variable that selects what a child process of these tests does, as a supervisor or
// as a worker.
const roleEnv = "MYRIAD_TEST_ROLE"

const patience = time.Minute

func TestMain(m *testing.M) {
	w := CurrentWorker()
	switch r := os.Getenv(roleEnv); {
	case w != nil:
		os.Exit(w.runRole(r))
	case r == "supervisor":
		os.Exit(runSupervisorUntilKilled())
	}
	os.Exit(m.Run())
}

func (w *Worker) runRole(role string) int {
	switch role {
	case "exit": // before it serves
		return 7
	case "hang", "supervisor": // it does not exit after the drain
		w.exitTimeout = 50 * time.Millisecond
		if err := w.serveOnce(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		sleepForever()
	}
	fmt.Fprintf(os.Stderr, "unknown role %q\n", role)
	return 1
}

// sleepForever never returns. It is not an empty select, because without cgo the runtime ends a
// program in which all goroutines are blocked.
func sleepForever() {
	for {
		time.Sleep(time.Hour)
	}
}

func (w *Worker) serveOnce() error {
	l, err := w.ClaimListeners(w.Addrs, w.Processes)
	if err != nil {
		return err
	}
	if _, again := w.ClaimListeners(w.Addrs, w.Processes); again == nil {
		return errors.New("the listener was given twice")
	}
	log := slog.New(slog.DiscardHandler)
	model, _ := models.BestAvailable()
	e, err := model.Start(engine.Config{Listeners: []engine.Listener{{Sockets: l[0]}}, Handler: discardHandler{}, Loops: 1, Log: log, Limits: engine.Limits{
		MaxConns: 100, MaxMessage: 100, MaxUnsent: 100, MaxMail: 100, MaxMailBytes: 100, CloseTimeout: time.Second, Linger: time.Second,
	}})
	if err != nil {
		return err
	}
	return w.Run(context.Background(), e, 50*time.Millisecond, log)
}

type discardHandler struct{}

func (discardHandler) Opened(*engine.Conn)                    {}
func (discardHandler) Received(_ *engine.Conn, in []byte) int { return len(in) }
func (discardHandler) Ended(_ *engine.Conn, in []byte) int    { return len(in) }
func (discardHandler) Closed(*engine.Conn, error)             {}

func newTestConfig(workers int, serving func(net.Addr)) Config {
	return Config{Addrs: []Address{{"tcp", "127.0.0.1:0"}}, Processes: workers, OnServing: serving, Log: slog.New(slog.DiscardHandler)}
}

func runSupervisorUntilKilled() int {
	_, err := startSupervisorWithTiming(newTestConfig(2, func(net.Addr) { fmt.Println("serving") }), defaultTiming)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {}
}

// shortTiming has a long startTimeout, because on a busy machine workers take a while to exit.
var shortTiming = timing{backoff: time.Millisecond, maxBackoff: 4 * time.Millisecond, resetAfter: time.Hour, maxFailures: 3,
	startTimeout: patience, exitTimeout: 50 * time.Millisecond}

func TestWorkersThatExit(t *testing.T) {
	t.Setenv(roleEnv, "exit")
	s, err := startSupervisorWithTiming(newTestConfig(2, nil), shortTiming)
	testkit.RequireNoError(t, err)
	testkit.Receive(t, s.done, "the end of the supervisor")
	if err := s.Err(); !errors.Is(err, ErrGaveUp) || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("%v; want an error that wraps ErrGaveUp and says how the workers ended", err)
	}
	if c, err := net.Dial("tcp", s.Addr().String()); err == nil {
		c.Close()
		t.Error("the address is still listened on")
	}
}

// TestWorkersThatHang checks that a worker that does not end after its drain is killed, also by a
// supervisor that stops.
func TestWorkersThatHang(t *testing.T) {
	t.Setenv(roleEnv, "hang")
	serving := make(chan net.Addr, 1)
	s, err := startSupervisorWithTiming(newTestConfig(2, func(a net.Addr) { serving <- a }), shortTiming)
	testkit.RequireNoError(t, err)
	testkit.Receive(t, serving, "workers that serve")
	if n := s.Loops(); n != 2 {
		t.Errorf("%d loops in two processes", n)
	}
	testkit.ExpectNoError(t, s.Stop(t.Context()))
}

// TestOrphans checks that workers end after their supervisor was killed, even if main hangs.
func TestOrphans(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=supervisor")
	out, err := cmd.StdoutPipe()
	testkit.RequireNoError(t, err)
	testkit.RequireNoError(t, cmd.Start())
	in := bufio.NewReader(out)
	line, err := in.ReadString('\n')
	if err != nil || line != "serving\n" {
		t.Errorf("it said %q, %v", line, err)
	}
	testkit.ExpectNoError(t, cmd.Process.Kill())
	// The workers hold the other end of the pipe as long as they live.
	testkit.ExpectNoError(t, out.(*os.File).SetReadDeadline(time.Now().Add(patience)))
	if rest, err := in.ReadString('\n'); err != io.EOF {
		t.Errorf("the workers live on: %q, %v", rest, err)
	}
	_ = cmd.Wait() // it was killed
}

func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.RequireNoError(t, err)
	defer l.Close()
	cfg := newTestConfig(2, nil)
	cfg.Addrs[0].Addr = l.Addr().String()
	if _, err := Start(cfg); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%v, want EADDRINUSE", err)
	}
}

// TestAccidentalVariable checks that a program with an accidental variable gets advice and keeps its
// descriptors.
func TestAccidentalVariable(t *testing.T) {
	w := &Worker{identity: identity{Processes: 1, Addrs: []Address{{"tcp", ":9000"}}, Sockets: []int{1}}}
	if err := w.validateAndInheritDescriptors(); err == nil || !strings.Contains(err.Error(), "unset it") {
		t.Errorf("%v, want what to do", err)
	}
}

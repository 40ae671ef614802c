// Package examples tests the programs below it as a user runs them.
package examples

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// programs is the directory in which TestMain has built all examples, "" where it has not:
// in short runs, and on Windows, where a process can't be interrupted.
var programs string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) (code int) {
	if testing.Short() || runtime.GOOS == "windows" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "examples")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir, "./...").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	programs = dir
	return m.Run()
}

// built is where an example is.
func built(t *testing.T, name string) (path string) {
	t.Helper()
	if programs == "" {
		t.Skip("the examples are not built")
	}
	return filepath.Join(programs, name)
}

// run runs an example until stop is called or the test has ended, then interrupts it and expects an
// orderly end.
func run(t *testing.T, cmd *exec.Cmd) (p *testkit.Process, stop func()) {
	t.Helper()
	p = testkit.Start(t, cmd)
	stop = sync.OnceFunc(func() {
		_ = p.Process.Signal(os.Interrupt) // it may have ended
		if code := p.ExitCode(); code != 0 {
			t.Errorf("%s ended with %d after an interrupt, want success", p.Path, code)
		}
	})
	t.Cleanup(stop)
	return p, stop
}

// listening runs an example that says where it listens, and gives the address.
func listening(t *testing.T, name string, args ...string) (addr string) {
	t.Helper()
	p, _ := run(t, exec.Command(built(t, name), append(args, "-addr", "127.0.0.1:0")...))
	return p.WaitForOutput(` on (127\S+)\n`)[1]
}

func TestEcho(t *testing.T) {
	const addr = "127.0.0.1:9000"
	if l, err := net.Listen("tcp", addr); err != nil {
		t.Skipf("the example's address is taken: %v", err)
	} else {
		l.Close()
	}
	run(t, exec.Command(built(t, "echo")))
	testkit.WaitFor(t, "it does not listen", func() bool {
		nc, err := net.Dial("tcp", addr)
		if err == nil {
			nc.Close()
		}
		return err == nil
	})
	g := testkit.Dial(t, addr)
	g.Send("a\nb\n")
	g.Expect("a\nb\n")
}

func TestChat(t *testing.T) {
	addr := listening(t, "chat")
	ann, bob := testkit.Dial(t, addr), testkit.Dial(t, addr)
	ann.Expect("Your name?\n")
	bob.Expect("Your name?\n")
	ann.Send("Ann\n")
	ann.Expect("Welcome, Ann.\n")
	bob.Send("Bob\n")
	bob.Expect("Welcome, Bob.\n")
	ann.Expect("Bob has come\n")
	bob.Send("hello\n")
	ann.Expect("Bob: hello\n")
	ann.Send("hello, Bob\n")
	bob.Expect("Ann: hello, Bob\n")
	bob.Close()
	ann.Expect("Bob has gone\n")
}

// TestPush has the gateway run; its own test has what it does.
func TestPush(t *testing.T) {
	g := testkit.Dial(t, listening(t, "push"))
	g.Send("sub news\n")
	g.Expect("subscribed to news\n")
}

// Package examples tests the example programs like a user runs them.
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

// programs is the directory with the built examples. It is empty in short runs, and on Windows, where
// processes cannot be interrupted.
var programs string

func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Short() && runtime.GOOS != "windows" {
		var err error
		if programs, err = os.MkdirTemp("", "examples"); err != nil {
			panic(err)
		}
		if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", programs, "./...").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
			os.RemoveAll(programs)
			os.Exit(1)
		}
	}
	code := m.Run()
	os.RemoveAll(programs)
	os.Exit(code)
}

func programPath(t *testing.T, name string) (path string) {
	t.Helper()
	if programs == "" {
		t.Skip("the examples are not built")
	}
	return filepath.Join(programs, name)
}

// startProgram runs an example until stop is called or the test ends. It then interrupts the program and
// expects exit code 0.
func startProgram(t *testing.T, cmd *exec.Cmd) (p *testkit.Process, stop func()) {
	t.Helper()
	p = testkit.Start(t, cmd)
	stop = sync.OnceFunc(func() {
		_ = p.Process.Signal(os.Interrupt) // it may have exited
		testkit.WantEqual(t, p.WaitExitCode(), 0, "exit code of %s after an interrupt", p.Path)
	})
	t.Cleanup(stop)
	return p, stop
}

func startAndReadAddr(t *testing.T, name string, args ...string) (addr string) {
	t.Helper()
	p, _ := startProgram(t, exec.Command(programPath(t, name), append(args, "-addr", "127.0.0.1:0")...))
	return p.WaitForOutput(` on (127\S+)\n`)[1]
}

func TestEcho(t *testing.T) {
	const addr = "127.0.0.1:9000"
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Skipf("the example's address is taken: %v", err)
	}
	l.Close()
	startProgram(t, exec.Command(programPath(t, "echo")))
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
	addr := startAndReadAddr(t, "chat")
	ann, bob := testkit.Dial(t, addr), testkit.Dial(t, addr)
	ann.Expect("Your name?\n")
	bob.Expect("Your name?\n")
	ann.ExchangeLine("Ann", "Welcome, Ann.")
	bob.ExchangeLine("Bob", "Welcome, Bob.")
	ann.Expect("Bob has come\n")
	bob.Send("hello\n")
	ann.Expect("Bob: hello\n")
	ann.Send("hello, Bob\n")
	bob.Expect("Ann: hello, Bob\n")
	bob.Close()
	ann.Expect("Bob has gone\n")
}

// TestPush starts the gateway; its own package has the tests of its behaviour.
func TestPush(t *testing.T) {
	testkit.Dial(t, startAndReadAddr(t, "push")).ExchangeLine("sub news", "subscribed to news")
}

// Package examples tests the programs below it as a user runs them.
package examples

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

const patience = time.Minute

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

// run runs an example until the test has ended, then interrupts it and expects an orderly
// end.
func run(t *testing.T, name string, args ...string) *program {
	t.Helper()
	return start(t, exec.Command(built(t, name), args...))
}

// program is an example that runs.
type program struct {
	*exec.Cmd
	t      *testing.T
	stdout *bufio.Reader
	ended  bool
}

// start is run for a command of an example.
func start(t *testing.T, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{Cmd: cmd, t: t}
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	t.Cleanup(func() { stuck.Stop() })
	t.Cleanup(p.interrupt)
	p.stdout = bufio.NewReader(pipe)
	return p
}

// reads reads a line of what the program says, and gives what comes after a prefix.
func (p *program) reads(prefix string) (rest string) {
	p.t.Helper()
	line, err := p.stdout.ReadString('\n')
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), prefix)
	if err != nil || !ok {
		p.t.Fatalf("the program says %q, %v; want %q", line, err, prefix)
	}
	return rest
}

// interrupt ends it, and expects an orderly end.
func (p *program) interrupt() {
	if p.ended {
		return
	}
	p.ended = true
	p.Process.Signal(os.Interrupt)
	io.Copy(io.Discard, p.stdout)
	if err := p.Wait(); err != nil {
		p.t.Errorf("%s ended with %v after an interrupt, want success", p.Path, err)
	}
}

// guest is a client of a line protocol.
type guest struct {
	t *testing.T
	net.Conn
	in *bufio.Reader
}

// enter connects; until the program listens it tries again.
func enter(t *testing.T, addr string) *guest {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		c, err := net.DialTimeout("tcp", addr, patience)
		if err == nil {
			c.SetDeadline(time.Now().Add(patience))
			t.Cleanup(func() { c.Close() })
			return &guest{t: t, Conn: c, in: bufio.NewReader(c)}
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
}

func (g *guest) says(line string) { io.WriteString(g, line+"\n") }

func (g *guest) reads(want string) {
	g.t.Helper()
	if got, err := g.in.ReadString('\n'); got != want+"\n" {
		g.t.Fatalf("read %q, %v; want %q", got, err, want)
	}
}

func TestEcho(t *testing.T) {
	const addr = "127.0.0.1:9000"
	if l, err := net.Listen("tcp", addr); err != nil {
		t.Skipf("the example's address is taken: %v", err)
	} else {
		l.Close()
	}
	run(t, "echo")
	g := enter(t, addr)
	g.says("a")
	g.says("b")
	g.reads("a")
	g.reads("b")
}

func TestChat(t *testing.T) {
	addr := run(t, "chat", "-addr", "127.0.0.1:0").reads("chat on ")
	ann, bob := enter(t, addr), enter(t, addr)
	ann.reads("Your name?")
	bob.reads("Your name?")
	ann.says("Ann")
	ann.reads("Welcome, Ann.")
	bob.says("Bob")
	bob.reads("Welcome, Bob.")
	ann.reads("Bob has come")
	bob.says("hello")
	ann.reads("Bob: hello")
	ann.says("hello, Bob")
	bob.reads("Ann: hello, Bob")
	bob.Close()
	ann.reads("Bob has gone")
}

// TestPush has the gateway run; its own test has what it does.
func TestPush(t *testing.T) {
	g := enter(t, run(t, "push", "-addr", "127.0.0.1:0").reads("push on "))
	g.says("sub news")
	g.reads("subscribed to news")
}

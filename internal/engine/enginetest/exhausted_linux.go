package enginetest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/engine"
)

func init() {
	systemCases = append(systemCases, testCase{"descriptors run out at accept", descriptorsRunOut})
}

// childVar is set in the environment of the test binary that this case starts
// again: a process of its own, whose descriptors may run out.
const childVar = "MYRIAD_ENGINETEST_CHILD"

// childRoom is how many descriptors the child has for connections.
const childRoom = 10

// descriptorsRunOut has more clients than the server has descriptors. Those
// that it took are served, the others when room comes back, and meanwhile the
// server does not spin.
func descriptorsRunOut(b *bench) {
	if os.Getenv(childVar) != "" {
		b.runOutOfDescriptors()
		return
	}
	child := b.startChild()
	const n = 2 * childRoom
	clients := make([]*client, n)
	answered := make(chan int, n)
	for i := range clients {
		c := dialTo(b, child.addr)
		c.send("hello\n")
		clients[i] = c
		go func() {
			if c.tryExpect("hello\n") == nil {
				answered <- i
			}
		}()
	}
	first := await.Receive(b, answered, "the first answer")
	await.True(b, "descriptors do not run out", func() bool { return child.report().acceptErrors > 0 })

	// For a while nothing changes, and the server is to be at rest.
	begun, before := time.Now(), child.report()
	<-time.After(300 * time.Millisecond)
	after := child.report()
	while := time.Since(begun) // which is longer where the machine is busy
	if cpu := after.cpu - before.cpu; cpu > while/2 {
		b.Errorf("used %v of processor time in %v without descriptors: it spins", cpu, while)
	}
	if errs := after.acceptErrors - before.acceptErrors; errs > int(while/(3*time.Millisecond)) {
		b.Errorf("accept failed %d times in %v without descriptors: it spins", errs, while)
	}
	clients[first].exchange("still served\n")

	clients[first].Close()
	for range n - 1 {
		i := await.Receive(b, answered, "an answer to one who waited for room")
		clients[i].exchange("served at last\n")
		clients[i].Close()
	}
	child.end()
}

// child is the server's process, seen from the test.
type child struct {
	b    *bench
	addr string
	ask  io.WriteCloser
	says *bufio.Reader
	done <-chan error
}

// report is what the child says of itself.
type report struct {
	acceptErrors int
	cpu          time.Duration
}

func (b *bench) startChild() *child {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.v", "-test.count=1", "-test.run="+exactly(b.Name()))
	cmd.Env = append(os.Environ(), childVar+"=1")
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	ask, err := cmd.StdinPipe()
	says, childSays, err2 := os.Pipe()
	b.must(errors.Join(err, err2))
	cmd.ExtraFiles = []*os.File{childSays} // descriptor 3
	b.must(cmd.Start())
	childSays.Close()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	b.Cleanup(func() {
		ask.Close()
		says.Close()
		if b.Failed() {
			cmd.Process.Kill()
		}
		if err := await.Receive(b, done, "the end of the child"); err != nil || b.Failed() {
			b.Errorf("the child's process: %v\n%s", err, output.String())
		}
	})
	c := &child{b: b, ask: ask, says: bufio.NewReader(says), done: done}
	b.must(says.SetReadDeadline(time.Now().Add(2 * patience)))
	c.addr = c.line()
	return c
}

// exactly is a pattern for one test's name.
func exactly(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

func (c *child) line() string {
	c.b.Helper()
	line, err := c.says.ReadString('\n')
	if err != nil {
		c.b.Fatalf("the child says nothing: %v", err)
	}
	return strings.TrimSpace(line)
}

func (c *child) report() (r report) {
	c.b.Helper()
	if _, err := io.WriteString(c.ask, "?"); err != nil {
		c.b.Fatalf("asking the child: %v", err)
	}
	line := c.line()
	if _, err := fmt.Sscan(line, &r.acceptErrors, &r.cpu); err != nil {
		c.b.Fatalf("the child says %q: %v", line, err)
	}
	return r
}

// end closes the child's standard input, which ends it.
func (c *child) end() { c.ask.Close() }

// runOutOfDescriptors is the child: it serves, answers each question with a
// report, and ends with the questions.
func (b *bench) runOutOfDescriptors() {
	says := os.NewFile(3, "report")
	defer says.Close()
	s := b.serve(lines())
	var old syscall.Rlimit
	b.must(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old))
	few := old
	few.Cur = uint64(mostOpenFiles()) + childRoom
	b.must(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old)
	fmt.Fprintln(says, s.Addr())
	question := make([]byte, 1)
	for {
		if _, err := io.ReadFull(os.Stdin, question); err != nil {
			return
		}
		fmt.Fprintln(says, s.Counters()[engine.AcceptErrors], int64(cpuTime(b)))
	}
}

// mostOpenFiles counts the descriptors of the thread that has the most: shards
// have tables of their own.
func mostOpenFiles() (most int) {
	tables, _ := filepath.Glob("/proc/self/task/*/fd") // of a pattern that is none it would fail
	for _, table := range tables {
		entries, err := os.ReadDir(table)
		if err == nil { // otherwise the thread has ended
			most = max(most, len(entries))
		}
	}
	return most
}

// cpuTime is the processor time that this process has used.
func cpuTime(b *bench) time.Duration {
	var u syscall.Rusage
	b.must(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

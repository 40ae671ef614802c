package examples

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

// upgradingProgram is an example that upgrades at SIGUSR2. Its processes write to one file.
type upgradingProgram struct {
	t      *testing.T
	output string
	pid    int // of the serving process
	count  int // upgrades so far
}

func startUpgradingProgram(t *testing.T, name string, args ...string) *upgradingProgram {
	t.Helper()
	p := &upgradingProgram{t: t, output: filepath.Join(t.TempDir(), "output")}
	f, err := os.Create(p.output)
	testkit.RequireNoError(t, err)
	defer f.Close()
	cmd := exec.Command(programPath(t, name), args...)
	cmd.Stdout, cmd.Stderr = f, f
	p.pid = testkit.Start(t, cmd).Process.Pid
	t.Cleanup(func() {
		_ = syscall.Kill(p.pid, syscall.SIGTERM) // it may have exited
		testkit.WaitFor(t, "the last process does not end", func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
			return err != nil || strings.Contains(string(stat), ") Z ")
		})
		if t.Failed() {
			t.Logf("the processes have written:\n%s", p.read())
		}
	})
	return p
}

func (p *upgradingProgram) read() string {
	text, err := os.ReadFile(p.output)
	testkit.RequireNoError(p.t, err)
	return string(text)
}

// waitForOutput waits for n matches of an expression, and returns the submatches of all.
func (p *upgradingProgram) waitForOutput(expr string, n int) (all [][]string) {
	p.t.Helper()
	re := regexp.MustCompile(expr)
	testkit.WaitForFunc(p.t, func() bool {
		all = re.FindAllStringSubmatch(p.read(), -1)
		return len(all) >= n
	}, func() string { return fmt.Sprintf("no %d matches of %s in\n%s", n, expr, p.read()) })
	return all
}

// upgrade upgrades the program, and checks that all conns connections move. It calls use repeatedly meanwhile.
func (p *upgradingProgram) upgrade(conns int, use func()) {
	p.t.Helper()
	const expr = `upgraded pid=(\d+) connections=(\d+) lost=(\d+) took=\S+ stay=(\d+)`
	p.count++
	testkit.RequireNoError(p.t, syscall.Kill(p.pid, syscall.SIGUSR2))
	for strings.Count(p.read(), "upgraded pid=") < p.count && strings.Count(p.read(), "upgrade failed") == 0 {
		use()
	}
	result := p.waitForOutput(expr, p.count)[p.count-1]
	p.pid, _ = strconv.Atoi(result[1])
	if result[2] != strconv.Itoa(conns) || result[3] != "0" || result[4] != "0" {
		p.t.Fatalf("%s; want %d connections moved", result[0], conns)
	}
}

// TestUpgradable checks that nobody notices two upgrades of the chat room, not even in the middle of a line.
func TestUpgradable(t *testing.T) {
	p := startUpgradingProgram(t, "upgradable", "-addr", "127.0.0.1:0")
	addr := p.waitForOutput(`chat on (\S+)\n`, 1)[0][1]
	ann, bob, new := testkit.Dial(t, addr), testkit.Dial(t, addr), testkit.Dial(t, addr)
	new.Expect("Your name?\n")
	ann.Expect("Your name?\n")
	ann.ExchangeLine("Ann", "Welcome, Ann.")
	bob.Expect("Your name?\n")
	bob.ExchangeLine("Bob", "Welcome, Bob.")
	history := ""
	say := func(from, to *testkit.Conn, text, want string) {
		t.Helper()
		from.Send(text)
		from.Expect(want)
		to.Expect(want)
		history += want
	}
	say(ann, bob, "hello\nhal", "Ann: hello\n")
	p.upgrade(3, runtime.Gosched)
	say(ann, bob, "f\n", "Ann: half\n")
	say(bob, ann, "hi\n", "Bob: hi\n")
	p.upgrade(3, runtime.Gosched)
	say(bob, ann, "still here\n", "Bob: still here\n")
	new.Send("Eve\n")
	new.Expect("Welcome, Eve.\n" + history)
	for _, c := range []*testkit.Conn{ann, bob, new} {
		c.Close()
	}
}

// TestListeners upgrades a server of lines, TLS, HTTP, WebSockets and the operator's page, with clients of each.
func TestListeners(t *testing.T) {
	cert, key := testkit.WriteCertificate(t)
	text, err := os.ReadFile(cert)
	testkit.RequireNoError(t, err)
	client := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}
	client.RootCAs.AppendCertsFromPEM(text)
	const any = "127.0.0.1:0"
	p := startUpgradingProgram(t, "listeners", "-lines", any, "-tls", any, "-web", any, "-admin", any, "-cert", cert, "-key", key)
	at := p.waitForOutput(`listening on (\S+)\n`, 4)
	dial := func(i int) *testkit.Conn { return testkit.Dial(t, at[i][1]) }
	lines, secure, web, socket, admin := dial(0), testkit.DialTLS(t, at[1][1], client), dial(2), dial(2), dial(3)
	socket.HandshakeWebSocket("/socket", "")
	get := func(c *testkit.Conn, path string) (body string) {
		t.Helper()
		c.Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
		res, body := c.ReadResponse()
		if res.StatusCode != 200 {
			t.Fatalf("GET %s: %s", path, res.Status)
		}
		return body
	}
	lines.Send("li") // each line is complete later
	exchange := func() {
		lines.Send("ne\nli")
		lines.Expect("line by lines\n")
		secure.ExchangeLine("line", "line by tls")
		socket.Send(testkit.MaskedFrame(testkit.FIN|1, "message"))
		if _, payload, err := testkit.ReadFrame(socket.R); err != nil || payload != "message" {
			t.Fatalf("a WebSocket got %q, %v", payload, err)
		}
	}
	for n := range 3 {
		if n > 0 {
			p.upgrade(5, exchange) // an HTTP connection moves only between two requests
		}
		exchange()
		get(admin, "/stats")
		testkit.WantEqual(t, get(web, "/"), fmt.Sprintf("served by %d\n", p.pid), "who serves, by the handler")
	}
}

// submitJobs sends HTTP requests as fast as they are answered, on 256 connections with 500 requests in flight each,
// until the server dies or the time is over.
func submitJobs(addr string, atMost time.Duration) {
	requests := bytes.Repeat([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), 500)
	end := time.Now().Add(atMost)
	var all sync.WaitGroup
	for range 256 {
		all.Go(func() {
			c, err := net.DialTimeout("tcp", addr, atMost)
			if err != nil {
				return
			}
			defer c.Close()
			c.SetDeadline(end.Add(5 * time.Second))
			r := bufio.NewReader(c)
			for time.Now().Before(end) {
				if _, err := c.Write(requests); err != nil {
					return
				}
				for range 500 {
					answer, err := http.ReadResponse(r, nil)
					if err != nil {
						return
					}
					if _, err := r.Discard(int(answer.ContentLength)); err != nil {
						return
					}
				}
			}
		})
	}
	all.Wait()
}

// TestOverloadInMemoryCgroup runs the published experiment in 512 MiB: the kernel kills the server that starts a
// goroutine for each job. The pool serves under the same load.
func TestOverloadInMemoryCgroup(t *testing.T) {
	group := testkit.NewMemoryCgroup(t, 512<<20)
	start := func(args ...string) (p *testkit.Process, addr string) {
		command := group.Command(append([]string{"env", "GOMEMLIMIT=400MiB", programPath(t, "overload"), "-addr", "127.0.0.1:0"}, args...)...)
		p = testkit.Start(t, exec.Command(command[0], command[1:]...))
		return p, p.WaitForOutput(` on (127\S+)\n`)[1]
	}
	naive, addr := start("-naive")
	submitJobs(addr, 30*time.Second)
	testkit.WantEqual(t, naive.WaitExitCode(), -1, "exit code of the server with a goroutine for each job, to be killed")

	pooled, addr := start()
	submitJobs(addr, 2*time.Second)
	answer, err := http.Get("http://" + addr + "/stats")
	if err != nil {
		t.Fatalf("the server with a pool does not answer: %v", err)
	}
	defer answer.Body.Close()
	var completed, inTime int
	if _, err := fmt.Fscanf(answer.Body, "%d jobs completed, %d within", &completed, &inTime); err != nil || completed < 100 || inTime == 0 {
		t.Errorf("%d jobs completed, %d in time, %v; want at least 100, and some in time", completed, inTime, err)
	}
	t.Logf("with a pool: %d jobs completed, %d within 100 ms", completed, inTime)
	pooled.Signal(os.Interrupt)
	testkit.WantEqual(t, pooled.WaitExitCode(), 0, "exit code of the server with a pool")
}

type echo struct{ tcp.Base }

func (echo) Received(c *tcp.Conn, in []byte) int { n, _ := c.Write(in); return n }

// TestProxy sends much through the proxy to a server that echoes it.
func TestProxy(t *testing.T) {
	to, _ := testserver.Start(t, &tcp.Server{Handler: echo{}})
	sent := make([]byte, 20_000_000)
	rand.New(rand.NewSource(1)).Read(sent)
	for _, model := range tcp.Models() {
		p, _ := startProgram(t, exec.Command(programPath(t, "proxy"), "-addr", "127.0.0.1:0", "-to", to, "-model", model))
		c := testkit.Dial(t, p.WaitForOutput(`proxy on (\S+)\n`)[1])
		go func() {
			c.Write(sent)
			c.Conn.(interface{ CloseWrite() error }).CloseWrite()
		}()
		if got, err := io.ReadAll(c.R); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%s: %d bytes have come back of %d, or others; %v", model, len(got), len(sent), err)
		}
		c.Close()
	}
}

package examples

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

func TestAsync(t *testing.T) {
	testkit.Dial(t, startAndReadAddr(t, "async")).ExchangeLine("ann", "ANN")
}

// TestExport checks that a slow reader gets all rows, and that a client that leaves delays nobody.
func TestExport(t *testing.T) {
	const rows = 100_000
	addr := startAndReadAddr(t, "export")
	gone, g := testkit.Dial(t, addr), testkit.Dial(t, addr)
	gone.Send("1000000000\n")
	gone.Expect("row 0\n")
	gone.Close()
	g.Send(fmt.Sprint(rows) + "\n")
	for row := range rows {
		if got, want := g.ReadLine(), fmt.Sprintf("row %d", row); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func TestAnnounce(t *testing.T) {
	addr := startAndReadAddr(t, "announce", "-every", "10ms")
	ann, bob := testkit.Dial(t, addr), testkit.Dial(t, addr)
	bob.Send("details\n")
	for ann.ReadLine(); !strings.HasPrefix(bob.ReadLine(), "details of "); {
	}
	for range 10 {
		if line := ann.ReadLine(); !strings.HasPrefix(line, "news ") {
			t.Fatalf("who has not asked for details got %q", line)
		}
	}
}

// TestGame checks that a player moves by its own steps at each tick, and sees the other one.
func TestGame(t *testing.T) {
	addr := startAndReadAddr(t, "game")
	ann, bob := testkit.Dial(t, addr), testkit.Dial(t, addr)
	ann.Send("3 -1\n")
	bob.Send("nonsense\n")
	var x, y int
	testkit.WaitFor(t, "the positions of both players do not come", func() bool {
		for field := range strings.FieldsSeq(ann.ReadLine()) {
			if _, at, _ := strings.Cut(field, ":"); at != "0,0" {
				_, _ = fmt.Sscanf(at, "%d,%d", &x, &y)
			}
		}
		return x >= 9 && strings.Contains(bob.ReadLine(), ":0,0 ")
	})
	if x != -3*y {
		t.Errorf("Ann is at %d,%d after steps of 3,-1", x, y)
	}
}

// TestRateLimit checks that a client that sends 15 lines at once gets the last 5 later, and that a login raises the
// rate.
func TestRateLimit(t *testing.T) {
	g := testkit.Dial(t, startAndReadAddr(t, "ratelimit"))
	start, lines := time.Now(), strings.Repeat("x\n", 14)+"login\n"
	g.Send(lines)
	g.Expect(lines)
	if took := time.Since(start); took < 400*time.Millisecond {
		t.Errorf("15 lines took %v", took)
	}
	lines = strings.Repeat("x\n", 99)
	g.Send(lines)
	g.Expect(lines)
}

func TestRequests(t *testing.T) {
	g := testkit.Dial(t, startAndReadAddr(t, "requests"))
	ask := func(id uint32, text string) {
		b := binary.BigEndian.AppendUint32(nil, uint32(4+len(text)))
		g.Write(append(binary.BigEndian.AppendUint32(b, id), text...))
	}
	hear := func(id uint32, want string) {
		t.Helper()
		var head struct{ Size, ID uint32 }
		testkit.RequireNoError(t, binary.Read(g.R, binary.BigEndian, &head))
		text := make([]byte, head.Size-4)
		if _, err := io.ReadFull(g.R, text); err != nil || head.ID != id || string(text) != want {
			t.Fatalf("answer to %d: %q, %v; want %q to %d", head.ID, text, err, want, id)
		}
	}
	ask(7, "300ms")
	ask(8, "0s")
	hear(8, "waited 0s") // it finishes first
	hear(7, "waited 300ms")
	g.Write([]byte{0, 0, 0, 1, 'x'})
	g.ExpectEOF("")
}

func TestHeartbeat(t *testing.T) {
	addr := startAndReadAddr(t, "heartbeat", "-interval", "100ms")
	alive, silent := testkit.Dial(t, addr), testkit.Dial(t, addr)
	alive.ExchangeLine("hi", "you say hi")
	silent.ExchangeLine("hi", "you say hi")
	for range 2 {
		alive.Expect("ping\n")
		alive.Send("pong\n")
	}
	testkit.WantEqual(t, silent.ExpectClosed(), "ping\nping\n", "what a silent client gets")
}

func TestLogin(t *testing.T) {
	addr := startAndReadAddr(t, "login", "-within", "10ms", "-every", "10ms")
	g := testkit.Dial(t, addr)
	g.Expect("name?\n")
	g.ExpectEOF("") // no name was given
	h := testkit.Dial(t, startAndReadAddr(t, "login", "-every", "10ms"))
	h.Send("Ann\n")
	h.Expect("name?\n")
	h.Expect("Ann: Ann\n")
	h.Expect("still there, Ann?\n")
	h.Expect("still there, Ann?\n")
}

// TestWaiting checks that a client beyond the limit waits, connected, until another one leaves.
func TestWaiting(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it serves under epoll")
	}
	addr := startAndReadAddr(t, "waiting", "-max", "2")
	a, b := testkit.Dial(t, addr), testkit.Dial(t, addr)
	a.ExchangeLine("hello", "hello")
	b.ExchangeLine("hello", "hello")
	c := testkit.Dial(t, addr)
	c.Send("may I?\n")
	a.ExchangeLine("still here", "still here")
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := c.R.ReadByte(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the third of two at most reads %v, want nothing yet", err)
	}
	c.SetReadDeadline(time.Now().Add(testkit.Timeout))
	b.Close()
	c.Expect("may I?\n")
}

// TestOverload checks that a pool with one worker rejects some of many simultaneous jobs with 503, and that with
// -naive none is rejected.
func TestOverload(t *testing.T) {
	together := func(addr string) (served, refused int64) {
		var byStatus [600]atomic.Int64
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				r, err := http.Get("http://" + addr)
				if err != nil {
					t.Error(err)
					return
				}
				r.Body.Close()
				byStatus[r.StatusCode].Add(1)
			})
		}
		all.Wait()
		served, refused = byStatus[http.StatusAccepted].Load(), byStatus[http.StatusServiceUnavailable].Load()
		if served+refused != 20 {
			t.Errorf("%d of 20 requests are served and %d refused", served, refused)
		}
		return served, refused
	}
	if served, refused := together(startAndReadAddr(t, "overload", "-naive")); served != 20 || refused != 0 {
		t.Errorf("-naive has accepted %d and refused %d, want 20 and 0", served, refused)
	}
	addr := startAndReadAddr(t, "overload", "-workers", "1", "-queue", "1")
	testkit.WaitFor(t, "the pool accepts some of 20 jobs and refuses some", func() bool {
		served, refused := together(addr)
		return served > 0 && refused > 0 || t.Failed()
	})
}

// TestActivated acts like systemd: it opens the socket and restarts the program.
func TestActivated(t *testing.T) {
	exe := programPath(t, "activated")
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	testkit.RequireNoError(t, err)
	defer l.Close()
	socket, err := l.File()
	testkit.RequireNoError(t, err)
	defer socket.Close()
	activate := func() (p *testkit.Process, stop func()) {
		cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0"`, exe)
		cmd.ExtraFiles = []*os.File{socket}
		p, stop = startProgram(t, cmd)
		p.WaitForOutput("listening on " + l.Addr().String())
		return p, stop
	}
	first, stop := activate()
	before := testkit.Dial(t, l.Addr().String())
	before.ExchangeLine("hello", fmt.Sprintf("%d says hello", first.Process.Pid))
	before.Close()
	stop()
	between := testkit.Dial(t, l.Addr().String()) // it waits, because no program serves
	between.Send("hello\n")
	second, _ := activate()
	between.Expect(fmt.Sprintf("%d says hello\n", second.Process.Pid))
	between.Close()
}

func TestBalanced(t *testing.T) {
	p, _ := startProgram(t, exec.Command(programPath(t, "balanced"), "-addr", "127.0.0.1:0", "-health", "127.0.0.1:0", "-notice", "100ms", "-proxies", "127.0.0.0/8"))
	health, addr := p.WaitForOutput(`health on (\S+)\n`)[1], p.WaitForOutput(`listening on (\S+)\n`)[1]
	asked := func(want int) {
		t.Helper()
		testkit.WaitFor(t, fmt.Sprintf("/readyz does not say %d", want), func() bool {
			r, err := http.Get("http://" + health + "/readyz")
			testkit.RequireNoError(t, err)
			r.Body.Close()
			return r.StatusCode == want
		})
	}
	asked(http.StatusOK)
	g := testkit.Dial(t, addr)
	g.Send("PROXY TCP4 203.0.113.9 192.0.2.1 77 9000\r\nhello\nhel")
	g.Expect("203.0.113.9:77 says hello\n")
	p.Signal(os.Interrupt)
	asked(http.StatusServiceUnavailable) // before and during the drain
	g.Send("lo\n")                       // a partial line is answered in both cases
	g.ExpectEOF("203.0.113.9:77 says hello\n")
	p.WaitExitCode() // a second interrupt would end it before it is done
}

// TestGateway checks that lines come back from a back end, which sees its client end, and the other way round.
func TestGateway(t *testing.T) {
	closed := make(chan error, 2)
	handler := socketEcho{closed: closed}
	backend, stop := testserver.Start(t, &tcp.Server{Handler: web.Handler(web.Quick(&web.WebSocket{Handler: handler}))})
	addr := startAndReadAddr(t, "gateway", "-url", "ws://"+backend)
	g := testkit.Dial(t, addr)
	g.Send("one\ntwo\n")
	g.Expect("one\ntwo\n")
	g.Close()
	var e *web.CloseError
	if why := testkit.Receive(t, closed, "Closed"); !errors.As(why, &e) || e.Code != web.CloseNormal {
		t.Errorf("the socket has closed for %v", why)
	}
	other := testkit.Dial(t, addr)
	other.ExchangeLine("three", "three")
	stop()
	other.ExpectEOF("")
	testkit.Dial(t, addr).ExpectEOF("") // nobody listens
}

type socketEcho struct {
	web.SocketBase
	closed chan error
}

func (h socketEcho) Message(s web.Socket, kind web.Kind, m []byte) { _ = s.Write(kind, m) }
func (h socketEcho) Closed(_ web.Socket, why error)                { h.closed <- why }

// TestQuotes checks that documents quote files literally: a code block after a comment with a file's name
// is part of that file.
func TestQuotes(t *testing.T) {
	for _, c := range []struct {
		document string
		quotes   int
	}{{"../docs/cookbook.md", 16}, {"../README.md", 1}, {"../README.zh-CN.md", 1}, {"../docs/upgrade.md", 1}, {"../docs/web.md", 3}} {
		text, err := os.ReadFile(c.document)
		testkit.RequireNoError(t, err)
		parts := bytes.Split(text, []byte("<!-- quote "))
		testkit.WantEqual(t, len(parts)-1, c.quotes, "quotes in %s", c.document)
		for _, part := range parts[1:] {
			name, rest, _ := bytes.Cut(part, []byte(" -->\n"))
			block := rest[bytes.IndexByte(rest, '\n')+1:]
			block = block[:bytes.Index(block, []byte("```"))]
			file, err := os.ReadFile(string(name))
			if err != nil {
				t.Errorf("%s: %v", c.document, err)
				continue
			}
			if !bytes.Contains(file, block) || len(block) == 0 {
				t.Errorf("%s does not quote %s as it is", c.document, name)
			}
		}
	}
}

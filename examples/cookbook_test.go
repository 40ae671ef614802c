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
)

// listening starts an example that says where it listens, and gives the address.
func listening(t *testing.T, name string, args ...string) (addr string) {
	t.Helper()
	return run(t, name, append(args, "-addr", "127.0.0.1:0")...).reads("listening on ")
}

func TestAsync(t *testing.T) {
	g := enter(t, listening(t, "async"))
	g.says("ann")
	g.reads("ANN")
}

// A client that reads late gets all rows, and one that goes away holds nobody up.
func TestExport(t *testing.T) {
	const rows = 100_000
	addr := listening(t, "export")
	gone, g := enter(t, addr), enter(t, addr)
	gone.says("1000000000")
	gone.reads("row 0")
	gone.Close()
	g.says(fmt.Sprint(rows))
	for row := range rows {
		if got, want := g.next(), fmt.Sprintf("row %d\n", row); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func TestAnnounce(t *testing.T) {
	addr := listening(t, "announce", "-every", "10ms")
	ann, bob := enter(t, addr), enter(t, addr)
	bob.says("details")
	for ann.next(); !strings.HasPrefix(bob.next(), "details of "); {
	}
	for range 10 {
		if line := ann.next(); !strings.HasPrefix(line, "news ") {
			t.Fatalf("who has not asked for details got %q", line)
		}
	}
}

// next reads a line.
func (g *guest) next() string {
	g.t.Helper()
	line, err := g.in.ReadString('\n')
	if err != nil {
		g.t.Fatal(err)
	}
	return line
}

func TestRequests(t *testing.T) {
	g := enter(t, listening(t, "requests"))
	ask := func(id uint32, text string) {
		b := binary.BigEndian.AppendUint32(nil, uint32(4+len(text)))
		g.Write(append(binary.BigEndian.AppendUint32(b, id), text...))
	}
	hear := func(id uint32, want string) {
		t.Helper()
		var head struct{ Size, ID uint32 }
		if err := binary.Read(g.in, binary.BigEndian, &head); err != nil {
			t.Fatal(err)
		}
		text := make([]byte, head.Size-4)
		if _, err := io.ReadFull(g.in, text); err != nil || head.ID != id || string(text) != want {
			t.Fatalf("answer to %d: %q, %v; want %q to %d", head.ID, text, err, want, id)
		}
	}
	ask(7, "300ms")
	ask(8, "0s")
	hear(8, "waited 0s") // which was done first
	hear(7, "waited 300ms")
	g.Write([]byte{0, 0, 0, 1, 'x'})
	if _, err := g.in.ReadByte(); err != io.EOF {
		t.Errorf("after a frame without an id: %v", err)
	}
}

func TestHeartbeat(t *testing.T) {
	addr := listening(t, "heartbeat", "-interval", "400ms")
	alive, silent := enter(t, addr), enter(t, addr)
	alive.says("hi")
	alive.reads("you say hi")
	silent.says("hi")
	silent.reads("you say hi")
	for range 2 {
		alive.reads("ping")
		alive.says("pong")
	}
	silent.reads("ping")
	silent.reads("ping")
	if _, err := silent.in.ReadByte(); err == nil {
		t.Error("a third heartbeat after two that were not answered")
	}
}

func TestLogin(t *testing.T) {
	addr := listening(t, "login", "-within", "10ms", "-every", "10ms")
	g := enter(t, addr)
	g.reads("name?")
	if _, err := g.in.ReadByte(); err != io.EOF {
		t.Errorf("who gives no name reads %v, want the end", err)
	}
	h := enter(t, listening(t, "login", "-every", "10ms"))
	h.says("Ann")
	h.reads("name?")
	h.reads("Ann: Ann")
	h.reads("still there, Ann?")
	h.reads("still there, Ann?")
}

// Beyond the limit a client waits, connected, until another one has left.
func TestWaiting(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it serves under epoll")
	}
	addr := listening(t, "waiting", "-max", "2")
	a, b := enter(t, addr), enter(t, addr)
	for _, g := range []*guest{a, b} {
		g.says("hello")
		g.reads("hello")
	}
	c := enter(t, addr)
	c.says("may I?")
	a.says("still here")
	a.reads("still here")
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := c.in.ReadByte(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the third of two at most reads %v, want nothing yet", err)
	}
	c.SetReadDeadline(time.Now().Add(patience))
	b.Close()
	c.reads("may I?")
}

// A pool with one worker has a 503 for some of those who come at once; net/http has none.
func TestOverload(t *testing.T) {
	get := func(addr string) (status int, retry string) {
		r, err := http.Get("http://" + addr)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer r.Body.Close()
		io.Copy(io.Discard, r.Body)
		return r.StatusCode, r.Header.Get("Retry-After")
	}
	together := func(addr string) (served, refused int64) {
		var ok, no atomic.Int64
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				switch status, retry := get(addr); {
				case status == http.StatusOK:
					ok.Add(1)
				case status == http.StatusServiceUnavailable && retry != "":
					no.Add(1)
				default:
					t.Errorf("answered with %d, Retry-After %q; want 200, or 503 with a Retry-After", status, retry)
				}
			})
		}
		all.Wait()
		return ok.Load(), no.Load()
	}
	if served, refused := together(listening(t, "overload", "-naive")); served != 20 || refused != 0 {
		t.Errorf("net/http has served %d and refused %d, want 20 and 0", served, refused)
	}
	addr := listening(t, "overload", "-workers", "1", "-queue", "1")
	for end := time.Now().Add(patience); !t.Failed(); {
		if served, refused := together(addr); served > 0 && refused > 0 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the pool has served %d of 20 and refused %d, want some of both", served, refused)
		}
	}
}

// TestActivated does what systemd does: it opens the socket, and restarts the program.
func TestActivated(t *testing.T) {
	exe := built(t, "activated")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	activate := func() *program {
		t.Helper()
		cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0"`, exe)
		cmd.ExtraFiles = []*os.File{socket}
		p := start(t, cmd)
		p.reads("listening on " + l.Addr().String())
		return p
	}
	asks := func(p *program, g *guest) {
		t.Helper()
		g.reads(fmt.Sprintf("%d says hello", p.Process.Pid))
	}
	first := activate()
	before := enter(t, l.Addr().String())
	before.says("hello")
	asks(first, before)
	first.interrupt()
	between := enter(t, l.Addr().String()) // nobody serves, and it waits
	between.says("hello")
	asks(activate(), between)
}

func TestBalanced(t *testing.T) {
	p := run(t, "balanced", "-addr", "127.0.0.1:0", "-health", "127.0.0.1:0", "-notice", "100ms", "-proxies", "127.0.0.0/8")
	health, addr := p.reads("health on "), p.reads("listening on ")
	asked := func(want int) {
		t.Helper()
		for end := time.Now().Add(patience); ; {
			r, err := http.Get("http://" + health + "/readyz")
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
			if r.StatusCode == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("/readyz says %d, want %d", r.StatusCode, want)
			}
		}
	}
	asked(http.StatusOK)
	g := enter(t, addr)
	io.WriteString(g, "PROXY TCP4 203.0.113.9 192.0.2.1 77 9000\r\nhello\nhel")
	g.reads("203.0.113.9:77 says hello")
	p.Process.Signal(os.Interrupt)
	asked(http.StatusServiceUnavailable) // before the drain and in it
	g.says("lo")                         // what has begun is answered in either
	g.reads("203.0.113.9:77 says hello")
	if _, err := g.in.ReadByte(); err != io.EOF {
		t.Errorf("after the drain: %v, want the end", err)
	}
}

// TestSizes keeps the programs of the cookbook short.
func TestSizes(t *testing.T) {
	for _, name := range []string{"async", "export", "announce", "requests", "heartbeat", "activated", "balanced", "tested", "login", "proxy", "waiting", "overload"} {
		text, err := os.ReadFile(name + "/main.go")
		if err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(text, []byte("\n")); lines > 60 {
			t.Errorf("%s has %d lines, want 60 at most", name, lines)
		}
	}
}

// TestQuotes has documents quote files as they are: a block of code behind a comment with a
// file's name is from that file.
func TestQuotes(t *testing.T) {
	for _, c := range []struct {
		document string
		quotes   int
	}{{"../docs/cookbook.md", 15}, {"../README.md", 1}, {"../README.zh-CN.md", 1}, {"../docs/upgrade.md", 1}, {"../docs/web.md", 2}} {
		text, err := os.ReadFile(c.document)
		if err != nil {
			t.Fatal(err)
		}
		parts := bytes.Split(text, []byte("<!-- quote "))
		if len(parts)-1 != c.quotes {
			t.Errorf("%s has %d quotes, want %d", c.document, len(parts)-1, c.quotes)
		}
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

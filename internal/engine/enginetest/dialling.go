package enginetest

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var dialCases = []testCase{
	{"Dial", func(b *testEnv) { testDial(b, engine.DialRequest{Target: echoServer(b)}) }},
	{"Dial from an address", testDialFromSource},
	{"Dial of more than MaxConns", testDialTooMany},
	{"Dial of a unix socket", func(b *testEnv) { testDialUnixPath(b, tempUnixPath(b)) }},
}

func dialsOnly(cfg *engine.Config) { cfg.Addr = "" }

func echoServer(b *testEnv) netip.AddrPort {
	l := listen(b)
	serveEcho(b, l)
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func serveEcho(b *testEnv, l net.Listener) {
	var running sync.WaitGroup
	running.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer nc.Close()
				// Hide that both are sockets: Go would keep a pipe between them, which looks like a
				// leak.
				io.Copy(struct{ io.Writer }{nc}, struct{ io.Reader }{nc})
			})
		}
	})
	b.Cleanup(func() { l.Close(); running.Wait() })
}

// newDialScript returns a script that sends hello, and closes when hello has come back.
func newDialScript(b *testEnv, target netip.AddrPort) *Script {
	start := engine.MonotonicNow()
	return &Script{
		Opened: func(c *engine.Conn) {
			if !c.IsDialled() {
				b.Error("Outbound is false for a connection that was dialled")
			}
			if at, now := c.DialStartedAt(), engine.MonotonicNow(); at < start || at > now {
				b.Errorf("DialledAt is %v in Opened at %v, want a time since %v", at, now, start)
			}
			if c.Peer() != target {
				b.Errorf("Peer is %v, want %v", c.Peer(), target)
			}
			fmt.Fprintf(c, "hello from %v\n", c.Ref())
		},
		Received: func(c *engine.Conn, in []byte) int {
			want := fmt.Sprintf("hello from %v\n", c.Ref())
			if len(in) < len(want) {
				return 0
			}
			if string(in) != want {
				b.Errorf("the echo is %q, want %q", in, want)
			}
			c.CloseWith(nil)
			return len(in)
		},
	}
}

func testDial(b *testEnv, to engine.DialRequest) {
	const n = 50
	s := b.startServer(newDialScript(b, to.Target), dialsOnly)
	if s.Addr() != nil {
		b.Errorf("Addr is %v for an engine that does not listen, want nil", s.Addr())
	}
	to.Count = n / 2
	for range 2 {
		b.requireNoError(s.Dial(to))
	}
	s.wantOpened(n)
	s.wantClosed(make([]error, n)...)
	if got := s.Counters(); got[engine.Dialled] != n || got[engine.Accepted] != 0 {
		b.Errorf("counted %d dialled and %d accepted, want %d and 0", got[engine.Dialled], got[engine.Accepted], n)
	}
}

// testDialFromSource needs several loopback addresses, which only Linux has by default.
func testDialFromSource(b *testEnv) {
	if runtime.GOOS != "linux" {
		b.Skip("127.0.0.2 is no address of this system")
	}
	l := listen(b)
	s := b.startServer(&Script{}, dialsOnly)
	source := netip.MustParseAddr("127.0.0.2")
	b.requireNoError(s.Dial(engine.DialRequest{Target: l.Addr().(*net.TCPAddr).AddrPort(), Source: source, Count: 1}))
	nc, err := l.Accept()
	b.requireNoError(err)
	if got := nc.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(); got != source {
		b.Errorf("dialled from %v, want %v", got, source)
	}
	nc.Close()
	s.wantClosed(io.EOF)
}

func testDialRefused(b *testEnv) {
	refused := error(syscall.ECONNREFUSED)
	if runtime.GOOS == "windows" {
		refused = syscall.Errno(10061)
	}
	l := listen(b)
	target := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	s := b.startServer(&Script{}, dialsOnly)
	b.requireNoError(s.Dial(engine.DialRequest{Target: target, Count: 3}))
	s.wantDialFailed(refused, refused, refused)
	s.wantOpened(0)
}

func testDialTooMany(b *testEnv) {
	const most, more = 3, 2
	target := echoServer(b)
	s := b.startServer(&Script{}, dialsOnly, limited(func(l *engine.Limits) { l.MaxConns = most }))
	b.requireNoError(s.Dial(engine.DialRequest{Target: target, Count: most + more}))
	refs := s.wantOpened(most)
	s.wantDialFailed(engine.ErrFull, engine.ErrFull)
	for _, r := range refs {
		b.checkNoError(r.Close())
	}
	s.wantClosed(make([]error, most)...)
	// A worker that has called Closed returns the connection to its loop first.
	testkit.WaitFor(b, "the places of closed connections are not given back", func() bool { return s.Counters()[engine.Open] == 0 })
	b.requireNoError(s.Dial(engine.DialRequest{Target: target, Count: 1}))
	s.wantOpened(most + 1)
}

// tempUnixPath returns a path for a unix socket that is short enough for all systems.
func tempUnixPath(b *testEnv) string {
	dir, err := os.MkdirTemp("", "m")
	b.requireNoError(err)
	b.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func testDialUnixPath(b *testEnv, path string) {
	l, err := net.Listen("unix", path)
	b.requireNoError(err)
	serveEcho(b, l)
	testDial(b, engine.DialRequest{Path: path})
}

package secure

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
)

// TestAllocs counts the allocations of a message of 64 bytes.
func TestAllocs(t *testing.T) {
	if poolsForget() {
		t.Log("with the race detector sync.Pool forgets at random, and crypto/tls allocates: nothing is looked at")
		return
	}
	for v, version := range versions {
		t.Run(v, func(t *testing.T) {
			server, client := quiet(t, version)
			msg, buf := make([]byte, 64), make([]byte, 4096)
			in := make([]byte, 0, 4096)
			write := testing.AllocsPerRun(1000, func() {
				client.out = client.out[:0]
				if err := client.s.Write(msg); err != nil {
					t.Fatal(err)
				}
			})
			read := testing.AllocsPerRun(1000, func() {
				if n, _, err := server.s.Read(buf, in); n != 64 && err != nil && err != ErrAgain {
					t.Fatal(err)
				}
			})
			if write > 0 || read > 0 {
				t.Errorf("nothing to read: %v, Write: %v allocations, want none", read, write)
			}
			server, client = quiet(t, version)
			both := testing.AllocsPerRun(1000, func() {
				client.out = client.out[:0]
				if err := client.s.Write(msg); err != nil {
					t.Fatal(err)
				}
				if n, used, err := server.s.Read(buf, client.out); n != 64 || used != len(client.out) || err != nil {
					t.Fatal(n, used, err)
				}
				if n, _, err := server.s.Read(buf, nil); n != 0 || err != ErrAgain {
					t.Fatal(n, err)
				}
			})
			if both > 1 { // crypto/tls makes a reader of 24 bytes for each record
				t.Errorf("Write and Read: %v allocations, want at most 1", both)
			}
		})
	}
}

// TestRest looks at what is kept of an incomplete record: little for little, a
// buffer of the pool for much, and nothing when the record is whole.
func TestRest(t *testing.T) {
	server, client := quiet(t, tls.VersionTLS13)
	msg, buf := make([]byte, 16<<10), make([]byte, 64<<10)
	read := func(in []byte) {
		for {
			_, used, err := server.s.Read(buf, in)
			in = in[used:]
			if err == ErrAgain {
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	pass := func(cut int) {
		client.out = client.out[:0]
		if err := client.s.Write(msg); err != nil {
			t.Fatal(err)
		}
		read(client.out[:cut])
		if n := cap(server.s.rest); cut == 100 && n > 256 || cut > 10_000 && n != maxRecord {
			t.Errorf("%d bytes of room for %d", n, cut)
		}
		read(client.out[cut:])
		if server.s.rest != nil {
			t.Errorf("%d bytes of room for nothing", cap(server.s.rest))
		}
	}
	for range 30 { // until records have their full size
		pass(0)
	}
	pass(100)
	pass(12_000)
	if poolsForget() {
		return
	}
	whole := testing.AllocsPerRun(100, func() { pass(0) })
	if cut := testing.AllocsPerRun(100, func() { pass(12_000) }); cut > whole {
		t.Errorf("%v allocations for a record in two pieces, %v for a whole one", cut, whole)
	}
}

// poolsForget says whether a sync.Pool loses what was put just before.
func poolsForget() bool {
	made := 0
	p := sync.Pool{New: func() any { made++; return new(int) }}
	for range 100 {
		p.Put(p.Get())
	}
	return made > 10
}

// quiet is two open sessions with nothing under way.
func quiet(t testing.TB, version uint16) (server, client *side) {
	serverCfg, clientCfg := configs(version)
	server, client, p := opened(t, serverCfg, clientCfg)
	for p.turn() {
	}
	server.out, client.out = nil, nil
	return server, client
}

// BenchmarkEcho is a message to the server and back, in memory; both sides are
// counted.
func BenchmarkEcho(b *testing.B) {
	for _, size := range []int{64, 16 << 10} {
		b.Run(fmt.Sprint("session/", size), func(b *testing.B) { echoSessions(b, size) })
		b.Run(fmt.Sprint("plain/", size), func(b *testing.B) { echoPlain(b, size) })
	}
}

func echoSessions(b *testing.B, size int) {
	server, client := quiet(b, tls.VersionTLS13)
	msg, buf := make([]byte, size), make([]byte, 64<<10)
	pass := func(from, to *side) {
		in, got := from.out, 0
		for {
			n, used, err := to.s.Read(buf[got:], in)
			in, got = in[used:], got+n
			if err != nil {
				break
			}
		}
		if got != size {
			b.Fatalf("%d bytes, want %d", got, size)
		}
		from.out = from.out[:0]
	}
	b.SetBytes(int64(2 * size))
	b.ReportAllocs()
	for b.Loop() {
		if err := client.s.Write(msg); err != nil {
			b.Fatal(err)
		}
		pass(client, server)
		if err := server.s.Write(buf[:size]); err != nil {
			b.Fatal(err)
		}
		pass(server, client)
	}
}

// A tape is a net.Conn in memory for one goroutine: what one side writes, the
// other reads.
type tape struct {
	wire // for the methods that are not used
	to   *tape
	buf  []byte
}

func (c *tape) Read(p []byte) (int, error) {
	n := copy(p, c.buf)
	c.buf = c.buf[:copy(c.buf, c.buf[n:])]
	return n, nil
}

func (c *tape) Write(p []byte) (int, error) {
	c.to.buf = append(c.to.buf, p...)
	return len(p), nil
}

// echoPlain is the same with plain tls.Conns, called by one goroutine as soon as
// their handshake is over: no scheduling is counted.
func echoPlain(b *testing.B, size int) {
	serverCfg, clientCfg := configs(tls.VersionTLS13)
	up, down := &swap{}, &swap{}
	far, near := net.Pipe()
	up.Conn, down.Conn = far, near
	server, client := tls.Server(up, serverCfg), tls.Client(down, clientCfg)
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	msg, buf := make([]byte, size), make([]byte, 64<<10)
	if err := client.Handshake(); err != nil {
		b.Fatal(err)
	}
	// The server's tickets are read with the first message.
	go func() {
		err := <-done
		if err == nil {
			_, err = server.Write(msg)
		}
		done <- err
	}()
	if _, err := io.ReadFull(client, buf[:size]); err != nil {
		b.Fatal(err)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	x, y := &tape{}, &tape{}
	x.to, y.to = y, x
	up.Conn, down.Conn = x, y
	b.SetBytes(int64(2 * size))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Write(msg); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(server, buf[:size]); err != nil {
			b.Fatal(err)
		}
		if _, err := server.Write(buf[:size]); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(client, buf[:size]); err != nil {
			b.Fatal(err)
		}
	}
}

// swap is a net.Conn that is changed between two calls.
type swap struct{ net.Conn }

// BenchmarkIdle is the memory of a server's connection that is idle after one
// message: bytes of heap and stacks for each of 2,000. It is not about time.
func BenchmarkIdle(b *testing.B) {
	for _, v := range []string{"TLS12", "TLS13"} {
		for _, size := range []int{64, 16 << 10, 300_000} {
			b.Run(fmt.Sprint("session/", v, "/", size), func(b *testing.B) { idle(b, idleSession, versions[v], size) })
			b.Run(fmt.Sprint("plain/", v, "/", size), func(b *testing.B) { idle(b, idlePlain, versions[v], size) })
		}
	}
}

// idle makes connections and compares the memory without the clients.
func idle(b *testing.B, open func(testing.TB, *tls.Config, *tls.Config, int) (keep any, end func()), version uint16, size int) {
	const conns = 2000
	serverCfg, clientCfg := configs(version)
	for b.Loop() {
		warm, end := open(b, serverCfg, clientCfg, size)
		keep, ends := make([]any, conns), make([]func(), conns)
		before := memory()
		for i := range keep {
			keep[i], ends[i] = open(b, serverCfg, clientCfg, size)
		}
		after := memory()
		b.ReportMetric(float64(after-before)/conns, "B/conn")
		for _, end := range ends {
			end()
		}
		end()
		runtime.KeepAlive(warm)
		runtime.KeepAlive(keep)
	}
}

// BenchmarkStalled is the memory of a handshake whose client has said nothing
// after its ClientHello, and of a session whose client has said nothing at all.
// It is what a Gate's places cost at most.
func BenchmarkStalled(b *testing.B) {
	hello := flight(b)
	for name, in := range map[string][]byte{"hello": hello, "silent": nil, "half": hello[:len(hello)/2]} {
		b.Run(name, func(b *testing.B) {
			const conns = 2000
			serverCfg, _ := configs(tls.VersionTLS13)
			for b.Loop() {
				g := NewGate(conns, 2)
				all := make([]*Session, conns)
				before := memory()
				for i := range all {
					o := &lean{news: make(chan struct{}, 1)}
					all[i] = Server(serverCfg, g, o, nil, nil)
					if in == nil {
						continue
					}
					if err := all[i].Feed(in); err != nil {
						b.Fatal(err)
					}
					if name == "hello" {
						waitFor(b, o.news, "the answer", func() bool { all[i].Step(); return o.out != nil })
					}
					o.out = nil
				}
				b.ReportMetric(float64(memory()-before)/conns, "B/conn")
				for _, s := range all {
					s.Abort()
				}
				g.Wait()
			}
		})
	}
}

func memory() int64 {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

var idleGates = [2]*Gate{NewGate(4, 2), NewGate(4, 2)}

// lean is an owner with an output that is dropped.
type lean struct {
	out  []byte
	news chan struct{}
}

func (o *lean) Emit(p []byte) { o.out = append(o.out, p...) }
func (o *lean) Wake()         { ring(o.news) }

// idleSession opens a session, lets a plain client send a message to it, and
// answers.
func idleSession(t testing.TB, serverCfg, clientCfg *tls.Config, size int) (any, func()) {
	o := &lean{news: make(chan struct{}, 1)}
	w := newWire(o.news)
	s := Server(serverCfg, idleGates[0], o, nil, nil)
	msg, buf := make([]byte, size), make([]byte, 64<<10)
	result := plainPeer(tls.Client(w, clientCfg), o.news, func(c *tls.Conn) error {
		if _, err := c.Write(msg); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, size))
		return err
	})
	got, isOpen := 0, false
	var in []byte
	waitFor(t, o.news, "the message", func() bool {
		in = append(in, w.collect()...)
		if !isOpen {
			if !s.Full() {
				n := min(len(in), FullInput)
				if err := s.Feed(in[:n]); err != nil {
					t.Fatal(err)
				}
				in = in[n:]
			}
			var err error
			if isOpen, err = s.Step(); err != nil {
				t.Fatal(err)
			}
			w.give(o.out)
			o.out = o.out[:0]
			if !isOpen {
				return false
			}
		}
		for {
			n, used, err := s.Read(buf, in)
			in, got = in[used:], got+n
			if err != nil {
				return got == size
			}
		}
	})
	if err := s.Write(msg); err != nil {
		t.Fatal(err)
	}
	w.give(o.out)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	o.out, o.news = nil, nil
	return s, func() {}
}

// idlePlain is the usual server: a goroutine that waits in Read of a tls.Conn
// with a buffer of 4 KiB, here over net.Pipe.
func idlePlain(t testing.TB, serverCfg, clientCfg *tls.Config, size int) (any, func()) {
	far, near := net.Pipe()
	hold := &swap{near}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, buf := tls.Server(far, serverCfg), make([]byte, 4096)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			if _, err := c.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	c := tls.Client(hold, clientCfg)
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, size))
		sent <- err
	}()
	if _, err := io.ReadFull(c, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	return near, func() { near.Close(); <-ended }
}

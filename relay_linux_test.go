package myriad

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/myriad-go/myriad/internal/sample"
)

// What an idle relay costs: a client, a server that dials a target for it and joins the
// two, and the target. Clients and target are processes of their own, so that the memory
// measured is the server's alone.

// relayEndsVariable tells a process of these tests to be clients or the target.
const relayEndsVariable = "MYRIAD_TEST_RELAY_ENDS"

// relayEnds is what such a process is asked for: to hold connections to Addr, or, with
// none, to be the target.
type relayEnds struct {
	Addr  string
	Conns []int // how many are held when it says so, step by step
}

func init() {
	if what := os.Getenv(relayEndsVariable); what != "" {
		var r relayEnds
		if err := json.Unmarshal([]byte(what), &r); err != nil {
			log.Fatal(err)
		}
		if err := r.run(bufio.NewReader(os.Stdin)); err != nil {
			log.Fatal("the ends of relays: ", err)
		}
		os.Exit(0)
	}
}

// run ends with its input. Each line of it asks for the next step.
func (r *relayEnds) run(orders *bufio.Reader) error {
	if r.Addr == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		fmt.Println(l.Addr())
		go echoAll(l)
		_, err = io.Copy(io.Discard, orders)
		return err
	}
	var held []net.Conn
	one := make([]byte, 1)
	for _, n := range r.Conns {
		if _, err := orders.ReadString('\n'); err != nil {
			return nil
		}
		for len(held) < n {
			c, err := net.Dial("tcp", r.Addr)
			if err != nil {
				return err
			}
			held = append(held, c)
			if _, err := c.Write(one); err != nil {
				return err
			}
			if _, err := io.ReadFull(c, one); err != nil {
				return err
			}
		}
		fmt.Println("held")
	}
	_, err := io.Copy(io.Discard, orders)
	return err
}

func echoAll(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			var small [16]byte
			for {
				n, err := c.Read(small[:])
				if err != nil {
					return
				}
				if _, err := c.Write(small[:n]); err != nil {
					return
				}
			}
		}()
	}
}

// relayProcess is such a process, while the test runs.
type relayProcess struct {
	in  io.Writer
	out *bufio.Reader
}

func startRelayEnds(t testing.TB, r relayEnds) *relayProcess {
	t.Helper()
	what, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), relayEndsVariable+"="+string(what))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	return &relayProcess{in, bufio.NewReader(out)}
}

func (p *relayProcess) line(t testing.TB) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the process says %q, %v", line, err)
	}
	return line[:len(line)-1]
}

func (p *relayProcess) hold(t testing.TB) {
	t.Helper()
	fmt.Fprintln(p.in)
	if got := p.line(t); got != "held" {
		t.Fatalf("the clients say %q", got)
	}
}

// proxyTo is the handler of a proxy's clients, joinWith that of its connections to the target.
type proxyTo struct {
	Base
	addr string
}

func (h proxyTo) Opened(c *Conn) {
	c.Pause()
	if err := c.Dial(Dial{Addr: h.addr, Handler: joinWith{client: c.Ref()}}); err != nil {
		c.CloseWith(err)
	}
}

type joinWith struct {
	Base
	client Ref
}

func (h joinWith) Opened(c *Conn) {
	if err := c.Relay(h.client); err != nil {
		c.CloseWith(err)
	}
}

// relayMemory is what a server holds at one moment.
type relayMemory struct{ live, inUse, resident, returned int64 }

func measureRelays(t testing.TB) (m relayMemory) {
	t.Helper()
	resident := func() int64 {
		all, err := sample.Take(sample.Memory|sample.PSS, os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return all.Total().RSS
	}
	m.resident = resident()
	runtime.GC()
	debug.FreeOSMemory()
	m.returned = resident()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	m.live, m.inUse = int64(s.HeapAlloc), int64(s.HeapInuse+s.StackInuse)
	return m
}

// An idle relay on an event loop costs its two entries and what its handlers are.
func TestIdleRelayMemory(t *testing.T) {
	const few, many, most = 512, 2560, 256 // entries come 512 at a time
	target := startRelayEnds(t, relayEnds{}).line(t)
	for _, model := range Models()[1:] {
		t.Run(model, func(t *testing.T) {
			s := start(t, &Server{Model: model, Handler: proxyTo{addr: target}})
			clients := startRelayEnds(t, relayEnds{Addr: s.addr, Conns: []int{few, many}})
			clients.hold(t)
			before := heap()
			clients.hold(t)
			if pair := (heap() - before) / (many - few); pair > most {
				t.Errorf("a pair takes %d bytes, want at most %d", pair, most)
			}
			if n := s.Stats().Open; n != 2*many {
				t.Errorf("%d connections are open, want %d", n, 2*many)
			}
		})
	}
}

// BenchmarkIdleRelays holds relays open and tells the server's memory for each pair of
// connections, as the difference of many and few: live objects of the heap, the pages that
// the heap and stacks use, what is resident after a collection, and before it.
func BenchmarkIdleRelays(b *testing.B) {
	const few, many = 2000, 9500
	target := startRelayEnds(b, relayEnds{}).line(b)
	for _, model := range append(Models(), Auto, "shards") {
		b.Run(model, func(b *testing.B) {
			for b.Loop() {
				srv := &Server{Model: model, Handler: proxyTo{addr: target}}
				if model == "shards" {
					srv.Model, srv.Limits.MaxConns = Epoll, 50_000
				}
				s := start(b, srv)
				clients := startRelayEnds(b, relayEnds{Addr: s.addr, Conns: []int{few, many}})
				clients.hold(b)
				before := measureRelays(b)
				clients.hold(b)
				after := measureRelays(b)
				each := func(a, b int64) float64 { return float64(b-a) / (many - few) }
				b.ReportMetric(each(before.live, after.live), "live-B/pair")
				b.ReportMetric(each(before.inUse, after.inUse), "inuse-B/pair")
				b.ReportMetric(each(before.returned, after.returned), "rss-after-gc-B/pair")
				b.ReportMetric(each(before.resident, after.resident), "rss-B/pair")
				_ = s.Close()
			}
		})
	}
}

// What a client sends much of by TLS reaches a partner in clear as it was before that.
func TestRelayOfTLS(t *testing.T) {
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			sent := make([]byte, 8<<20)
			rand.New(rand.NewSource(1)).Read(sent)
			got := make(chan []byte, 1)
			go func() {
				c, err := l.Accept()
				if err != nil {
					got <- nil
					return
				}
				defer c.Close()
				all, _ := io.ReadAll(c)
				got <- all
			}()
			cfg, client := identity()
			s := start(t, &Server{Model: model, TLSConfig: cfg, Handler: proxyTo{addr: l.Addr().String()}})
			c := tls.Client(dial(t, s.addr), client)
			if _, err := c.Write(sent); err != nil {
				t.Error(err)
			}
			c.CloseWrite()
			if all := <-got; !bytes.Equal(all, sent) {
				t.Errorf("%d bytes have come of %d, or others", len(all), len(sent))
			}
		})
	}
}

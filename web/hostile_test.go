package web_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// siege is a server that is attacked while honest clients use it.
type siege struct {
	server *tcp.Server
	addr   string
	pool   *pool.Pool
	over   chan struct{} // closed when the honest clients are through
	ended  chan struct{} // closed when the attackers' connections are, too, if they are to be
	most   atomic.Int64  // of Stats.Buffered
}

// attack is what each of some clients does to a server with a pool of 4 workers. It says when
// all is sent that the honest clients are to see, and goes on until it has what it wants to see.
type attack struct {
	name    string
	clients int
	limits  tcp.Limits
	client  func(s *siege, a *attacker) error
	// closed, if set, counts what all attackers' connections are to be closed for.
	closed func(c tcp.Closes) int64
}

// attacker is the connection of one.
type attacker struct {
	net.Conn
	r       *bufio.Reader
	inPlace func()
}

const (
	maxBuffered = 16 << 20
	aTurn       = 12 << 20
)

const upgradeHead = "GET /%s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"

// ask is a request to become a WebSocket.
func ask(path string) string { return fmt.Sprintf(upgradeHead, path) }

func (a *attacker) upgrade(path string) error {
	io.WriteString(a, ask(path))
	res, err := http.ReadResponse(a.r, nil)
	if err == nil && res.StatusCode != http.StatusSwitchingProtocols {
		err = fmt.Errorf("the upgrade was answered with %s", res.Status)
	}
	return err
}

// untilCut sends a text again and again, with a pause, until the server has closed.
func (a *attacker) untilCut(text string, pause time.Duration) {
	for {
		if _, err := io.WriteString(a, text); err != nil {
			return
		}
		time.Sleep(pause)
	}
}

// wants sends a request whose answer is to have a status.
func (a *attacker) wants(status int, text string) error {
	go io.WriteString(a, text) // all of which may not be taken
	res, err := http.ReadResponse(a.r, nil)
	if err == nil && res.StatusCode != status {
		err = fmt.Errorf("answered with %s; expected %d", res.Status, status)
	}
	a.inPlace()
	return err
}

// wantsFrame reads frames until one begins with a byte, and gives its payload.
func (a *attacker) wantsFrame(first byte) (string, error) {
	w := wire{Conn: a, r: a.r}
	for {
		if op, p, err := w.readFrame(); err != nil || op == first {
			return p, err
		}
	}
}

func (s *siege) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /quick", web.Quick(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.RawQuery) })))
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Write(b)
	})
	mux.HandleFunc("GET /endless", func(w http.ResponseWriter, r *http.Request) {
		for p := make([]byte, 64<<10); ; {
			if _, err := w.Write(p); err != nil {
				return
			}
		}
	})
	mux.Handle("GET /ws", web.Quick(&web.WebSocket{Handler: echoSocket, Compression: true}))
	mux.Handle("GET /sink", web.Quick(&web.WebSocket{Handler: web.SocketBase{}, Compression: true}))
	return mux
}

// honest uses the server in each way that it serves, and checks all answers.
func (s *siege) honest(id int) error {
	nc, err := net.Dial("tcp", s.addr)
	if err != nil {
		return err
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(testkit.Timeout))
	a := &attacker{Conn: nc, r: bufio.NewReader(nc)}
	for round := range 10 {
		text := fmt.Sprintf("%d-%d", id, round)
		fmt.Fprintf(a, "GET /quick?%s HTTP/1.1\r\nHost: x\r\n\r\nPOST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%[1]s", text, len(text))
		for range 2 {
			res, err := http.ReadResponse(a.r, nil)
			if err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
			if b, err := io.ReadAll(res.Body); string(b) != text || err != nil {
				return fmt.Errorf("%s was answered with %s %q, %v", text, res.Status, b, err)
			}
		}
		s.sample()
	}
	if err := a.upgrade("ws"); err != nil {
		return err
	}
	for round := range 10 {
		text := fmt.Sprintf("%d-%d", id, round)
		io.WriteString(a, fr(1, text)+fr(fin, text))
		if got, err := a.wantsFrame(fin | 1); got != text+text {
			return fmt.Errorf("%s over the WebSocket came back as %q, %v", text, got, err)
		}
	}
	return nil
}

func (s *siege) sample() {
	if n := s.server.Stats().Buffered; n > s.most.Load() {
		s.most.Store(n)
	}
}

// TestHostile has honest clients served while others attack, and looks at what the attack
// leaves behind.
func TestHostile(t *testing.T) {
	all := attacks()
	for _, model := range tcp.Models() {
		for _, a := range all {
			t.Run(model+"/"+strings.ReplaceAll(a.name, " ", "-"), func(t *testing.T) {
				goroutines := runtime.NumGoroutine()
				if t.Run("server", func(t *testing.T) { besiege(t, model, a) }) {
					testkit.WaitForFunc(t, func() bool { return runtime.NumGoroutine() <= goroutines }, func() string {
						return fmt.Sprintf("%d goroutines are left; there were %d", runtime.NumGoroutine(), goroutines)
					})
				}
			})
		}
	}
}

func besiege(t *testing.T, model string, a attack) {
	p, err := pool.New(pool.Config{Max: 4, Off: pool.AllRules})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	s := &siege{pool: p, over: make(chan struct{}), ended: make(chan struct{})}
	if a.limits.MaxBuffered == 0 {
		a.limits.MaxBuffered = maxBuffered
	}
	s.server = &tcp.Server{Model: model, Limits: a.limits, Handler: &web.HTTP{Pool: p, Handler: s.handler(), ErrorLog: silent}, Log: slog.New(slog.DiscardHandler)}
	s.addr = serve(t, s.server)

	var attackers, inPlace sync.WaitGroup
	inPlace.Add(a.clients)
	for range a.clients {
		attackers.Go(func() {
			ready := sync.OnceFunc(inPlace.Done)
			defer ready()
			nc, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer nc.Close()
			_ = nc.SetDeadline(time.Now().Add(testkit.Timeout))
			if err := a.client(s, &attacker{nc, bufio.NewReader(nc), ready}); err != nil {
				t.Errorf("an attacker: %v", err)
			}
		})
	}
	inPlace.Wait()
	var honest sync.WaitGroup
	for id := range 4 {
		honest.Go(func() {
			if err := s.honest(id); err != nil {
				t.Errorf("an honest client: %v", err)
			}
		})
	}
	honest.Wait()
	close(s.over)
	if a.closed != nil {
		testkit.WaitForFunc(t, func() bool { s.sample(); return a.closed(s.server.Stats().Closed) == int64(a.clients) }, func() string {
			return fmt.Sprintf("%+v; expected %d closed for the attack", s.server.Stats().Closed, a.clients)
		})
	}
	close(s.ended)
	attackers.Wait()
	testkit.WaitForFunc(t, func() bool {
		n, st := s.server.Stats(), p.Stats()
		return n.Open == 0 && n.Buffered == 0 && st.Running == 0 && st.Queued == 0 && st.Workers <= 4
	}, func() string { return fmt.Sprintf("left behind: %+v, %+v", s.server.Stats(), p.Stats()) })
	// One turn of each loop can exceed it, as in TestBudgetUnderFlood.
	if most, bound := s.most.Load(), int64(a.limits.MaxBuffered+aTurn); most > bound {
		t.Errorf("buffers held %d bytes; expected at most %d", most, bound)
	}
}

func attacks() []attack {
	const post = "POST /echo HTTP/1.1\r\nHost: x\r\n"
	get := "GET /quick?" + strings.Repeat("x", 1000) + " HTTP/1.1\r\nHost: x\r\n\r\n"
	untaken := func(c tcp.Closes) int64 { return c.Write + c.Reset + c.Budget }
	soon := tcp.Limits{MessageTimeout: 400 * time.Millisecond, WriteTimeout: 400 * time.Millisecond}
	bomb := strings.Repeat(fr(fin|0x40|2, compressed(strings.Repeat("\x00", 60_000))), 10)
	huge := fr(fin|0x40|2, compressed(strings.Repeat("\x00", 16<<20)))
	small := soon
	small.MaxBuffered = 4 << 20
	return []attack{
		{"drip of a head", 20, soon, func(s *siege, a *attacker) error {
			io.WriteString(a, "GET / HTTP/1.1\r\n")
			a.inPlace()
			a.untilCut("a", 2*time.Millisecond)
			return nil
		}, func(c tcp.Closes) int64 { return c.Message }},
		{"bodies that drip or stop", 20, tcp.Limits{}, func(s *siege, a *attacker) error {
			io.WriteString(a, post+"Content-Length: 100000\r\n\r\nhalf")
			for s.pool.Stats().Running < 20 {
				time.Sleep(time.Millisecond)
			}
			a.inPlace()
			for tick := time.NewTicker(2 * time.Millisecond); ; {
				select {
				case <-tick.C:
					io.WriteString(a, "x")
				case <-s.over:
					return nil
				}
			}
		}, nil},
		{"downloads that nobody reads", 20, soon, func(s *siege, a *attacker) error {
			io.WriteString(a, "GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
			a.inPlace()
			<-s.ended
			return nil
		}, untaken},
		{"requests whose answers nobody reads", 20, soon, func(s *siege, a *attacker) error {
			a.inPlace()
			a.untilCut(strings.Repeat(get, 50), 0)
			return nil
		}, untaken},
		{"huge heads", 20, tcp.Limits{}, func(s *siege, a *attacker) error {
			return a.wants(431, "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 1<<20))
		}, nil},
		{"heads of many fields", 20, tcp.Limits{}, func(s *siege, a *attacker) error {
			return a.wants(431, "GET / HTTP/1.1\r\nHost: x\r\n"+strings.Repeat("a:\r\n", 5000)+"\r\n")
		}, nil},
		{"long lines before chunks", 20, tcp.Limits{}, func(s *siege, a *attacker) error {
			return a.wants(400, post+"Transfer-Encoding: chunked\r\n\r\n"+strings.Repeat("1;"+strings.Repeat("x", 200)+"\r\nx\r\n", 5000))
		}, nil},
		{"a body that ends within a chunk's size", 20, tcp.Limits{}, func(s *siege, a *attacker) error {
			io.WriteString(a, post+"Transfer-Encoding: chunked\r\n\r\n5")
			a.Conn.(*net.TCPConn).CloseWrite()
			return a.wants(400, "")
		}, nil},
		{"chunks of one byte", 4, tcp.Limits{}, func(s *siege, a *attacker) error {
			const n = 100_000
			a.inPlace()
			go io.WriteString(a, post+"Transfer-Encoding: chunked\r\n\r\n"+strings.Repeat("1\r\nx\r\n", n)+"0\r\n\r\n")
			res, err := http.ReadResponse(a.r, nil)
			if err != nil {
				return err
			}
			if b, err := io.ReadAll(res.Body); len(b) != n || err != nil {
				return fmt.Errorf("%d bytes came back, %v; expected %d", len(b), err, n)
			}
			return nil
		}, nil},
		{"a million empty frames", 4, tcp.Limits{}, func(s *siege, a *attacker) error {
			if err := a.upgrade("ws"); err != nil {
				return err
			}
			a.inPlace()
			go io.WriteString(a, fr(1, "")+strings.Repeat(fr(0, ""), 250_000)+fr(fin, "end"))
			p, err := a.wantsFrame(fin | 1)
			if p != "end" {
				err = fmt.Errorf("the message came back as %q, %v", p, err)
			}
			return err
		}, nil},
		{"pings whose answers nobody reads", 20, soon, func(s *siege, a *attacker) error {
			if err := a.upgrade("ws"); err != nil {
				return err
			}
			a.inPlace()
			a.untilCut(strings.Repeat(fr(fin|9, strings.Repeat("x", 125)), 500), 0)
			return nil
		}, untaken},
		{"bombs", 20, tcp.Limits{}, func(s *siege, a *attacker) error {
			if err := a.upgrade("ws"); err != nil {
				return err
			}
			io.WriteString(a, huge)
			a.inPlace()
			p, err := a.wantsFrame(fin | 8)
			if !strings.HasPrefix(p, closing(web.CloseTooLarge, "")) {
				err = fmt.Errorf("closed with %q, %v", p, err)
			}
			return err
		}, nil},
		{"bombs of just MaxMessage", 8, tcp.Limits{}, func(s *siege, a *attacker) error {
			if err := a.upgrade("sink"); err != nil {
				return err
			}
			for a.inPlace(); ; {
				select {
				case <-s.over:
					return nil
				case <-time.After(5 * time.Millisecond):
					io.WriteString(a, bomb)
				}
			}
		}, nil},
		{"messages without an end", 100, small, func(s *siege, a *attacker) error {
			if err := a.upgrade("ws"); err != nil {
				return err
			}
			io.WriteString(a, fr(2, strings.Repeat("x", 60_000)))
			a.inPlace()
			a.untilCut(fr(0, "x"), 20*time.Millisecond)
			return nil
		}, func(c tcp.Closes) int64 { return c.Message + c.Budget }},
		{"requests that are reset", 20, tcp.Limits{}, func(s *siege, a *attacker) error {
			a.inPlace()
			for range 20 {
				nc, err := net.Dial("tcp", s.addr)
				if err != nil {
					return err
				}
				io.WriteString(nc, post+"Content-Length: 100\r\n\r\nhalf")
				_ = nc.(*net.TCPConn).SetLinger(0)
				nc.Close()
			}
			return nil
		}, nil},
	}
}

// TestRequestsAreCounted has uploads and pipelines wait for a worker: what they take is in
// Stats.Buffered, and nothing of it is kept when their connections are gone.
func TestRequestsAreCounted(t *testing.T) {
	const n, size = 20, 50_000
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			p, err := pool.New(pool.Config{Max: 1, Off: pool.AllRules})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close(context.Background())
			entered, release := make(chan struct{}), make(chan struct{})
			var handled atomic.Int64
			s := &tcp.Server{Model: model, Handler: &web.HTTP{Pool: p, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/hold" {
					entered <- struct{}{}
					<-release
				}
				handled.Add(1)
			})}}
			addr := serve(t, s)
			nc, r := dial(t, addr)
			io.WriteString(nc, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n")
			<-entered
			var waiting []net.Conn
			for range n {
				nc, _ := dial(t, addr)
				waiting = append(waiting, nc)
				io.WriteString(nc, strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", size/10)+"\r\n\r\n", 5))
				nc, _ = dial(t, addr)
				waiting = append(waiting, nc)
				fmt.Fprintf(nc, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", size+1, strings.Repeat("x", size))
			}
			testkit.WaitFor(t, "the requests are not counted", func() bool { return s.Stats().Buffered >= 2*n*size })
			for _, nc := range waiting {
				_ = nc.(*net.TCPConn).SetLinger(0)
				nc.Close()
			}
			testkit.WaitFor(t, "the requests are counted when they are gone", func() bool { return s.Stats().Open == 1 && s.Stats().Buffered < size })
			close(release)
			answer(t, r)
			testkit.WaitFor(t, "the pool is not empty", func() bool { return p.Stats().Queued+p.Stats().Running == 0 })
			if got := handled.Load(); got != 1 {
				t.Errorf("%d requests were handled; expected 1: the others had gone", got)
			}
		})
	}
}

// TestBombsYield has mail come to a loop between the messages of one read, if these are much to
// decompress.
func TestBombsYield(t *testing.T) {
	bomb := fr(fin|0x40|2, compressed(strings.Repeat("\x00", 60_000)))
	bombs := 60_000 / len(bomb)
	for _, model := range tcp.Models() {
		if model == tcp.Goroutine {
			continue // Go's scheduler sees to it
		}
		t.Run(model, func(t *testing.T) {
			var seen, before atomic.Int64
			done := make(chan struct{})
			h := web.OnMessage(func(s web.Socket, _ web.Kind, _ []byte) {
				switch seen.Add(1) {
				case 1:
					_ = s.Ref().Do(func(*tcp.Conn) { before.Store(seen.Load()) })
				case int64(bombs):
					close(done)
				}
			})
			mux := http.NewServeMux()
			mux.Handle("/ws", web.Quick(&web.WebSocket{Handler: h, Compression: true}))
			w := dialSocket(t, serve(t, &tcp.Server{Model: model, Handler: web.Handler(mux)}), "Sec-WebSocket-Extensions: permessage-deflate\r\n")
			w.say(strings.Repeat(bomb, bombs), 0)
			testkit.Receive(t, done, "the last of the messages")
			if n := before.Load(); n == 0 || n > 10 {
				t.Errorf("mail came behind %d messages of %d; expected at most 10", n, bombs)
			}
		})
	}
}

// TestPipelinesYield has mail come to a loop between the requests of one read.
func TestPipelinesYield(t *testing.T) {
	const n = 500
	for _, model := range tcp.Models() {
		if model == tcp.Goroutine {
			continue // Go's scheduler sees to it
		}
		t.Run(model, func(t *testing.T) {
			var seen, before atomic.Int64
			ref := make(chan tcp.Ref, 1)
			mux := http.NewServeMux()
			mux.Handle("/", web.Quick(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if seen.Add(1) == 1 {
					_ = (<-ref).Do(func(*tcp.Conn) { before.Store(seen.Load()) })
				}
			})))
			mux.Handle("/events", web.Quick(&web.Events{Opened: func(c *tcp.Conn) { ref <- c.Ref() }}))
			addr := serve(t, &tcp.Server{Model: model, Handler: web.Handler(mux), Loops: 1})
			nc, r := dial(t, addr)
			io.WriteString(nc, "GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
			if _, err := http.ReadResponse(r, nil); err != nil {
				t.Fatal(err)
			}
			nc, r = dial(t, addr)
			io.WriteString(nc, strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\n\r\n", n))
			for range n {
				answer(t, r)
			}
			if got := before.Load(); got == 0 || got > 100 {
				t.Errorf("mail came behind %d requests of %d; expected at most 100", got, n)
			}
		})
	}
}

// TestContinueWhileAnswering has a body read while the response begins: a client that waits
// for 100 Continue gets it before the response, or not at all.
func TestContinueWhileAnswering(t *testing.T) {
	h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		read := make(chan struct{})
		go func() {
			defer close(read)
			io.Copy(io.Discard, r.Body)
		}()
		w.Header().Set("Content-Length", "4")
		w.WriteHeader(http.StatusOK)
		io.WriteString(w, "done")
		http.NewResponseController(w).Flush()
		<-read
	})}
	eachModel(t, h, func(t *testing.T, addr string) {
		for range 20 {
			nc, r := dial(t, addr)
			io.WriteString(nc, "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
			res, err := http.ReadResponse(r, nil)
			if err == nil && res.StatusCode == http.StatusContinue {
				res, err = http.ReadResponse(r, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			body := make([]byte, 4)
			if _, err := io.ReadFull(res.Body, body); res.StatusCode != 200 || string(body) != "done" {
				t.Errorf("answered with %s %q, %v", res.Status, body, err)
			}
			io.WriteString(nc, "body")
			nc.Close()
		}
	})
}

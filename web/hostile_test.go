package web_test

import (
	"bufio"
	"errors"
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
	"github.com/myriad-go/myriad/tcp/tcptest"
	"github.com/myriad-go/myriad/web"
)

type attackedServer struct {
	server *tcp.Server
	addr   string
	pool   *pool.Pool
	over   chan struct{} // closed when the honest clients are through
	ended  chan struct{} // closed when the attackers' connections are, too, if they are to be
	most   atomic.Int64  // of Stats.Buffered
}

// attack describes what each attacker does to a server with a pool of 4 workers. It signals when
// the honest clients may start, and continues until it has seen the expected reaction.
type attack struct {
	name    string
	clients int
	limits  tcp.Limits
	client  func(s *attackedServer, a *attacker) error
	// closed, if set, counts the reason for which all attackers' connections must be closed.
	closed func(c tcp.Closes) int64
}

type attacker struct {
	net.Conn
	r       *bufio.Reader
	inPlace func()
}

const (
	maxBuffered = 16 << 20
	oneTurn     = 12 << 20
)

func getRequest(path string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
}

func (a *attacker) expectResponse(status int, request string) error {
	go io.WriteString(a, request) // all of which may not be taken
	res, err := http.ReadResponse(a.r, nil)
	if err == nil && res.StatusCode != status {
		err = fmt.Errorf("answered with %s; expected %d", res.Status, status)
	}
	return err
}

func (a *attacker) upgradeToSocket(path string) error {
	return a.expectResponse(http.StatusSwitchingProtocols, getRequest(path))
}

func (a *attacker) sendRepeatedly(text string, every time.Duration, done <-chan struct{}) {
	for tick := time.NewTicker(every); ; {
		if _, err := io.WriteString(a, text); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-done:
			return
		}
	}
}

func (a *attacker) expectFrame(first byte, want string) error {
	for {
		op, p, err := testkit.ReadFrame(a.r)
		switch {
		case err != nil:
			return err
		case op == first && strings.HasPrefix(p, want):
			return nil
		case op == first:
			return fmt.Errorf("a frame with %.100q; expected %q", p, want)
		}
	}
}

func (s *attackedServer) newHandler() http.Handler {
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
	return mux
}

func (s *attackedServer) dialAndRun(run func(*attacker) error) error {
	nc, err := net.Dial("tcp", s.addr)
	if err != nil {
		return err
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(testkit.Timeout))
	return run(&attacker{Conn: nc, r: bufio.NewReader(nc)})
}

func (s *attackedServer) runHonestClient(id int, a *attacker) error {
	for round := range 10 {
		text := fmt.Sprintf("%d-%d", id, round)
		fmt.Fprintf(a, "%sPOST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", getRequests("/quick?"+text), len(text), text)
		for range 2 {
			res, err := http.ReadResponse(a.r, nil)
			if err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
			if b, err := io.ReadAll(res.Body); string(b) != text || err != nil {
				return fmt.Errorf("%s was answered with %s %q, %v", text, res.Status, b, err)
			}
		}
		s.recordMaxBuffered()
	}
	if err := a.upgradeToSocket("/ws"); err != nil {
		return err
	}
	text := fmt.Sprint(id)
	io.WriteString(a, fr(1, text)+fr(fin, text))
	return a.expectFrame(fin|1, text+text)
}

func (s *attackedServer) recordMaxBuffered() {
	if n := s.server.Stats().Buffered; n > s.most.Load() {
		s.most.Store(n)
	}
}

// TestHostile serves honest clients during attacks and checks what the attacks leave behind.
// Models alternate between attacks.
func TestHostile(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	models := tcp.Models()
	t.Run("attacks", func(t *testing.T) {
		for i, a := range newAttacks() {
			t.Run(a.name, func(t *testing.T) {
				t.Parallel()
				runAttack(t, models[i%len(models)], a)
			})
		}
	})
	testkit.WaitForFunc(t, func() bool { return runtime.NumGoroutine() <= goroutines }, func() string {
		return fmt.Sprintf("%d goroutines are left; there were %d", runtime.NumGoroutine(), goroutines)
	})
}

func runAttack(t *testing.T, model string, a attack) {
	p := newPool(t, pool.Config{Max: 4, FixedLimit: true, KeepQueued: true, FIFO: true})
	s := &attackedServer{pool: p, over: make(chan struct{}), ended: make(chan struct{})}
	if a.limits.MaxBuffered == 0 {
		a.limits.MaxBuffered = maxBuffered
	}
	s.server = &tcp.Server{Model: model, Limits: a.limits, Log: slog.New(slog.DiscardHandler),
		Handler: &web.HTTP{Pool: p, Handler: s.newHandler(), ErrorLog: silent}}
	s.addr = startServer(t, s.server)

	var attackers, inPlace, honest sync.WaitGroup
	inPlace.Add(a.clients)
	for range a.clients {
		attackers.Go(func() {
			ready := sync.OnceFunc(inPlace.Done)
			defer ready()
			err := s.dialAndRun(func(one *attacker) error {
				one.inPlace = ready
				return a.client(s, one)
			})
			if err != nil {
				t.Errorf("an attacker: %v", err)
			}
		})
	}
	inPlace.Wait()
	for id := range 4 {
		honest.Go(func() {
			err := s.dialAndRun(func(a *attacker) error { return s.runHonestClient(id, a) })
			if err != nil {
				t.Errorf("an honest client: %v", err)
			}
		})
	}
	honest.Wait()
	close(s.over)
	if a.closed != nil {
		testkit.WaitForFunc(t, func() bool { s.recordMaxBuffered(); return a.closed(s.server.Stats().Closed) == int64(a.clients) }, func() string {
			return fmt.Sprintf("%+v; expected %d closed for the attack", s.server.Stats().Closed, a.clients)
		})
	}
	close(s.ended)
	attackers.Wait()
	testkit.WaitForFunc(t, func() bool {
		n, st := s.server.Stats(), p.Stats()
		return n.Open == 0 && n.Buffered == 0 && st.Running == 0 && st.Queued == 0 && st.Workers <= 4
	}, func() string { return fmt.Sprintf("left behind: %+v, %+v", s.server.Stats(), p.Stats()) })
	// One turn of each loop can exceed it, as in TestMemoryLimits.
	if most, bound := s.most.Load(), int64(a.limits.MaxBuffered+oneTurn); most > bound {
		t.Errorf("buffers held %d bytes; expected at most %d", most, bound)
	}
}

func newAttacks() []attack {
	const post = "POST /echo HTTP/1.1\r\nHost: x\r\n"
	const chunked = post + "Transfer-Encoding: chunked\r\n\r\n"
	untaken := func(c tcp.Closes) int64 { return c.Write + c.Reset + c.Budget }
	soon := tcp.Limits{MessageTimeout: 400 * time.Millisecond, WriteTimeout: 400 * time.Millisecond}
	small := soon
	small.MaxBuffered = 4 << 20
	huge := fr(fin|0x40|2, deflateMessage(strings.Repeat("\x00", 16<<20)))
	refused := func(name string, status int, request string) attack {
		return attack{name, 20, tcp.Limits{}, func(s *attackedServer, a *attacker) error { return a.expectResponse(status, request) }, nil}
	}
	// flood sends a text first, and another as long as the server accepts it.
	flood := func(name, first, text string) attack {
		return attack{name, 20, soon, func(s *attackedServer, a *attacker) error {
			io.WriteString(a, first)
			a.inPlace()
			a.sendRepeatedly(text, time.Microsecond, nil)
			return nil
		}, untaken}
	}
	return []attack{
		refused("huge heads", 431, "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 1<<20)),
		refused("heads of many fields", 431, "GET / HTTP/1.1\r\nHost: x\r\n"+strings.Repeat("a:\r\n", 5000)+"\r\n"),
		refused("long lines before chunks", 400, chunked+strings.Repeat("1;"+strings.Repeat("x", 200)+"\r\nx\r\n", 5000)),
		flood("requests whose answers nobody reads", "", strings.Repeat(getRequests("/quick?"+strings.Repeat("x", 1000)), 50)),
		flood("pings whose answers nobody reads", getRequest("/ws"), strings.Repeat(fr(fin|9, strings.Repeat("x", 125)), 500)),
		{"downloads that nobody reads", 20, soon, func(s *attackedServer, a *attacker) error {
			io.WriteString(a, getRequests("/endless"))
			a.inPlace()
			<-s.ended
			return nil
		}, untaken},
		{"drip of a head", 20, soon, func(s *attackedServer, a *attacker) error {
			io.WriteString(a, "GET / HTTP/1.1\r\n")
			a.inPlace()
			a.sendRepeatedly("a", 2*time.Millisecond, nil)
			return nil
		}, func(c tcp.Closes) int64 { return c.Message }},
		{"messages without an end", 100, small, func(s *attackedServer, a *attacker) error {
			err := a.upgradeToSocket("/ws")
			io.WriteString(a, fr(2, strings.Repeat("x", 60_000)))
			a.inPlace()
			a.sendRepeatedly(fr(0, "x"), 20*time.Millisecond, nil)
			return err
		}, func(c tcp.Closes) int64 { return c.Message + c.Budget }},
		{"bodies that drip or stop", 20, tcp.Limits{}, func(s *attackedServer, a *attacker) error {
			io.WriteString(a, post+"Content-Length: 100000\r\n\r\nhalf")
			for s.pool.Stats().Running < 20 {
				runtime.Gosched()
			}
			a.inPlace()
			a.sendRepeatedly("x", 2*time.Millisecond, s.over)
			return nil
		}, nil},
		{"a body that ends within a chunk's size", 20, tcp.Limits{}, func(s *attackedServer, a *attacker) error {
			io.WriteString(a, chunked+"5")
			a.Conn.(*net.TCPConn).CloseWrite()
			return a.expectResponse(400, "")
		}, nil},
		{"a million empty frames", 4, tcp.Limits{}, func(s *attackedServer, a *attacker) error {
			if err := a.upgradeToSocket("/ws"); err != nil {
				return err
			}
			a.inPlace()
			go io.WriteString(a, fr(1, "")+strings.Repeat(fr(0, ""), 250_000)+fr(fin, "end"))
			return a.expectFrame(fin|1, "end")
		}, nil},
		{"bombs", 20, tcp.Limits{}, func(s *attackedServer, a *attacker) error {
			if err := a.upgradeToSocket("/ws"); err != nil {
				return err
			}
			io.WriteString(a, huge)
			a.inPlace()
			return a.expectFrame(fin|8, closeFrame(web.CloseTooLarge, ""))
		}, nil},
		{"requests that are reset", 20, tcp.Limits{}, func(s *attackedServer, a *attacker) error {
			a.inPlace()
			for range 20 {
				err := s.dialAndRun(func(one *attacker) error {
					_, err := io.WriteString(one, post+"Content-Length: 100\r\n\r\nhalf")
					return errors.Join(err, one.Conn.(*net.TCPConn).SetLinger(0))
				})
				if err != nil {
					return err
				}
			}
			return nil
		}, nil},
	}
}

// TestRequestsAreCounted checks that uploads and pipelined requests that wait for a worker, and a
// message in part, count in Stats.Buffered, and are released with their connections.
func TestRequestsAreCounted(t *testing.T) {
	const n, size = 20, 50_000
	p := newPool(t, pool.Config{Max: 1, FixedLimit: true, KeepQueued: true, FIFO: true})
	entered, release := make(chan struct{}), make(chan struct{})
	var handled atomic.Int64
	mux := http.NewServeMux()
	mux.Handle("/ws", web.Quick(&web.WebSocket{Handler: echoSocket}))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			entered <- struct{}{}
			<-release
		}
		handled.Add(1)
	})
	srv := &tcp.Server{Handler: &web.HTTP{Pool: p, Handler: mux}}
	s := tcptest.NewServer(t, srv)
	s.Dial().Send(getRequests("/hold"))
	<-entered
	socket := s.Dial()
	socket.Send(getRequest("/ws") + fr(2, "") + fr(0, strings.Repeat("x", size)))
	if got := srv.Stats().Buffered; got < size || got > 3*size {
		t.Errorf("%d bytes are counted; expected %d of a message and a little more", got, size)
	}
	waiting := []*tcptest.Peer{socket}
	for range n {
		a, b := s.Dial(), s.Dial()
		waiting = append(waiting, a, b)
		a.Send(strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", size/10)+"\r\n\r\n", 5))
		b.Send(fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", size+1, strings.Repeat("x", size)))
	}
	if got := srv.Stats().Buffered; got < 2*n*size {
		t.Errorf("%d bytes are counted; expected at least %d", got, 2*n*size)
	}
	for _, peer := range waiting {
		peer.Reset()
	}
	if st := srv.Stats(); st.Open != 1 || st.Buffered > size {
		t.Errorf("%d bytes are counted for %d connections when the others are gone", st.Buffered, st.Open)
	}
	close(release)
	testkit.WaitFor(t, "the pool is not empty", func() bool { return p.Stats().Queued+p.Stats().Running == 0 })
	if got := handled.Load(); got != 1 {
		t.Errorf("%d requests were handled; expected 1: the others had gone", got)
	}
}

// TestYield checks that a loop handles mail between the messages or requests of one read if these
// are many or take long to decompress.
func TestYield(t *testing.T) {
	bomb := fr(fin|0x40|2, deflateMessage(strings.Repeat("\x00", 60_000)))
	for name, row := range map[string]struct {
		first, each string
		n, most     int64
	}{
		"requests": {"", getRequests("/"), 500, 100},
		"bombs":    {getRequest("/ws"), bomb, int64(60_000 / len(bomb)), 10},
	} {
		for _, model := range tcp.Models() {
			if model == tcp.Goroutine {
				continue // Go's scheduler shares the processors
			}
			t.Run(name+"/"+model, func(t *testing.T) {
				var seen, before atomic.Int64
				ref, done := make(chan tcp.Ref, 1), make(chan struct{})
				see := func() {
					switch seen.Add(1) {
					case 1:
						_ = (<-ref).Do(func(*tcp.Conn) { before.Store(seen.Load()) })
					case row.n:
						close(done)
					}
				}
				mux := http.NewServeMux()
				mux.Handle("/", web.Quick(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { see() })))
				mux.Handle("/ws", web.Quick(&web.WebSocket{Handler: web.OnMessage(func(web.Socket, web.Kind, []byte) { see() }), Compression: true}))
				mux.Handle("/events", web.Quick(&web.Events{Opened: func(c *tcp.Conn) { ref <- c.Ref() }}))
				addr := startServer(t, &tcp.Server{Model: model, Handler: web.Handler(mux), Loops: 1})
				events, c := testkit.Dial(t, addr), testkit.Dial(t, addr)
				events.Send(getRequests("/events"))
				events.ReadLine()
				c.Send(row.first)
				c.Send(strings.Repeat(row.each, int(row.n)))
				testkit.Receive(t, done, "the last one")
				if got := before.Load(); got == 0 || got > row.most {
					t.Errorf("mail came behind %d of %d; expected at most %d", got, row.n, row.most)
				}
			})
		}
	}
}

// TestTimeouts checks that silent and slow clients are closed in time, counted from the end of
// the last request or the first byte of an incomplete one.
func TestTimeouts(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/x", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("/quick", web.Quick(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	mux.Handle("/ws", web.Quick(&web.WebSocket{Handler: echoSocket}))
	for name, row := range map[string]struct {
		before, drip string
		why          error
	}{
		"silent":                       {"", "", web.ErrTimeout},
		"silent behind a quick answer": {getRequests("/quick"), "", web.ErrTimeout},
		"half a head":                  {"GET", "", web.ErrTimeout},
		"head":                         {"", "G", web.ErrTimeout},
		"head of a second":             {getRequests("/x") + "GET", "T", web.ErrTimeout},
		"fragments":                    {getRequest("/ws") + fr(2, "x"), fr(0, "x"), tcp.ErrMessageTimeout},
		"empty fragments":              {getRequest("/ws") + fr(2, ""), fr(0, ""), tcp.ErrMessageTimeout},
		"frame":                        {getRequest("/ws") + fr(fin|2, strings.Repeat("x", 20_000))[:100], "x", tcp.ErrMessageTimeout},
		"pings in a message":           {getRequest("/ws") + fr(2, "x"), fr(fin|9, ""), tcp.ErrMessageTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			limits := tcp.Limits{MessageTimeout: 10 * time.Second}
			if row.why == web.ErrTimeout {
				limits.MessageTimeout = time.Hour
			}
			s := tcptest.NewServer(t, &tcp.Server{Limits: limits,
				Handler: &web.HTTP{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second}})
			p := s.Dial()
			p.Send(row.before)
			if strings.Contains(row.before, " ") {
				p.Expect("HTTP/1.1 ")
			}
			for range 9 {
				p.Send(row.drip)
				s.Advance(time.Second)
			}
			if why, closed := p.Closed(); closed {
				t.Fatalf("closed within 9 s: %v", why)
			}
			for range 3 {
				_, _ = io.WriteString(p, row.drip)
				s.Advance(time.Second)
			}
			p.ExpectClosed(row.why)
		})
	}
}

// TestOverloadShortensIdleTimeout fills the server with a connection, which begins the action ShortenIdle.
func TestOverloadShortensIdleTimeout(t *testing.T) {
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	srv := &tcp.Server{Limits: tcp.Limits{MaxConns: 1, IdleTimeout: time.Hour}, Handler: &web.HTTP{Handler: web.Quick(hello), IdleTimeout: 80 * time.Second}}
	s := tcptest.NewServer(t, srv)
	p := s.Dial()
	testkit.WaitFor(t, "the action does not begin", func() bool { return srv.Stats().Overload.ShortenIdle == 1 })
	s.Advance(30 * time.Second) // the timer from before the overload
	p.Send(getRequest("/"))
	p.Expect("HTTP/1.1 200 ")
	s.Advance(9 * time.Second)
	if why, closed := p.Closed(); closed {
		t.Fatalf("closed within 9 s: %v", why)
	}
	s.Advance(2 * time.Second)
	p.ExpectClosed(web.ErrTimeout)
}

package web_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// serverSettings is the variable by which a process of this test binary is a server until its
// standard input ends: its model and Limits.MaxConns, and how many there were before it.
const serverSettings = "MYRIAD_TEST_WEB"

func TestMain(m *testing.M) {
	var model string
	var most, before int
	if _, err := fmt.Sscan(os.Getenv(serverSettings), &model, &most, &before); err != nil {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	srv := newMoving(before > 0)
	srv.Addr, srv.Model, srv.Limits.MaxConns = "127.0.0.1:0", model, most
	srv.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	srv.Listening = func(a net.Addr) { fmt.Println(a) } // the first one's is read
	srv.Successor = func() (*exec.Cmd, error) { return serverCommand(model, most, before+1), nil }
	if err := srv.ListenAndServe(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serverCommand(model string, most, before int) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d", serverSettings, model, most, before), "GORACE=atexit_sleep_ms=0")
	return cmd
}

// moving is an application whose connections move. A socket answers each message with its number
// on that socket, and itself; a stream's events have their number on that stream as ID.
type moving struct {
	web.SocketBase
	srv     *tcp.Server
	streams sync.Map // their refs
}

// newMoving makes one; a later one of a chain lacks an endpoint.
func newMoving(later bool) *tcp.Server {
	a, mux := new(moving), http.NewServeMux()
	endpoints := map[string]web.Endpoint{
		"ws":     &web.WebSocket{Handler: a, Compression: true, MinCompressed: 1},
		"large":  &web.WebSocket{Handler: echoSocket, MaxMessage: 4 << 20},
		"events": &web.Events{Opened: a.enter, Closed: a.left, Save: a.save, Restore: a.restore},
		"gone":   &web.WebSocket{Handler: echoSocket},
	}
	quick := func(path string, f http.HandlerFunc) { mux.Handle(path, web.Quick(f)) }
	for name, e := range endpoints {
		quick("/"+name, e.(http.Handler).ServeHTTP)
	}
	if later {
		delete(endpoints, "gone")
	}
	quick("/unnamed", (&web.WebSocket{Handler: echoSocket}).ServeHTTP)
	quick("/pid", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, os.Getpid()) })
	quick("/in", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, a.srv.Stats().BytesIn) })
	quick("/open", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, a.srv.Stats().Open) })
	quick("/tell", func(_ http.ResponseWriter, r *http.Request) { a.tell(r.URL.RawQuery) })
	quick("/upgrade", func(http.ResponseWriter, *http.Request) {
		go func() {
			if _, err := a.srv.Upgrade(context.Background()); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	})
	a.srv = &tcp.Server{Handler: &web.HTTP{Handler: mux, Endpoints: endpoints}, Limits: tcp.Limits{MaxUnsent: 8 << 20}}
	return a.srv
}

func (a *moving) Message(s web.Socket, kind web.Kind, m []byte) {
	n, _ := s.Value().(uint64)
	s.SetValue(n + 1)
	_ = s.Write(kind, fmt.Appendf(nil, "%d %s", n+1, m))
	if string(m) == "fail" {
		s.SetValue("bad")
	}
}

func (a *moving) Save(s web.Socket, to []byte) ([]byte, error) {
	if s.Value() == "bad" {
		return to, nil
	}
	n, _ := s.Value().(uint64)
	return binary.AppendUvarint(to, n), nil
}

func (a *moving) Restore(s web.Socket, state []byte) error {
	n, size := binary.Uvarint(state)
	if size != len(state) || size == 0 {
		return &web.CloseError{Code: 4001, Reason: "no number"}
	}
	s.SetValue(n)
	return nil
}

func (a *moving) enter(c *tcp.Conn) {
	c.SetValue(uint64(0))
	a.streams.Store(c.Ref(), true)
}

func (a *moving) left(c *tcp.Conn, _ error) { a.streams.Delete(c.Ref()) }

func (a *moving) save(c *tcp.Conn, to []byte) ([]byte, error) {
	return binary.AppendUvarint(to, c.Value().(uint64)), nil
}

func (a *moving) restore(c *tcp.Conn, state []byte) error {
	n, _ := binary.Uvarint(state)
	c.SetValue(n)
	a.streams.Store(c.Ref(), true)
	return nil
}

// tell sends each stream an event.
func (a *moving) tell(text string) {
	a.streams.Range(func(ref, _ any) bool {
		_ = ref.(tcp.Ref).Do(func(c *tcp.Conn) {
			n := c.Value().(uint64) + 1
			c.SetValue(n)
			_, _ = c.Write(web.Event{ID: fmt.Sprint(n), Data: text}.Bytes())
		})
		return true
	})
}

// chain is a server, and those that take its place, with a connection to whichever serves.
type chain struct {
	*testkit.Conn
	t    *testing.T
	addr string
	pid  int
}

func startChain(t *testing.T, model string, most int) *chain {
	t.Helper()
	stdin, stop, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := serverCommand(model, most, 0)
	cmd.Stdin, cmd.Stderr = stdin, nil
	p := testkit.Start(t, cmd)
	s := &chain{t: t, addr: p.WaitForOutput(`(127\.0\.0\.1:\d+)\n`)[1]}
	t.Cleanup(func() {
		stop.Close()
		stdin.Close()
		s.awaitGone(s.pid)
		if said := strings.Replace(p.Output.String(), s.addr+"\n", "", 1); said != "" {
			t.Errorf("the servers say:\n%s", said)
		}
	})
	s.Conn = testkit.Dial(t, s.addr)
	s.pid = s.number("/pid")
	return s
}

// ask asks the server that has the connection.
func (s *chain) ask(path string) string {
	s.t.Helper()
	s.Send(get(path))
	res, body := s.ReadResponse()
	if res.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s", path, res.Status)
	}
	return body
}

func (s *chain) number(path string) int {
	s.t.Helper()
	n, err := strconv.Atoi(s.ask(path))
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// readBy has what is sent meanwhile, of so many bytes and by nobody else, be read by the server.
func (s *chain) readBy(send func() (bytes int)) {
	s.t.Helper()
	before, request := s.number("/in"), len(get("/in"))
	want := before + send()
	testkit.WaitFor(s.t, "not all has been read", func() bool {
		want += request
		return s.number("/in") >= want
	})
}

// upgrade has the next process take the server's place, and gives the old one, which may not have ended.
func (s *chain) upgrade() (old int) {
	s.t.Helper()
	old = s.pid
	s.ask("/upgrade")
	testkit.WaitFor(s.t, "there is no new process", func() bool {
		s.pid = s.number("/pid")
		return s.pid != old
	})
	return old
}

func (s *chain) awaitGone(pid int) {
	s.t.Helper()
	testkit.WaitFor(s.t, fmt.Sprintf("process %d is left", pid), func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// mover is a client of a socket that moves.
type mover struct {
	*testkit.Conn
	t            *testing.T
	number, sent int
	style        string
}

// styles are how a client sends its messages.
var styles = []string{"text", "binary", "compressed", "fragments", "half a frame", "half a large frame"}

func dialMover(t *testing.T, addr string, number int) *mover {
	m := &mover{t: t, number: number, style: styles[number%len(styles)]}
	fields := ""
	if m.style == "compressed" {
		fields = "Sec-WebSocket-Extensions: permessage-deflate\r\n"
	}
	m.Conn = dialSocket(t, addr, fields)
	return m
}

// next is the next message: its frames in two parts, and what the answer is to be.
func (m *mover) next() (first, rest, want string) {
	m.sent++
	text := fmt.Sprintf("message %d of socket %d, größer", m.sent, m.number)
	op, cut := byte(fin|web.Text), 0
	all := ""
	switch m.style {
	case "binary":
		op = byte(fin | web.Binary)
	case "compressed":
		all = fr(0x40|op, compressed(text))
	case "fragments":
		first = fr(byte(web.Text), text[:len(text)-3]) // within a character
		all, cut = first+fr(fin, text[len(text)-3:]), len(first)+7
	case "half a large frame":
		text += strings.Repeat(text, 20_000/len(text))
	}
	if all == "" {
		all = fr(op, text)
	}
	if strings.HasPrefix(m.style, "half") {
		cut = len(all)/2 + 1
	}
	return all[:cut], all[cut:], fmt.Sprintf("%d %s", m.sent, text)
}

// hear reads an answer.
func (m *mover) hear(want string) error {
	op, p, err := testkit.ReadFrame(m.R)
	wantOp := byte(fin | web.Text)
	switch m.style {
	case "binary":
		wantOp = fin | byte(web.Binary)
	case "compressed":
		wantOp |= 0x40
		p = decompressed(m.t, p)
	}
	if err != nil || op != wantOp || p != want {
		return fmt.Errorf("client %d (%s), message %d: %#x %.50q, %v; want %#x %.50q", m.number, m.style, m.sent, op, p, err, wantOp, want)
	}
	return nil
}

// exchange sends a message and reads the answer.
func (m *mover) exchange() error {
	first, rest, want := m.next()
	if _, err := io.WriteString(m, first+rest); err != nil {
		return err
	}
	return m.hear(want)
}

// TestMoves takes WebSockets and streams of events through upgrades: nothing is lost, doubled or out of
// order, where a socket is idle, in the middle of a message, or exchanges messages all the time.
func TestMoves(t *testing.T) {
	const sockets, streams = 60, 30
	rows := map[string]int{"shards": sock.MaxConns() + 1}
	for _, model := range tcp.Models() {
		rows[model] = 0
	}
	for name, most := range rows {
		t.Run(name, func(t *testing.T) {
			model := name
			if name == "shards" {
				model = tcp.Epoll
			}
			s := startChain(t, model, most)
			var parked, busy []*mover
			for i := range sockets {
				if m := dialMover(t, s.addr, i); i%5 == 0 {
					busy = append(busy, m)
				} else {
					parked = append(parked, m)
				}
			}
			var events []*bufio.Reader
			for range streams {
				c := testkit.Dial(t, s.addr)
				c.Send(get("/events"))
				res, err := http.ReadResponse(c.R, nil)
				if err != nil {
					t.Fatal(err)
				}
				events = append(events, bufio.NewReader(res.Body))
			}
			for up := range 2 {
				s.ask("/tell?before")
				rests, wants := make([]string, len(parked)), make([]string, len(parked))
				s.readBy(func() (n int) {
					for i, m := range parked {
						var first string
						first, rests[i], wants[i] = m.next()
						m.Send(first)
						n += len(first)
					}
					return n
				})
				var stop atomic.Bool
				results := make(chan error, len(busy))
				for _, m := range busy {
					go func() {
						err := m.exchange()
						for err == nil && !stop.Load() {
							err = m.exchange()
						}
						results <- err
					}()
				}
				s.awaitGone(s.upgrade())
				stop.Store(true)
				for range busy {
					if err := testkit.Receive(t, results, "the end of a busy client"); err != nil {
						t.Error(err)
					}
				}
				if n := s.number("/open"); n != sockets+streams+1 {
					t.Fatalf("upgrade %d: %d connections are open, want %d", up, n, sockets+streams+1)
				}
				for i, m := range parked {
					m.Send(rests[i])
				}
				for i, m := range parked {
					if err := m.hear(wants[i]); err != nil {
						t.Fatalf("upgrade %d: %v", up, err)
					}
				}
				s.ask("/tell?after")
				for i, r := range events {
					want := fmt.Sprintf("id: %d\ndata: before\n\nid: %d\ndata: after\n\n", 2*up+1, 2*up+2)
					got := make([]byte, len(want))
					if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
						t.Fatalf("upgrade %d, stream %d: %q, %v; want %q", up, i, got, err, want)
					}
				}
			}
			for _, m := range busy {
				if err := m.exchange(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestMovesOrNot has WebSockets move later, not at all, or to a process that does not take them.
func TestMovesOrNot(t *testing.T) {
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			s := startChain(t, model, 0)
			open := func(path string) *testkit.Conn {
				c := testkit.Dial(t, s.addr)
				c.HandshakeWebSocket(path, "")
				return c
			}
			unnamed, gone, bad, large := open("/unnamed"), open("/gone"), open("/ws"), open("/large")
			bad.Send(fr(fin|1, "fail"))
			wantFrame(t, bad, fin|1, "1 fail")
			// A message of which more has come than a state may have moves when it is whole.
			message := strings.Repeat("0123456789abcdef", 160<<10)
			s.readBy(func() int {
				frame := fr(1, message[:len(message)/2])
				large.Send(frame)
				return len(frame)
			})
			old := s.upgrade()
			large.Send(fr(fin, message[len(message)/2:]))
			wantFrame(t, large, fin|1, message)
			wantClose(t, bad, 4001)
			if rest := gone.ExpectClosed(); rest != "" {
				t.Errorf("a socket that the new process does not know: %q; want the end", rest)
			}
			wantClose(t, unnamed, web.CloseGoingAway)
			s.awaitGone(old)
			testkit.WaitFor(t, "not 2 connections are open", func() bool { return s.number("/open") == 2 })
			large.Send(fr(fin|2, "once more"))
			wantFrame(t, large, fin|2, "once more")
		})
	}
}

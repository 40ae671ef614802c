package web_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

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
	t    *testing.T
	addr string
	pid  int
	nc   net.Conn
	in   *bufio.Reader
}

func startChain(t *testing.T, model string, most int) *chain {
	t.Helper()
	stdin, stop, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	errors, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := serverCommand(model, most, 0)
	cmd.Stdin, cmd.Stderr = stdin, errors
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &chain{t: t}
	t.Cleanup(func() {
		stop.Close()
		stdin.Close()
		_ = cmd.Wait()
		s.awaitGone(s.pid)
		if said, _ := os.ReadFile(errors.Name()); len(said) > 0 {
			t.Errorf("the servers say:\n%s", said)
		}
		errors.Close()
	})
	if s.addr, err = bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	s.addr = strings.TrimSpace(s.addr)
	s.nc, s.in = dial(t, s.addr)
	_ = s.nc.SetDeadline(time.Now().Add(2 * testkit.Timeout))
	s.pid = s.number("/pid")
	return s
}

// ask asks the server that has the connection.
func (s *chain) ask(path string) string {
	s.t.Helper()
	fmt.Fprintf(s.nc, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
	res, body := answer(s.t, s.in)
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
	before, request := s.number("/in"), len("GET /in HTTP/1.1\r\nHost: x\r\n\r\n")
	want := before + send()
	testkit.WaitFor(s.t, "not all has been read", func() bool {
		want += request
		return s.number("/in") >= want
	})
}

// upgrade has the next process take the server's place, and waits until the old one has gone.
func (s *chain) upgrade() {
	s.t.Helper()
	old := s.pid
	s.ask("/upgrade")
	testkit.WaitFor(s.t, "there is no new process", func() bool {
		s.pid = s.number("/pid")
		return s.pid != old
	})
	s.awaitGone(old)
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
	*wire
	number, sent int
	style        string
}

// styles are how a client sends its messages.
var styles = []string{"text", "binary", "compressed", "fragments", "half a frame", "half a large frame"}

// dialMover makes a client.
func dialMover(t *testing.T, addr string, number int) *mover {
	m := &mover{number: number, style: styles[number%len(styles)]}
	fields := ""
	if m.style == "compressed" {
		fields = "Sec-WebSocket-Extensions: permessage-deflate\r\n"
	}
	m.wire = dialSocket(t, addr, fields)
	_ = m.SetDeadline(time.Now().Add(2 * testkit.Timeout))
	return m
}

// next is the next message: its frames in two parts, and what the answer is to be.
func (m *mover) next() (first, rest, want string) {
	m.sent++
	text := fmt.Sprintf("message %d of socket %d, größer", m.sent, m.number)
	op := byte(web.Text)
	var all string
	switch m.style {
	case "binary":
		op, text = byte(web.Binary), text+"\xff"
		all = fr(fin|op, text)
	case "compressed":
		all = fr(fin|0x40|op, compressed(text))
	case "fragments":
		first = fr(op, text[:len(text)-3]) // within a character
		all = first + fr(fin, text[len(text)-3:])
		return all[:len(first)+7], all[len(first)+7:], fmt.Sprintf("%d %s", m.sent, text)
	case "half a large frame":
		text += strings.Repeat(text, 20_000/len(text))
		all = fr(fin|op, text)
	default:
		all = fr(fin|op, text)
	}
	cut := 0
	if strings.HasPrefix(m.style, "half") {
		cut = len(all)/2 + 1
	}
	return all[:cut], all[cut:], fmt.Sprintf("%d %s", m.sent, text)
}

// hear reads an answer.
func (m *mover) hear(want string) error {
	op, p, err := m.readFrame()
	wantOp := byte(fin | web.Text)
	switch m.style {
	case "binary":
		wantOp = byte(fin | web.Binary)
	case "compressed":
		wantOp |= 0x40
		p = decompressed(m.t, p)
	}
	if err == nil && (op != wantOp || p != want) {
		err = fmt.Errorf("%#x %.50q; want %#x %.50q", op, p, wantOp, want)
	}
	if err != nil {
		err = fmt.Errorf("client %d (%s), message %d: %w", m.number, m.style, m.sent, err)
	}
	return err
}

// exchange sends a message and reads the answer.
func (m *mover) exchange() error {
	first, rest, want := m.next()
	if _, err := io.WriteString(m, first+rest); err != nil {
		return err
	}
	return m.hear(want)
}

// TestMoves takes 300 WebSockets and 300 streams of events through three upgrades: nothing is
// lost, doubled or out of order, where a socket is idle, in the middle of a message, or
// exchanges messages all the time.
func TestMoves(t *testing.T) {
	sockets, streams := 300, 300
	if testing.Short() {
		sockets, streams = 60, 60
	}
	type settings struct {
		name, model string
		most        int
	}
	rows := []settings{{"shards", tcp.Epoll, sock.MaxConns() + 1}}
	for _, model := range tcp.Models() {
		rows = append(rows, settings{model, model, 0})
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			s := startChain(t, row.model, row.most)
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
				nc, r := dial(t, s.addr)
				_ = nc.SetDeadline(time.Now().Add(2 * testkit.Timeout))
				io.WriteString(nc, "GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
				res, err := http.ReadResponse(r, nil)
				if err != nil {
					t.Fatal(err)
				}
				events = append(events, bufio.NewReader(res.Body))
			}
			told := 0
			for up := range 3 {
				s.ask("/tell?before")
				rests, wants := make([]string, len(parked)), make([]string, len(parked))
				s.readBy(func() (n int) {
					for i, m := range parked {
						var first string
						first, rests[i], wants[i] = m.next()
						io.WriteString(m, first)
						n += len(first)
					}
					return n
				})
				var stop atomic.Bool
				results := make(chan error, len(busy))
				for _, m := range busy {
					go func() {
						var err error
						for err == nil && !stop.Load() {
							err = m.exchange()
						}
						results <- err
					}()
				}
				s.upgrade()
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
					io.WriteString(m, rests[i])
				}
				for i, m := range parked {
					if err := m.hear(wants[i]); err != nil {
						t.Fatalf("upgrade %d: %v", up, err)
					}
				}
				s.ask("/tell?after")
				for i, r := range events {
					want := fmt.Sprintf("id: %d\ndata: before\n\nid: %d\ndata: after\n\n", told+1, told+2)
					got := make([]byte, len(want))
					if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
						t.Fatalf("upgrade %d, stream %d: %q, %v; want %q", up, i, got, err, want)
					}
				}
				told += 2
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
			open := func(path string) *wire {
				nc, err := net.Dial("tcp", s.addr)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { nc.Close() })
				return upgradeAt(t, nc, path, "")
			}
			unnamed, gone, bad, large := open("/unnamed"), open("/gone"), open("/ws"), open("/large")
			bad.say(fr(fin|1, "fail"), 0)
			bad.wantText("1 fail")
			// A message of which more has come than a state may have moves when it is whole.
			message := strings.Repeat("0123456789abcdef", 160<<10)
			s.readBy(func() int {
				frame := fr(1, message[:len(message)/2])
				io.WriteString(large, frame)
				return len(frame)
			})
			s.ask("/upgrade")
			old := s.pid
			testkit.WaitFor(t, "there is no new process", func() bool {
				s.pid = s.number("/pid")
				return s.pid != old
			})
			large.say(fr(fin, message[len(message)/2:]), 0)
			large.wantText(message)
			unnamed.wantClose(web.CloseGoingAway)
			bad.wantClose(4001)
			if b, err := io.ReadAll(gone.r); len(b) > 0 || err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a socket that the new process does not know: %q, %v; want the end", b, err)
			}
			unnamed.Close()
			s.awaitGone(old)
			testkit.WaitFor(t, "not 2 connections are open", func() bool { return s.number("/open") == 2 })
			large.say(fr(fin|2, "once more"), 0)
			if op, p, err := large.readFrame(); err != nil || op != fin|2 || p != "once more" {
				t.Errorf("a frame %#x %.20q, %v", op, p, err)
			}
		})
	}
}

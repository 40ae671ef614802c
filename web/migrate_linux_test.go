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
	"sync/atomic"
	"testing"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// serverSettings is the environment variable that makes a process of this test binary a server
// until its standard input ends: its model, Limits.MaxConns, and the number of servers before it.
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
	srv := newMigratingServer(before > 0)
	srv.Addr, srv.Model, srv.Limits.MaxConns = "127.0.0.1:0", model, most
	srv.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	srv.Listening = func(a net.Addr) { fmt.Println(a) } // the first one's is read
	srv.Successor = func() (*exec.Cmd, error) { return serverCommand(model, most, before+1), nil }
	if err := srv.ListenAndServe(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serverCommand(model string, maxConns, predecessors int) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d", serverSettings, model, maxConns, predecessors), "GORACE=atexit_sleep_ms=0")
	return cmd
}

// migratingApp is an application whose connections move. A socket answers each message with its
// number on that socket and its text.
type migratingApp struct {
	web.SocketBase
	srv     *tcp.Server
	streams tcp.Group
}

func newMigratingServer(isSuccessor bool) *tcp.Server {
	a, mux := new(migratingApp), http.NewServeMux()
	endpoints := map[string]web.Endpoint{
		"ws":     &web.WebSocket{Handler: a, Compression: true, MinCompressed: 1},
		"large":  &web.WebSocket{Handler: echoSocket, MaxMessage: 4 << 20},
		"events": &web.Events{Opened: a.addStream, Save: a.saveStream, Restore: a.restoreStream},
		"gone":   &web.WebSocket{Handler: echoSocket},
	}
	quick := func(path string, f http.HandlerFunc) { mux.Handle(path, web.Quick(f)) }
	for name, e := range endpoints {
		quick("/"+name, e.(http.Handler).ServeHTTP)
	}
	if isSuccessor {
		delete(endpoints, "gone")
	}
	quick("/unnamed", (&web.WebSocket{Handler: echoSocket}).ServeHTTP)
	quick("/pid", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, os.Getpid()) })
	quick("/in", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, a.srv.Stats().BytesIn) })
	quick("/open", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, a.srv.Stats().Open) })
	quick("/tell", func(_ http.ResponseWriter, r *http.Request) {
		a.streams.Broadcast(web.Event{Data: r.URL.RawQuery}.Bytes())
	})
	quick("/upgrade", func(http.ResponseWriter, *http.Request) {
		go func() {
			if _, err := a.srv.Upgrade(context.Background()); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	})
	a.srv = &tcp.Server{Handler: &web.HTTP{Handler: mux, Endpoints: endpoints, UnencryptedHTTP2: true}, Limits: tcp.Limits{MaxUnsent: 8 << 20}}
	return a.srv
}

func (a *migratingApp) Message(s web.Socket, kind web.Kind, m []byte) {
	n, _ := s.Value().(uint64)
	s.SetValue(n + 1)
	_ = s.Write(kind, fmt.Appendf(nil, "%d %s", n+1, m))
	if string(m) == "fail" {
		s.SetValue("bad")
	}
}

func (a *migratingApp) Save(s web.Socket, to []byte) ([]byte, error) {
	if s.Value() == "bad" {
		return to, nil
	}
	n, _ := s.Value().(uint64)
	return binary.AppendUvarint(to, n), nil
}

func (a *migratingApp) Restore(s web.Socket, state []byte) error {
	n, size := binary.Uvarint(state)
	if size != len(state) || size == 0 {
		return &web.CloseError{Code: 4001, Reason: "no number"}
	}
	s.SetValue(n)
	return nil
}

func (a *migratingApp) addStream(c *tcp.Conn) {
	c.SetValue("a stream")
	a.streams.Add(c.Ref())
}

func (a *migratingApp) saveStream(c *tcp.Conn, to []byte) ([]byte, error) {
	return append(to, c.Value().(string)...), nil
}

func (a *migratingApp) restoreStream(c *tcp.Conn, state []byte) error {
	if string(state) != "a stream" {
		return fmt.Errorf("the state is %q", state)
	}
	a.addStream(c)
	return nil
}

type upgradeChain struct {
	*testkit.Conn
	t    *testing.T
	addr string
	pid  int
}

func startUpgradeChain(t *testing.T, model string, maxConns int) *upgradeChain {
	t.Helper()
	stdin, stop, err := os.Pipe()
	testkit.RequireNoError(t, err)
	cmd := serverCommand(model, maxConns, 0)
	cmd.Stdin, cmd.Stderr = stdin, nil
	p := testkit.Start(t, cmd)
	s := &upgradeChain{t: t, addr: p.WaitForOutput(`(127\.0\.0\.1:\d+)\n`)[1]}
	t.Cleanup(func() {
		stop.Close()
		stdin.Close()
		s.waitProcessEnd(s.pid)
		if said := strings.Replace(p.Output.String(), s.addr+"\n", "", 1); said != "" {
			t.Errorf("the servers say:\n%s", said)
		}
	})
	s.Conn = testkit.Dial(t, s.addr)
	s.pid = s.getNumber("/pid")
	return s
}

func (s *upgradeChain) getBody(path string) string {
	s.t.Helper()
	s.Send(getRequests(path))
	res, body := s.ReadResponse()
	if res.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s", path, res.Status)
	}
	return body
}

func (s *upgradeChain) getNumber(path string) int {
	s.t.Helper()
	n, err := strconv.Atoi(s.getBody(path))
	testkit.RequireNoError(s.t, err)
	return n
}

func (s *upgradeChain) waitServerRead(send func() (bytes int)) {
	s.t.Helper()
	before, request := s.getNumber("/in"), len(getRequests("/in"))
	want := before + send()
	testkit.WaitFor(s.t, "not all has been read", func() bool {
		want += request
		return s.getNumber("/in") >= want
	})
}

func (s *upgradeChain) upgradeServer() (old int) {
	s.t.Helper()
	old = s.pid
	s.getBody("/upgrade")
	testkit.WaitFor(s.t, "there is no new process", func() bool {
		s.pid = s.getNumber("/pid")
		return s.pid != old
	})
	return old
}

func (s *upgradeChain) waitProcessEnd(pid int) {
	s.t.Helper()
	testkit.WaitFor(s.t, fmt.Sprintf("process %d is left", pid), func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

type migratedSocketClient struct {
	*testkit.Conn
	t            *testing.T
	number, sent int
	isCompressed bool
}

func dialSocketClient(t *testing.T, addr string, number int) *migratedSocketClient {
	m := &migratedSocketClient{t: t, number: number, isCompressed: number%3 == 0}
	fields := ""
	if m.isCompressed {
		fields = "Sec-WebSocket-Extensions: permessage-deflate\r\n"
	}
	m.Conn = dialSocket(t, addr, fields)
	return m
}

// nextMessage returns the halves of a message of 2 frames. The first half may end within a character.
func (m *migratedSocketClient) nextMessage() (first, rest, want string) {
	m.sent++
	text := fmt.Sprintf("größer: message %d of socket %d", m.sent, m.number)
	text += strings.Repeat(text, m.number%2*500)
	first, rest = fr(byte(web.Text), text[:3]), fr(fin, text[3:])
	if m.isCompressed {
		squeezed := deflateMessage(text)
		first, rest = fr(0x40|byte(web.Text), squeezed[:9]), fr(fin, squeezed[9:])
	}
	cut := len(rest) / 2 * (m.number % 4 / 2) // 0 or the middle of a frame
	return first + rest[:cut], rest[cut:], fmt.Sprintf("%d %s", m.sent, text)
}

func (m *migratedSocketClient) expectAnswer(want string) error {
	op, p, err := testkit.ReadFrame(m.R)
	wantOp := byte(fin | web.Text)
	if m.isCompressed {
		wantOp |= 0x40
		p = inflateMessage(m.t, p)
	}
	if err != nil || op != wantOp || p != want {
		return fmt.Errorf("client %d, message %d: %#x %.50q, %v; want %#x %.50q", m.number, m.sent, op, p, err, wantOp, want)
	}
	return nil
}

func (m *migratedSocketClient) exchangeMessage() error {
	first, rest, want := m.nextMessage()
	if _, err := io.WriteString(m, first+rest); err != nil {
		return err
	}
	return m.expectAnswer(want)
}

// TestMoves takes WebSockets and streams through upgrades: nothing may be lost, duplicated or
// reordered, whether a socket is idle, in the middle of a message, or continuously exchanging
// messages.
func TestMoves(t *testing.T) {
	const sockets, streams = 60, 30
	rows := map[string]int{"shards": sock.DefaultMaxConnsForDescriptorLimit() + 1}
	for _, model := range tcp.Models() {
		rows[model] = 0
	}
	for name, most := range rows {
		t.Run(name, func(t *testing.T) {
			model := name
			if name == "shards" {
				model = tcp.Epoll
			}
			s := startUpgradeChain(t, model, most)
			var parked, busy []*migratedSocketClient
			for i := range sockets {
				if m := dialSocketClient(t, s.addr, i); i < sockets/5 {
					busy = append(busy, m)
				} else {
					parked = append(parked, m)
				}
			}
			var events []*bufio.Reader
			for range streams {
				c := testkit.Dial(t, s.addr)
				c.Send(getRequests("/events"))
				res, err := http.ReadResponse(c.R, nil)
				testkit.RequireNoError(t, err)
				events = append(events, bufio.NewReader(res.Body))
			}
			for up := range 2 {
				s.getBody(fmt.Sprint("/tell?before", up))
				rests, wants := make([]string, len(parked)), make([]string, len(parked))
				s.waitServerRead(func() (n int) {
					for i, m := range parked {
						var first string
						first, rests[i], wants[i] = m.nextMessage()
						m.Send(first)
						n += len(first)
					}
					return n
				})
				var stop atomic.Bool
				results := make(chan error, len(busy))
				for _, m := range busy {
					go func() {
						err := m.exchangeMessage()
						for err == nil && !stop.Load() {
							err = m.exchangeMessage()
						}
						results <- err
					}()
				}
				s.waitProcessEnd(s.upgradeServer())
				stop.Store(true)
				for range busy {
					testkit.ExpectNoError(t, testkit.Receive(t, results, "the end of a busy client"))
				}
				if n := s.getNumber("/open"); n != sockets+streams+1 {
					t.Fatalf("upgrade %d: %d connections are open, want %d", up, n, sockets+streams+1)
				}
				for i, m := range parked {
					m.Send(rests[i])
				}
				for i, m := range parked {
					if err := m.expectAnswer(wants[i]); err != nil {
						t.Fatalf("upgrade %d: %v", up, err)
					}
				}
				s.getBody(fmt.Sprint("/tell?after", up))
				for i, r := range events {
					want := fmt.Sprintf("data: before%d\n\ndata: after%d\n\n", up, up)
					got := make([]byte, len(want))
					if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
						t.Fatalf("upgrade %d, stream %d: %q, %v; want %q", up, i, got, err, want)
					}
				}
			}
			for _, m := range busy {
				testkit.ExpectNoError(t, m.exchangeMessage())
			}
		})
	}
}

// TestMovesOrNot checks WebSockets that move later, not at all, or to a process that does not
// accept them. HTTP/2 connections end with GOAWAY in the old process, which does not wait for them.
func TestMovesOrNot(t *testing.T) {
	s := startUpgradeChain(t, tcp.Epoll, 0)
	open := func(path string) *testkit.Conn {
		c := testkit.Dial(t, s.addr)
		c.HandshakeWebSocket(path, "")
		return c
	}
	unnamed, gone, bad, large := open("/unnamed"), open("/gone"), open("/ws"), open("/large")
	idle := dialHTTP2(t, s.addr)
	http2 := newHTTP2Client(t, nil)
	expectHTTP2From := func(pid int) {
		if got := get(t, http2, "http://"+s.addr+"/pid"); got != strconv.Itoa(pid) {
			t.Errorf("process %s answers; want %d", got, pid)
		}
	}
	expectHTTP2From(s.pid)
	bad.Send(fr(fin|1, "fail"))
	expectFrame(t, bad, fin|1, "1 fail")
	// A partial message larger than the maximum state moves when it is complete.
	message := strings.Repeat("0123456789abcdef", 160<<10)
	s.waitServerRead(func() int {
		frame := fr(1, message[:len(message)/2])
		large.Send(frame)
		return len(frame)
	})
	old := s.upgradeServer()
	large.Send(fr(fin, message[len(message)/2:]))
	expectFrame(t, large, fin|1, message)
	expectClose(t, bad, 4001)
	if rest := gone.ExpectClosed(); rest != "" {
		t.Errorf("a socket that the new process does not know: %q; want the end", rest)
	}
	expectClose(t, unnamed, web.CloseGoingAway)
	expectGoAway(t, idle, 0)
	s.waitProcessEnd(old)
	expectHTTP2From(s.pid)
	http2.CloseIdleConnections()
	testkit.WaitFor(t, "not 2 connections are open", func() bool { return s.getNumber("/open") == 2 })
	large.Send(fr(fin|2, "once more"))
	expectFrame(t, large, fin|2, "once more")
}

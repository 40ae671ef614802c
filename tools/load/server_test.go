package load

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
)

// TestMain runs more parallel tests than there are processors: most of them wait for the network or
// for the end of a window.
func TestMain(m *testing.M) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set("4")
	}
	os.Exit(m.Run())
}

// handler serves the n-th connection of a server, from 0.
type handler func(c net.Conn, n int)

// testServer serves each connection with a handler. It is closed and joined at the end of the test.
type testServer struct {
	ln    net.Listener
	mu    sync.Mutex
	conns []net.Conn
	wait  sync.WaitGroup
}

func startTestServer(t *testing.T, handle handler) *testServer {
	t.Helper()
	return startTestServerAt(t, "tcp", "127.0.0.1:0", handle)
}

func startTestServerAt(t *testing.T, network, addr string, handle handler) *testServer {
	t.Helper()
	ln := testkit.Must(net.Listen(network, addr))(t)
	s := &testServer{ln: ln}
	s.wait.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			n := len(s.conns)
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			s.wait.Go(func() {
				defer c.Close()
				handle(c, n)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		s.mu.Lock()
		for _, c := range s.conns {
			c.Close()
		}
		s.mu.Unlock()
		s.wait.Wait()
	})
	return s
}

func (s *testServer) addr() string { return s.ln.Addr().String() }

func (s *testServer) accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func serverStarter(handle handler) func(*testing.T) string {
	return func(t *testing.T) string { return startTestServer(t, handle).addr() }
}

func unusedAddr(t *testing.T) string { return testserver.FreeAddr(t) }

func echo(c net.Conn, _ int) { _, _ = io.Copy(onlyWriter{c}, onlyReader{c}) }

// onlyWriter and onlyWriter keep io.Copy from moving bytes in the kernel, which would divide answers differently.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

func discardInput(c net.Conn, _ int) { _, _ = io.Copy(io.Discard, onlyReader{c}) }

// echoMessages echoes messages of 64 bytes and reads one more, so that closing sends no reset.
func echoMessages(c net.Conn, times int) {
	message := make([]byte, 64)
	for range times {
		_, _ = io.ReadFull(c, message)
		_, _ = c.Write(message)
	}
	_, _ = io.ReadFull(c, message)
}

// serveLines returns a handler that calls answer for each line, with the numbers n of the connection and k of the line.
func serveLines(answer func(c net.Conn, line string, n, k int) error) handler {
	return func(c net.Conn, n int) {
		lines := bufio.NewReader(c)
		for k := 0; ; k++ {
			line, err := lines.ReadString('\n')
			if err != nil || answer(c, line, n, k) != nil {
				return
			}
		}
	}
}

func writeText(c net.Conn, text string) error {
	_, err := io.WriteString(c, text)
	return err
}

// webSocketServerStarter returns a function that starts a server of another WebSocket library. It serves each
// connection with begin and then echoes messages, each after a ping, and at /chat in fragments.
func webSocketServerStarter(begin func(ctx context.Context, c *websocket.Conn) error) func(*testing.T) string {
	return func(t *testing.T) string {
		ctx, cancel := context.WithCancel(context.Background())
		var wait sync.WaitGroup
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			wait.Add(1)
			defer wait.Done()
			c, err := websocket.Accept(w, r, nil)
			if err != nil {
				return // the client has been told
			}
			defer c.CloseNow()
			c.SetReadLimit(MaxMessage)
			for err = begin(ctx, c); err == nil; {
				var kind websocket.MessageType
				var message []byte
				if kind, message, err = c.Read(ctx); err == nil {
					wait.Go(func() { _ = c.Ping(ctx) }) // answered while the next one is read
					if r.URL.Path == "/chat" {
						err = writeFragments(ctx, c, kind, message)
					} else {
						err = c.Write(ctx, kind, message)
					}
				}
			}
		}))
		t.Cleanup(func() {
			cancel()
			s.Close()
			wait.Wait()
		})
		return s.Listener.Addr().String()
	}
}

// writeFragments writes a message in frames of at most 1,000 bytes, followed by an empty one.
func writeFragments(ctx context.Context, c *websocket.Conn, kind websocket.MessageType, message []byte) error {
	w, err := c.Writer(ctx, kind)
	for piece := range slices.Chunk(message, 1000) {
		if err == nil {
			_, err = w.Write(piece)
		}
	}
	if err == nil {
		err = w.Close()
	}
	return err
}

func doNothing(context.Context, *websocket.Conn) error { return nil }

// testEachModel runs a test on every available model, concurrently, and with -short only on the last one.
func testEachModel(t *testing.T, test func(t *testing.T, model string)) {
	var names []string
	for _, m := range models.All() {
		if m.Available() == nil {
			names = append(names, m.Name)
		}
	}
	if testing.Short() {
		names = names[len(names)-1:]
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, name)
		})
	}
}

func parseAddrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, s := range texts {
		list = append(list, netip.MustParseAddr(s))
	}
	return list
}

type eventLog struct {
	events    []Event
	intervals Interval // added up
}

func (s *eventLog) phasesWithoutProgress() (list []Phase) {
	for _, e := range s.events {
		if e.Phase != Progress {
			list = append(list, e.Phase)
		}
	}
	return list
}

func (s *eventLog) eventsOf(p Phase) (list []Event) {
	for _, e := range s.events {
		if e.Phase == p {
			list = append(list, e)
		}
	}
	return list
}

var errEnough = errors.New("enough")

// runUntil runs a load until it ends, or until enough returns true after an event. It fails the test if Run returns an
// error, or if result and intervals are inconsistent. Its default timeouts are long, for busy machines.
func runUntil(t *testing.T, cfg Config, enough func(s *eventLog, e Event) bool) (*Result, *eventLog) {
	t.Helper()
	setIfZero(&cfg.ConnectTimeout, time.Minute)
	setIfZero(&cfg.Drain, time.Minute)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var want error
	if enough != nil {
		want = errEnough
		setIfZero(&cfg.ProgressEvery, 10*time.Millisecond)
		if cfg.Messages == 0 {
			setIfZero(&cfg.Duration, time.Hour)
		}
	}
	told, observe := &eventLog{}, cfg.Observe
	cfg.Observe = func(e Event) {
		told.events = append(told.events, e)
		if i := e.Interval; i != nil {
			if i.From != told.intervals.To || i.To < i.From || i.Stage == "" {
				t.Errorf("an interval from %v to %v, %q, after one to %v", i.From, i.To, i.Stage, told.intervals.To)
			}
			mergeFieldsByTag(&told.intervals, i, true)
		}
		if observe != nil {
			observe(e)
		}
		if enough != nil && enough(told, e) {
			cancel(errEnough)
		}
	}
	r, err := Run(ctx, cfg)
	if !errors.Is(err, want) || r == nil || r.Interrupted != (want != nil) {
		t.Fatalf("Run: %v, want %v; %+v", err, want, r)
	}
	if last := told.events[len(told.events)-1]; last.Phase != Done || last.Result != r || told.events[0].Phase != Began {
		t.Errorf("the first event is %s, the last %+v", told.events[0].Phase, last)
	}
	checkTotals(t, &cfg, r, &told.intervals)
	return r, told
}

func runToEnd(t *testing.T, cfg Config) *Result {
	t.Helper()
	r, _ := runUntil(t, cfg, nil)
	return r
}

// checkTotals checks that bytes and messages add up, and that the intervals add up to the result.
func checkTotals(t *testing.T, cfg *Config, r *Result, sum *Interval) {
	t.Helper()
	b, checked := r.Bytes, r.PubSub == nil && !r.NoReply
	if b.Sent != b.Answered+b.InFlight+b.CutOff && !r.NoReply || min(b.Answered, b.InFlight, b.CutOff) < 0 {
		t.Errorf("bytes %+v: not a sum", b)
	}
	if b.InFlight > 0 && r.Unanswered == 0 && checked && !cfg.Unprompted {
		t.Errorf("bytes %+v: in flight, and every message answered", b)
	}
	if r.Corrected && checked && r.Intended != r.Latency.Count+r.Unsent+r.Unanswered+r.CutOff {
		t.Errorf("%d planned; %d measured, %d not sent, %d not answered, %d cut off", r.Intended, r.Latency.Count, r.Unsent, r.Unanswered, r.CutOff)
	}
	if want := int64(r.Connected) * r.Messages; r.Messages > 0 && r.Err() == nil && (r.Answered != want || r.Latency.Count != want) {
		t.Errorf("%d answered, %d measured, want %d", r.Answered, r.Latency.Count, want)
	}
	verified, _ := r.sumVerificationsAndSlowestRate()
	wrong := sumCountsByCause(r.ConnectErrors) + sumCountsByCause(r.Lost) + sumCountsByCause(r.BadStatus) + r.Mismatched + r.Unexpected + verified.Unanswered
	if r.Broadcast != nil {
		wrong += r.Broadcast.Again
	}
	got := [...]int64{sum.BytesSent, sum.BytesReceived, sum.Opened, sum.Closed, sum.Reconnected, sum.Heartbeats, sum.CutOff, sum.Connect.Count, sum.countErrors()}
	want := [...]int64{b.Sent, b.Received, int64(r.Connected), r.Closed, r.Reconnected, r.Heartbeats, r.CutOff, r.Connect.Count, wrong}
	if got != want {
		t.Errorf("the intervals have %d, the result %d", got, want)
	}
}

// growingFactors yields factors for the times of a run: 1, then twice the last one each time that the test continues
// because the times were too short for a busy machine. The test fails if it never breaks off.
func growingFactors(t *testing.T) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		t.Helper()
		for times := time.Duration(1); times <= 128; times *= 2 {
			if !yield(times) {
				return
			}
		}
		t.Error("128 times the time was not enough")
	}
}

func unmetExpectations(t *testing.T, r *Result, expectations string) (list []string) {
	t.Helper()
	for _, text := range strings.Fields(expectations) {
		e := testkit.Must(ParseExpectation(text))(t)
		if got, ok := e.Check(r); !ok {
			list = append(list, text+": got "+got)
		}
	}
	return list
}

// loadCase is a load on a server, and its expected result.
type loadCase struct {
	server    func(t *testing.T) (target string)
	cfg       Config // of 20 connections, unless it says otherwise
	enough    string // expectations; if one is not met the run is made again, with twice the times
	want      string // expectations
	wantError string // a part of what is wrong with the result, "" if nothing is
	check     func(t *testing.T, r *Result, told *eventLog)
}

type loadCases map[string]loadCase

func (cases loadCases) run(t *testing.T) {
	t.Parallel()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testEachModel(t, c.run)
		})
	}
}

func (c *loadCase) run(t *testing.T, model string) {
	cfg := c.cfg
	cfg.Model = model
	setIfZero(&cfg.Connections, 20)
	if cfg.PubSub != nil {
		testkit.AcquireDescriptorsOrSkip(t, 2*(cfg.Connections+cfg.PubSub.Publishers)+100)
	} else {
		testkit.AcquireDescriptorsOrSkip(t, 2*cfg.Connections+100)
	}
	for times := range growingFactors(t) {
		cfg.Target, cfg.Duration, cfg.Drain = c.server(t), times*c.cfg.Duration, times*c.cfg.Drain
		r, told := runUntil(t, cfg, nil)
		if list := unmetExpectations(t, r, c.enough); len(list) > 0 {
			t.Logf("%q, with %v and %v", list, cfg.Duration, cfg.Drain)
			continue
		}
		if list := unmetExpectations(t, r, c.want); len(list) > 0 {
			t.Errorf("%q", list)
		}
		wrong := fmt.Sprint(r.Err(), r.ConnectErrors, r.Lost, r.BadStatus)
		if c.wantError == "" && r.Err() != nil || !strings.Contains(wrong, c.wantError) {
			t.Errorf("what is wrong: %s; want %q", wrong, c.wantError)
		}
		if c.check != nil {
			c.check(t, r, told)
		}
		return
	}
}

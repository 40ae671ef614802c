package web

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// transitions checks every state transition of all tests in this package: the tables are emptied
// before the first test, so that each transition calls onForbidden, which checks it against these
// copies.
var transitions = struct {
	exchange [len(exchangeTransitions)]uint16
	response [len(responseTransitions)]uint16

	mu         sync.Mutex
	walk       *randomWalk            // the one under way
	dispatched int                    // exchanges of it
	exchanges  map[*exchange]struct{} // those of them that were locked since
	seen       map[string]int         // transitions
}{exchange: exchangeTransitions, response: responseTransitions}

func init() {
	clear(exchangeTransitions[:])
	clear(responseTransitions[:])
	onForbidden = func(x *exchange, from, to fmt.Stringer) {
		var allowed uint16
		switch from := from.(type) {
		case exchangeState:
			allowed = transitions.exchange[from] >> to.(exchangeState)
		case responseState:
			allowed = transitions.response[from] >> to.(responseState)
		}
		transitions.mu.Lock()
		defer transitions.mu.Unlock()
		if allowed&1 == 0 {
			fmt.Fprintf(os.Stderr, "%v: forbidden transition of a %T from %v to %v\n%s", transitions.walk, from, from, to, debug.Stack())
			os.Exit(1)
		}
		if transitions.walk == nil || transitions.walk.h != x.h {
			return
		}
		transitions.seen[fmt.Sprintf("%T %v to %v", from, from, to)]++
		if from == stateReading {
			transitions.dispatched++
		} else if from == stateDone { // it is reused
			delete(transitions.exchanges, x)
			transitions.dispatched--
		} else if _, ok := from.(exchangeState); ok {
			transitions.exchanges[x] = struct{}{}
		}
	}
}

type randomWalk struct {
	*testing.T
	seed    uint64
	dice    *rand.Rand
	h       *HTTP
	server  *tcptest.Server
	file    string
	permits chan struct{} // lets a handler go on
	running atomic.Int32  // handlers
}

func (w *randomWalk) String() string {
	if w == nil {
		return "outside of TestExchangeWalk"
	}
	return fmt.Sprintf("%s, seed %d", w.Name(), w.seed)
}

// TestExchangeWalk drives exchanges with random events: requests arrive in parts, handlers write,
// flush, read, panic, hijack and switch protocols, clients stop reading, end and reset, time
// passes, the server drains. Only allowed transitions may occur, and in the end each exchange
// must be done and have released its resources. The seed is the subtest's name.
func TestExchangeWalk(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	testkit.RequireNoError(t, os.WriteFile(file, make([]byte, 50<<10), 0o600))
	transitions.seen = make(map[string]int)
	all, ran := countTransitions(), uint64(0)
	for seed := uint64(0); seed < 200 || len(transitions.seen) < all && ran >= seed && seed < 2000; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			ran++
			startRandomWalk(t, seed, file).runRandomEvents()
		})
	}
	if n := len(transitions.seen); n < all && ran >= 200 && !t.Failed() {
		t.Errorf("%d of %d allowed transitions have occurred; expected all: %v", n, all, transitions.seen)
	}
}

func countTransitions() (n int) {
	for _, table := range [][]uint16{transitions.exchange[:], transitions.response[:]} {
		for _, next := range table {
			for ; next != 0; next &= next - 1 {
				n++
			}
		}
	}
	return n
}

func startRandomWalk(t *testing.T, seed uint64, file string) *randomWalk {
	w := &randomWalk{T: t, seed: seed, dice: rand.New(rand.NewPCG(seed, 0)), file: file, permits: make(chan struct{}, 1000)}
	p, err := pool.New(pool.Config{Max: 3, Queue: 1 + w.dice.IntN(3), MemoryLimit: -1, FixedLimit: true, KeepQueued: true, FIFO: true})
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { _, _ = p.Close(context.Background()) })
	mux := http.NewServeMux()
	mux.HandleFunc("/pool/{script}", w.runScript)
	mux.Handle("/quick", Quick(http.HandlerFunc(w.runScript)))
	w.h = &HTTP{Handler: mux, Pool: p, ErrorLog: log.New(io.Discard, "", 0), IdleTimeout: time.Minute}
	if w.dice.IntN(2) == 0 {
		w.h.WriteTimeout, w.h.ReadTimeout = time.Minute, 5*time.Millisecond
	}
	srv := &tcp.Server{Handler: w.h, Log: slog.New(slog.DiscardHandler), Limits: tcp.Limits{MaxUnsent: 64 << 10, ShutdownTimeout: time.Second}}
	if w.dice.IntN(2) == 0 {
		w.h.sendsFiles.Store(&srv.Limits) // as after the first file
	}
	w.server = tcptest.NewServer(t, srv)
	transitions.mu.Lock()
	defer transitions.mu.Unlock()
	transitions.walk, transitions.dispatched, transitions.exchanges = w, 0, make(map[*exchange]struct{})
	return w
}

type walkClient struct {
	*tcptest.Peer
	unsent string
}

func (w *randomWalk) runRandomEvents() {
	clients := make([]walkClient, 4)
	for i := range clients {
		clients[i].Peer = w.server.Dial()
	}
	draining := false
	for range 80 {
		c := &clients[w.dice.IntN(len(clients))]
		switch w.dice.IntN(24) {
		case 0:
			c.CloseWrite()
		case 1:
			c.Reset()
		case 2:
			c.StopReading()
		case 3:
			c.StartReading()
		case 4:
			w.server.Advance(time.Duration(w.dice.IntN(int(time.Minute))))
		case 5:
			if !draining {
				*c = walkClient{Peer: w.server.Dial()}
			}
		case 6:
			if draining = draining || w.dice.IntN(8) == 0; draining {
				w.server.StartDrain()
			}
		case 7, 8, 9, 10:
			for range 1 + w.dice.IntN(5) {
				c.unsent += w.randomRequest()
			}
		case 11, 12:
			w.permits <- struct{}{}
		case 13, 14:
			w.server.Advance(0)
		default:
			n := len(c.unsent)
			if w.dice.IntN(3) == 0 {
				n = w.dice.IntN(n + 1)
			}
			_, _ = io.WriteString(c, c.unsent[:n])
			c.unsent = c.unsent[n:]
		}
	}
	close(w.permits)
	patient := w.dice.IntN(2) == 0
	for _, c := range clients {
		if c.StartReading(); patient {
			_, _ = io.WriteString(c, c.unsent)
			c.CloseWrite()
			w.server.Advance(time.Hour)
		} else {
			c.Reset()
		}
	}
	w.server.StartDrain()
	testkit.WaitForFunc(w, w.allReleased, func() string { return fmt.Sprintf("%v: not all is released: %s", w, w.unreleased()) })
}

func (w *randomWalk) allReleased() bool {
	w.server.Advance(time.Second)
	return w.running.Load() == 0 && w.unreleased() == ""
}

func (w *randomWalk) unreleased() string {
	transitions.mu.Lock()
	exchanges := slices.Collect(maps.Keys(transitions.exchanges))
	dispatched := transitions.dispatched
	transitions.mu.Unlock() // which setState takes inside of an exchange's lock
	if dispatched != len(exchanges) {
		return fmt.Sprintf("%d of %d exchanges have got no further than dispatch", dispatched-len(exchanges), dispatched)
	}
	for _, x := range exchanges {
		if kept := x.unreleased(); kept != "" {
			return kept
		}
	}
	return ""
}

func (x *exchange) unreleased() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.state != stateDone:
		return "an exchange is " + x.state.String()
	case x.res.state != responsePending && x.res.state < responseComplete:
		return "a response is " + x.res.state.String()
	case x.res.trailing.f != nil:
		return "a file"
	case !x.ctx.ended:
		return "the context of a request"
	case x.body.buf != nil || !x.body.closed:
		return "the body of a request"
	case x.body.readDeadline.timer != nil && x.body.readDeadline.timer.Stop(), x.res.writeDeadline.timer != nil && x.res.writeDeadline.timer.Stop():
		return "a deadline's timer"
	case x.job != nil && x.job.x.Load() != nil:
		return "a job"
	}
	return ""
}

// randomRequest returns a random request. Its X field is the script for the handler; see
// runScript.
func (w *randomWalk) randomRequest() string {
	pick := func(of ...string) string { return of[w.dice.IntN(len(of))] }
	if w.dice.IntN(40) == 0 {
		return "NONSENSE\r\n\r\n"
	}
	quick := w.dice.IntN(5) == 0
	letters, path := "wwwWWffiiskrRbdDFFF........cpPgHhue", "/pool/x"
	if quick {
		letters, path = "wwwwwffiskkFpuue", "/quick"
	}
	var script strings.Builder
	for range w.dice.IntN(6) {
		script.WriteByte(letters[w.dice.IntN(len(letters))])
	}
	fields := " HTTP/1.1\r\nHost: x\r\nX: " + script.String() + "\r\n"
	if strings.Contains(script.String(), "u") {
		fields += "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	} else if w.dice.IntN(10) == 0 {
		fields += pick("Connection: close\r\n", "Expect: 100-continue\r\n", "Expect: x\r\n")
	}
	body := strings.Repeat("body", w.dice.IntN(1<<w.dice.IntN(16)))
	switch w.dice.IntN(8) {
	case 0:
		return "POST " + path + fields + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
	case 1:
		end := pick("\r\n0\r\n\r\n", "\r\n0\r\n\r\n", "\r\n0\r\nA: b\r\n\r\n", "malformed")
		return "POST " + path + fields + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s%s", len(body), body, end)
	}
	return pick("GET ", "GET ", "HEAD ") + path + fields + "\r\n"
}

func (w *randomWalk) runScript(res http.ResponseWriter, r *http.Request) {
	w.running.Add(1)
	defer w.running.Add(-1)
	control := http.NewResponseController(res)
	for _, step := range r.Header.Get("X") {
		switch step {
		case '.':
			<-w.permits
		case 'w':
			_, _ = io.WriteString(res, "some text")
		case 'W':
			_, _ = res.Write(make([]byte, 40<<10))
		case 'f':
			_ = control.Flush()
		case 'i':
			res.WriteHeader(http.StatusEarlyHints)
		case 's':
			res.WriteHeader(http.StatusAccepted)
		case 'k':
			res.Header().Set("Connection", "close")
		case 'r':
			_, _ = r.Body.Read(make([]byte, 1000))
		case 'R':
			_, _ = io.Copy(io.Discard, r.Body)
		case 'b':
			_ = r.Body.Close()
		case 'd':
			_ = control.SetReadDeadline(time.Now().Add(time.Millisecond))
		case 'D':
			_ = control.SetWriteDeadline(time.Now().Add(time.Millisecond))
		case 'F':
			http.ServeFile(res, r, w.file)
		case 'c':
			ref, _ := Ref(r)
			_ = ref.Do(func(c *tcp.Conn) {
				time.Sleep(time.Millisecond)
				_ = c.Close()
			})
		case 'p':
			panic(http.ErrAbortHandler)
		case 'P':
			panic("on purpose")
		case 'g':
			runtime.Goexit()
		case 'h', 'H':
			nc, _, err := control.Hijack()
			if err == nil {
				nc.Close()
			}
			if step == 'H' {
				panic("on purpose")
			}
		case 'u':
			_ = walkSocket.Upgrade(res, r, nil)
		case 'e':
			_ = walkEvents.Subscribe(res, r, nil)
		}
	}
}

var (
	walkSocket = &WebSocket{Handler: OnMessage(func(s Socket, kind Kind, m []byte) { _ = s.Write(kind, m) })}
	walkEvents = &Events{}
)

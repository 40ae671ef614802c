package faults

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
)

// specEnv is the variable that makes a process of these tests the server; it contains a serverSpec as JSON.
const specEnv = "MYRIAD_FAULTS_SERVER"

// plainModel selects the usual server on package net for comparison: a goroutine for each connection, and no
// limits.
const plainModel = "plain"

type serverSpec struct {
	Model              string
	Processes, Loops   int
	Workers            int // for models with loops; Auto has its own
	Backlog            int // of the listener, if above 0
	Limits             tcp.Limits
	Socket             tcp.Socket
	MaxOpenDescriptors uint64        // if above 0: the descriptor limit once it listens
	Drain              time.Duration // time limit of a shutdown, 40 s by default
}

func TestMain(m *testing.M) {
	if settings := os.Getenv(specEnv); settings != "" {
		if err := runServer(settings); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	parallel := "8" // they mostly wait
	if testkit.RaceEnabled {
		parallel = "4"
	}
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	testkit.Main(m)
}

// runServer is main in the server's process and in its workers. It prints its address and then executes
// orders: lines on standard input, each answered with a line of JSON. The end of the input is the order to
// shut down.
func runServer(settings string) error {
	var sp serverSpec
	if err := json.Unmarshal([]byte(settings), &sp); err != nil {
		return err
	}
	if sp.Model == plainModel {
		return runPlainServer()
	}
	a := &echoApp{release: make(chan struct{})}
	listening := make(chan net.Addr, 1)
	srv := &tcp.Server{
		Listeners: []tcp.Listener{{Addr: "127.0.0.1:0", Backlog: sp.Backlog}},
		Model:     sp.Model, Processes: sp.Processes, Loops: sp.Loops, Limits: sp.Limits, Socket: sp.Socket,
		Handler: tcp.Lines(a), Listening: func(addr net.Addr) { listening <- addr },
	}
	if sp.Workers > 0 && sp.Model != tcp.Goroutine && sp.Model != tcp.Auto {
		p, err := pool.New(pool.Config{Max: sp.Workers, Queue: sp.Workers, FixedLimit: true, KeepQueued: true, FIFO: true})
		if err != nil {
			return err
		}
		srv.Workers = p // it ends with the process, however long handlers take
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.ListenAndServe(context.Background()) }()
	if _, worker := tcp.WorkerProcess(); worker {
		return <-ended
	}
	select {
	case err := <-ended:
		return err
	case addr := <-listening:
		if most := sp.MaxOpenDescriptors; most > 0 {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}); err != nil {
				return err
			}
		}
		if err := serveOrders(addr, map[string]func() any{
			"stats":   func() any { return srv.Stats() },
			"memory":  func() any { return collectAndReadHeap() },
			"push":    a.pushToHeldRefs,
			"release": a.releaseHandlers,
			"drain":   func() any { go srv.Drain(); return nil }, // Drain ends before Shutdown
			"close":   func() any { return srv.Close() },
		}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), sp.Drain)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		return err
	}
	return <-ended
}

// serveOrders executes orders by their functions until standard input ends.
func serveOrders(addr net.Addr, orders map[string]func() any) error {
	answer := json.NewEncoder(os.Stdout)
	if err := answer.Encode(addr.String()); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := answer.Encode(orders[lines.Text()]()); err != nil {
			return err
		}
	}
	return lines.Err()
}

// runPlainServer is runServer for plainModel. It ends with its process.
func runPlainServer() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go echoPlain(c)
		}
	}()
	return serveOrders(l.Addr(), map[string]func() any{
		"stats":  func() any { return tcp.Stats{} },
		"memory": func() any { return collectAndReadHeap() },
	})
}

// echoPlain echoes each line, and flushes when no further line is buffered.
func echoPlain(c net.Conn) {
	defer c.Close()
	in, out := bufio.NewReader(c), bufio.NewWriter(c)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		out.Write(line)
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}

// heapUsage is a process's own account of its usage after a garbage collection.
type heapUsage struct {
	Bytes      uint64
	Goroutines int
}

// collectAndReadHeap collects garbage and returns free memory to the system first, so that resident memory
// is in use afterwards.
func collectAndReadHeap() heapUsage {
	for range 2 { // the second cycle frees what finalizers and pools have released
		runtime.GC()
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return heapUsage{Bytes: m.HeapAlloc, Goroutines: runtime.NumGoroutine()}
}

// echoApp echoes lines, except for these commands:
//
//	panic       panics
//	goexit      ends its goroutine
//	sleep 1s    blocks for this time, then echoes
//	block       blocks until the order "release", then echoes
//	flood N     sends N bytes in pieces
//	hold        keeps the connection's Ref until the order "release"
type echoApp struct {
	mu      sync.Mutex
	release chan struct{}
	held    []tcp.Ref
}

func (a *echoApp) Opened(*tcp.Conn) {}

func (a *echoApp) Closed(*tcp.Conn, error) {}

func (a *echoApp) Message(c *tcp.Conn, line []byte) {
	word, rest, _ := strings.Cut(string(line), " ")
	switch word {
	case "panic":
		panic("asked to")
	case "goexit":
		runtime.Goexit()
	case "sleep":
		d, _ := time.ParseDuration(rest)
		time.Sleep(d)
	case "block":
		a.mu.Lock()
		release := a.release
		a.mu.Unlock()
		<-release
	case "flood":
		piece := bytes.Repeat([]byte("f"), 4096)
		for n, _ := strconv.Atoi(rest); n > 0; n -= len(piece) {
			if _, err := c.Write(piece); err != nil {
				return
			}
		}
		return
	case "hold":
		a.mu.Lock()
		a.held = append(a.held, c.Ref())
		a.mu.Unlock()
	}
	c.Write(line)
	c.WriteString("\n")
}

// pushResult counts the messages to all held Refs.
type pushResult struct{ Sent, Closed int }

// pushToHeldRefs sends more than a peer's buffers hold to each held Ref.
func (a *echoApp) pushToHeldRefs() any {
	a.mu.Lock()
	defer a.mu.Unlock()
	var p pushResult
	message := bytes.Repeat([]byte("p"), 512<<10)
	for _, r := range a.held {
		switch err := r.SendWait(context.Background(), message); err { // waits for space in the mailbox
		case nil:
			p.Sent++
		case tcp.ErrClosed:
			p.Closed++
		default:
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return p
}

// releaseHandlers makes blocked handlers return and drops the Refs.
func (a *echoApp) releaseHandlers() any {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.release)
	a.release, a.held = make(chan struct{}), nil
	return nil
}

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

// specVariable tells a process of these tests that it is the server, and which: JSON.
const specVariable = "MYRIAD_FAULTS_SERVER"

// plain, as a model, is no server of this module but what most people write on package net, to
// compare with: a goroutine for each connection, and no limits.
const plain = "plain"

// spec is the server under test.
type spec struct {
	Model              string
	Processes, Loops   int
	Workers            int // of the models with loops; Auto has its own
	Backlog            int // above 0: of the listener
	Limits             tcp.Limits
	Socket             tcp.Socket
	MaxOpenDescriptors uint64        // above 0: the limit of descriptors from the moment when it listens
	Drain              time.Duration // how long a shutdown may take; 40 s by default
}

func TestMain(m *testing.M) {
	if settings := os.Getenv(specVariable); settings != "" {
		if err := serverMain(settings); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	parallel := "8" // they wait more than they compute
	if raced {
		parallel = "4"
	}
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	testkit.Main(m)
}

// serverMain is main in the server's process, and in its workers. It says where it listens and then
// answers orders: a line each on the standard input, answered with a line of JSON. The end of the input is
// the order to shut down.
func serverMain(settings string) error {
	var sp spec
	if err := json.Unmarshal([]byte(settings), &sp); err != nil {
		return err
	}
	if sp.Model == plain {
		return servePlain()
	}
	a := &app{release: make(chan struct{})}
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
		srv.Workers = p // the process ends with it, however long a handler takes
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
		if err := obey(addr, map[string]func() any{
			"stats":   func() any { return srv.Stats() },
			"memory":  func() any { return readHeap() },
			"push":    a.push,
			"release": a.letGo,
			"drain":   func() any { go srv.Drain(); return nil }, // which ends before Shutdown
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

// obey answers orders, each by the function of that name, until the standard input ends.
func obey(addr net.Addr, orders map[string]func() any) error {
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

// servePlain is serverMain of the model plain. It ends with its process.
func servePlain() error {
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
	return obey(l.Addr(), map[string]func() any{
		"stats":  func() any { return tcp.Stats{} },
		"memory": func() any { return readHeap() },
	})
}

// echoPlain answers each line with itself, and writes when no further line is at hand.
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

// account is what a process has in use by its own account, after a collection.
type account struct {
	Bytes      uint64
	Goroutines int
}

// readHeap collects garbage first, and gives free memory back to the system, so that what is
// resident afterwards is in use.
func readHeap() account {
	for range 2 { // the second finds what finalizers and pools have let go
		runtime.GC()
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return account{Bytes: m.HeapAlloc, Goroutines: runtime.NumGoroutine()}
}

// app echoes lines, but for some words:
//
//	panic       panics
//	goexit      ends its goroutine
//	sleep 1s    blocks for so long, then echoes
//	block       blocks until the order "release", then echoes
//	flood N     answers with N bytes, in pieces
//	hold        keeps the connection's Ref until the order "release"
//	pid         answers with the process's number
type app struct {
	mu      sync.Mutex
	release chan struct{}
	held    []tcp.Ref
}

func (a *app) Opened(*tcp.Conn) {}

func (a *app) Closed(*tcp.Conn, error) {}

func (a *app) Message(c *tcp.Conn, line []byte) {
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
	case "pid":
		line = strconv.AppendInt(nil, int64(os.Getpid()), 10)
	}
	c.Write(line)
	c.WriteString("\n")
}

// pushed is what has become of messages to all held Refs.
type pushed struct{ Sent, Closed int }

// push sends each of them what is more than a peer's buffers take.
func (a *app) push() any {
	a.mu.Lock()
	defer a.mu.Unlock()
	var p pushed
	message := bytes.Repeat([]byte("p"), 512<<10)
	for _, r := range a.held {
		switch err := r.SendWait(context.Background(), message); err { // which waits for room in the mailbox
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

// letGo has handlers that block return, and forgets the Refs.
func (a *app) letGo() any {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.release)
	a.release, a.held = make(chan struct{}), nil
	return nil
}

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
)

// specVariable tells a process of these tests that it is the server, and which:
// JSON.
const specVariable = "MYRIAD_FAULTS_SERVER"

// spec is the server under test.
type spec struct {
	Addr                      string
	Model                     string
	Workers, Processes, Loops int
	Backlog                   int // above 0: of the listener
	Limits                    tcp.Limits
	Socket                    tcp.Socket
	// Descriptors, if above 0, is the limit of descriptors from the moment
	// when it listens.
	Descriptors uint64
	// Drain is how long a shutdown may take. The default is 40 s.
	Drain time.Duration
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
	if err := flag.Set("test.parallel", "4"); err != nil { // they wait more than they compute
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// serverMain is main in the server's process, and in its workers.
func serverMain(settings string) error {
	var sp spec
	if err := json.Unmarshal([]byte(settings), &sp); err != nil {
		return err
	}
	if sp.Model == plain {
		return plainMain(sp)
	}
	a := &app{release: make(chan struct{})}
	listening := make(chan net.Addr, 1)
	srv := &tcp.Server{
		Addr: sp.Addr, Model: sp.Model, Processes: sp.Processes, Loops: sp.Loops, Limits: sp.Limits, Socket: sp.Socket,
		Handler: tcp.Lines(a), Listening: func(addr net.Addr) { listening <- addr },
	}
	if sp.Backlog > 0 {
		srv.Addr, srv.Listeners = "", []tcp.Listener{{Addr: sp.Addr, Backlog: sp.Backlog}}
	}
	if sp.Workers > 0 {
		p, err := pool.New(pool.Config{Max: sp.Workers, Queue: sp.Workers, Off: pool.AllRules})
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
		if err := limitDescriptors(sp.Descriptors); err != nil {
			return err
		}
		err := Obey(os.Stdin, os.Stdout, addr.String(), map[string]func() any{
			"stats":   func() any { return srv.Stats() },
			"memory":  func() any { return readHeap() },
			"clock":   clock,
			"push":    a.push,
			"forget":  a.forget,
			"release": func() any { close(a.release); return nil },
			"drain":   func() any { go srv.Drain(); return nil }, // which ends before Shutdown
			"close":   func() any { return srv.Close() },
		})
		if err != nil {
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

func limitDescriptors(most uint64) error {
	if most == 0 {
		return nil
	}
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most})
}

// account is what a process has in use by its own account, after a collection.
type account struct {
	Bytes      uint64
	Goroutines int
}

// readHeap collects garbage first, and gives free memory back to the system, so
// that what is resident afterwards is in use.
func readHeap() account {
	for range 2 { // the second finds what finalizers and pools have let go
		runtime.GC()
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return account{Bytes: m.HeapAlloc, Goroutines: runtime.NumGoroutine()}
}

// clock is what the monotonic clock of this process shows.
func clock() any {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err.Error()
	}
	return now
}

// app echoes lines, but for some words:
//
//	panic       panics
//	goexit      ends its goroutine
//	sleep 1s    blocks for so long, then echoes
//	block       blocks until the order "release", then echoes
//	flood N     answers with N bytes, in pieces
//	hold        keeps the connection's Ref until the order "forget"
//	pid         answers with the process's number
type app struct {
	release chan struct{}
	mu      sync.Mutex
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
		<-a.release
	case "flood":
		flood(c, rest)
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

func flood(c *tcp.Conn, size string) {
	piece := bytes.Repeat([]byte("f"), 4096)
	for n, _ := strconv.Atoi(size); n > 0; n -= len(piece) {
		if _, err := c.Write(piece); err != nil {
			return
		}
	}
}

// pushed is what has become of messages to all held Refs.
type pushed struct{ Sent, Closed, Other int }

// push sends each of them what is more than a peer's buffers take.
func (a *app) push() any {
	a.mu.Lock()
	defer a.mu.Unlock()
	var p pushed
	message := bytes.Repeat([]byte("p"), pushSize)
	for _, r := range a.held {
		switch err := r.SendWait(context.Background(), message); err { // which waits for room in the mailbox
		case nil:
			p.Sent++
		case tcp.ErrClosed:
			p.Closed++
		default:
			p.Other++
			io.WriteString(os.Stderr, err.Error()+"\n")
		}
	}
	return p
}

const pushSize = 512 << 10

func (a *app) forget() any {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = nil
	return nil
}

package lab

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/myriad-go/myriad/load"
)

const (
	// envChild makes the test binary a child: what a command line would
	// call "myriad". Its arguments say which part it plays.
	envChild = "MYRIAD_LAB_TEST_CHILD"
	// envReport is an address to which each child reports its part and its
	// process number; the connection lives as long as the child.
	envReport = "MYRIAD_LAB_TEST_REPORT"
)

func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		if err := child(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// child plays a part: a server or the load generator.
func child(part string, args []string) error {
	if part == "bench-guard" { // it is there as long as the lab is
		return Guard(os.Stdin)
	}
	if addr := os.Getenv(envReport); addr != "" {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		defer conn.Close()
		fmt.Fprintf(conn, "%s %d\n", part, os.Getpid())
	}
	switch part {
	case "plain":
		return childPlain(args[0], args[1], args[2:])
	case "tenth":
		return childTenth(args[0], args[1])
	case "prefork":
		return childPrefork(args[0], args[1])
	case "worker":
		return childWorker(args[0])
	case "load":
		if slices.Contains(args, "--flood") || slices.Contains(args, "--drain") {
			return childFlood(args)
		}
		return childLoad(args)
	case "park":
		return childPark(args[0])
	case "fail":
		return fmt.Errorf("this server fails, with %d CPUs", runtime.NumCPU())
	case "mute":
		return childMute(args[0])
	case "offer":
		return childOffer(args)
	case "hoard", "crash", "relapse", "babble", "hush", "hang":
		return childBad(part)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("stubborn")
		time.Sleep(time.Hour) // until it is killed
	}
	return fmt.Errorf("no part %q", part)
}

// childPark parks goroutines and prints its samples.
func childPark(n string) error {
	count, err := strconv.Atoi(n)
	if err != nil {
		return err
	}
	samples, err := Park(context.Background(), count)
	for _, s := range samples {
		json.NewEncoder(os.Stdout).Encode(s)
	}
	return err
}

// childPlain takes an interval of heartbeats, a certificate and its key, and an
// address for metrics, too.
func childPlain(addr, app string, more []string) error {
	o := PlainOptions{App: app}
	if len(more) > 0 && more[0] != "" {
		var err error
		if o.Heartbeat, err = time.ParseDuration(more[0]); err != nil {
			return err
		}
	}
	if len(more) > 1 && more[1] != "" {
		own, err := tls.LoadX509KeyPair(more[1], more[2])
		if err != nil {
			return err
		}
		o.TLS = &tls.Config{Certificates: []tls.Certificate{own}}
	}
	if len(more) > 3 {
		o.Admin = more[3]
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return Plain(ctx, ln, o)
}

// childTenth holds answers back.
func childTenth(addr, app string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return Plain(ctx, ln, PlainOptions{App: app, Flush: FlushTenth})
}

// childPrefork starts two of childWorker.
func childPrefork(addr, app string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	o := PlainOptions{App: app, Design: Prefork, Prefork: &PreforkOptions{Processes: 2, Command: []string{self, "worker", app}}}
	ln, err := o.Listen(ctx, addr)
	if err != nil {
		return err
	}
	return Plain(ctx, ln, o)
}

// childWorker is a process of the design Prefork.
func childWorker(app string) error {
	ln, err := PreforkListener()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return Plain(ctx, ln, PlainOptions{App: app, Design: OneEpoll})
}

// childMute accepts one connection and ends without a word.
func childMute(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	conn, err := ln.Accept()
	if err != nil {
		return err
	}
	return conn.Close()
}

// childLoad is a load generator that does the least there is to do: a message
// on each connection, one after the other, and the events around it.
func childLoad(args []string) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	flags.Bool("json", false, "")
	connections := flags.Int("connections", 1, "")
	size := flags.Int("size", 0, "")
	web := flags.Bool("http", false, "")
	secured := flags.Bool("tls", false, "")
	trusted := flags.String("tls-ca", "", "")
	unprompted := flags.Bool("unprompted", false, "")
	flags.String("message", "", "")
	flags.String("answer", "", "")
	pipeline := flags.Int("pipeline", 1, "")
	flags.Int("loops", 1, "")
	messages := flags.Int("messages", 0, "")
	window := flags.Duration("duration", 0, "")
	for _, ignored := range []string{"warmup", "hold-before", "hold-after"} {
		flags.Duration(ignored, 0, "")
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	var conns []net.Conn
	for range *connections {
		conn, err := net.Dial("tcp", flags.Arg(0))
		if err != nil {
			return err
		}
		defer conn.Close()
		if *secured {
			trust, err := (&certificate{cert: *trusted}).trust()
			if err != nil {
				return err
			}
			conn = tls.Client(conn, trust)
		}
		conns = append(conns, conn)
	}
	tell(load.Connected, nil)
	if !*unprompted {
		if err := exchange(conns, *size, *web); err != nil {
			return err
		}
	}
	if *messages > 0 {
		tell(load.Exchanged, nil)
	} else {
		tell(load.Measuring, nil)
		if *window > time.Hour {
			time.Sleep(*window) // until it is ended
		}
		tell(load.Measured, nil)
	}
	tell(load.Done, childResult(*connections, *size, *pipeline))
	return nil
}

// childFlood is the real load generator, for a flood and the check after it.
func childFlood(args []string) error {
	cfg := load.Config{Observe: func(e load.Event) { json.NewEncoder(os.Stdout).Encode(e) }}
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	flags.Bool("json", true, "")
	flags.IntVar(&cfg.Connections, "connections", 0, "")
	flags.IntVar(&cfg.Socket.SendBuffer, "sndbuf", 0, "")
	flags.IntVar(&cfg.ConnectRate, "connect-rate", 0, "")
	flags.BoolVar(&cfg.Flood, "flood", false, "")
	flags.IntVar(&cfg.Loops, "loops", 1, "")
	flags.IntVar(&cfg.Pipeline, "pipeline", 0, "")
	flags.Int64Var(&cfg.Messages, "messages", 0, "")
	flags.DurationVar(&cfg.Duration, "duration", 0, "")
	flags.DurationVar(&cfg.Warmup, "warmup", 0, "")
	flags.DurationVar(&cfg.HoldAfter, "hold-after", 0, "")
	flags.DurationVar(&cfg.Drain, "drain", 0, "")
	flags.Func("message", "", func(text string) error { cfg.Message = []byte(text); return nil })
	flags.Func("answer", "", func(text string) error { cfg.Answer = []byte(text); return nil })
	if err := flags.Parse(args); err != nil {
		return err
	}
	cfg.Target = flags.Arg(0)
	result, err := load.Run(context.Background(), cfg)
	return errors.Join(err, result.Err())
}

// tell tells an event, and then of so much progress that the lab has handled
// the event when tell returns: the pipe between them holds less.
func tell(p load.Phase, r *load.Result) {
	json.NewEncoder(os.Stdout).Encode(load.Event{Phase: p, Result: r})
	if r != nil {
		return
	}
	for range 64 {
		fmt.Printf("%4095s\n", `{"phase":"progress"}`)
	}
}

// exchange sends a message on each connection and awaits its answer.
func exchange(conns []net.Conn, size int, web bool) error {
	if web == (size > 0) {
		return fmt.Errorf("messages of %d bytes, HTTP is %v", size, web)
	}
	message := slices.Repeat([]byte("x"), max(size, 1))
	message[len(message)-1] = '\n'
	answer := make([]byte, size)
	for _, conn := range conns {
		if web {
			if err := askSlow(conn, HTTP); err != nil {
				return err
			}
			continue
		}
		if _, err := conn.Write(message); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, answer); err != nil {
			return err
		}
	}
	return nil
}

// childResult is a result that breaks no rule.
func childResult(connections, size, pipeline int) *load.Result {
	return &load.Result{
		Connections: connections, Connected: connections, ConnectTime: 10 * time.Millisecond,
		Pipeline: pipeline, MessageSize: size, Window: time.Second,
		Sent: 1000, Answered: 1000,
		Latency: load.Latency{
			Count: 1000, P50: time.Millisecond, P99: 2 * time.Millisecond,
			Mean: time.Duration(connections*pipeline) * time.Millisecond,
		},
		CPUs: 1, UserCPU: 300 * time.Millisecond, SystemCPU: 300 * time.Millisecond,
	}
}

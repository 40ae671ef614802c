package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
)

// patience bounds each test's calls.
const patience = time.Minute

// clientsOf is the variable that makes a process of these tests the clients of an address.
const clientsOf = "MYRIAD_GRPC_CLIENTS_OF"

func TestMain(m *testing.M) {
	if addr := os.Getenv(clientsOf); addr != "" {
		if err := beClients(addr); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// echo answers with what it was sent.
type echo struct {
	grpc_testing.UnimplementedBenchmarkServiceServer
}

func (echo) UnaryCall(_ context.Context, r *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	return &grpc_testing.SimpleResponse{Payload: r.Payload}, nil
}

func (echo) StreamingCall(s grpc_testing.BenchmarkService_StreamingCallServer) error {
	for {
		r, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = s.Send(&grpc_testing.SimpleResponse{Payload: r.Payload})
		}
		if err != nil {
			return err
		}
	}
}

func newEcho() *grpc.Server {
	g := grpc.NewServer()
	grpc_testing.RegisterBenchmarkServiceServer(g, echo{})
	return g
}

// start serves on a free port and ends with the test, in order.
func start(t *testing.T, model string) (addr string) {
	t.Helper()
	up, ended := make(chan string, 1), make(chan error, 1)
	srv := &tcp.Server{Addr: "127.0.0.1:0", Model: model, Log: slog.New(slog.DiscardHandler),
		Listening: func(a net.Addr) { up <- a.String() }}
	srv.Limits.Linger = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- serve(ctx, srv, newEcho()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: the server ends with %v", model, err)
		}
	})
	select {
	case addr = <-up:
	case err := <-ended:
		t.Fatalf("%s: %v", model, err)
	}
	return addr
}

func dial(addr string) (*grpc.ClientConn, grpc_testing.BenchmarkServiceClient, error) {
	cc, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	return cc, grpc_testing.NewBenchmarkServiceClient(cc), nil
}

// message is text of a size that differs with n.
func message(n, size int) *grpc_testing.SimpleRequest {
	text := fmt.Appendf(nil, "message %d ", n)
	return &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: bytes.Repeat(text, size/len(text)+1)[:size]}}
}

// TestCalls has clients make unary calls and exchange streams of messages, small and large.
func TestCalls(t *testing.T) {
	for _, model := range append(tcp.Models(), tcp.Auto) {
		t.Run(model, func(t *testing.T) {
			addr := start(t, model)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var clients sync.WaitGroup
			for n := range 10 {
				clients.Go(func() {
					cc, c, err := dial(addr)
					if err != nil {
						t.Error(err)
						return
					}
					defer cc.Close()
					for _, size := range []int{1, 1000, 40_000, 3 << 20} {
						want := message(n, size)
						got, err := c.UnaryCall(ctx, want)
						if err != nil || !bytes.Equal(got.GetPayload().GetBody(), want.Payload.Body) {
							t.Errorf("a call with %d bytes: %d bytes, %v; want them back", size, len(got.GetPayload().GetBody()), err)
						}
					}
					if err := exchange(ctx, c, n); err != nil {
						t.Error(err)
					}
				})
			}
			clients.Wait()
		})
	}
}

// exchange sends messages in a stream, ends it, and reads the answers, each in its turn.
func exchange(ctx context.Context, c grpc_testing.BenchmarkServiceClient, n int) error {
	s, err := c.StreamingCall(ctx)
	if err != nil {
		return err
	}
	const messages = 100
	for i := range messages {
		want := message(n*messages+i, 1+i*100)
		if err := s.Send(want); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		got, err := s.Recv()
		if err != nil || !bytes.Equal(got.GetPayload().GetBody(), want.Payload.Body) {
			return fmt.Errorf("message %d of a stream: %v; want it back", i, err)
		}
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	if _, err := s.Recv(); err != io.EOF {
		return fmt.Errorf("the end of a stream: %v; want io.EOF", err)
	}
	return nil
}

// idle is how many connections TestIdleMemory has.
const idle = 300

// beClients makes idle connections with one call each, and keeps them until standard input ends.
func beClients(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for n := range idle {
		cc, c, err := dial(addr)
		if err != nil {
			return err
		}
		defer cc.Close()
		if _, err := c.UnaryCall(ctx, message(n, 100)); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// idleMemory is the heap, and the stacks, that each idle client of a server takes in this process.
func idleMemory(t *testing.T, addr string) (heap, stacks int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	clients := exec.CommandContext(ctx, os.Args[0])
	clients.Env = append(os.Environ(), clientsOf+"="+addr)
	in, err := clients.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := clients.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	heap, stacks = memory()
	if err := clients.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != "ready" {
		t.Fatalf("the clients say %q, %v", line, err)
	}
	h, s := memory()
	in.Close()
	if err := clients.Wait(); err != nil {
		t.Error(err)
	}
	return (h - heap) / idle, (s - stacks) / idle
}

func memory() (heap, stacks int64) {
	for range 3 { // what sync.Pools keep goes in the second
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.StackInuse)
}

// TestIdleMemory compares idle connections with those of package net: none keeps a read buffer.
func TestIdleMemory(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := newEcho()
	go g.Serve(l)
	onNet, stacks := idleMemory(t, l.Addr().String())
	g.Stop()
	t.Logf("package net: %d bytes of heap a connection, and %d of stacks", onNet, stacks)
	for _, model := range append(tcp.Models(), tcp.Auto) {
		t.Run(model, func(t *testing.T) {
			heap, stacks := idleMemory(t, start(t, model))
			t.Logf("%d bytes of heap a connection, and %d of stacks", heap, stacks)
			if most := onNet + 4<<10; heap > most {
				t.Errorf("%d bytes of heap a connection; want at most %d, 4 KiB more than package net", heap, most)
			}
		})
	}
}

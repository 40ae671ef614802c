package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
)

// testTimeout limits the calls of a test.
const testTimeout = time.Minute

type echoService struct {
	grpc_testing.UnimplementedBenchmarkServiceServer
}

func (echoService) UnaryCall(_ context.Context, r *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	return &grpc_testing.SimpleResponse{Payload: r.Payload}, nil
}

func (echoService) StreamingCall(s grpc_testing.BenchmarkService_StreamingCallServer) error {
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

func newEchoServer() *grpc.Server {
	g := grpc.NewServer()
	grpc_testing.RegisterBenchmarkServiceServer(g, echoService{})
	return g
}

// startServer serves on a free port until the test ends, and checks that it stops without an error.
func startServer(t *testing.T, model string) (addr string) {
	t.Helper()
	up, ended := make(chan string, 1), make(chan error, 1)
	srv := &tcp.Server{Addr: "127.0.0.1:0", Model: model, Log: slog.New(slog.DiscardHandler),
		Limits: tcp.Limits{Linger: 50 * time.Millisecond}, Listening: func(a net.Addr) { up <- a.String() }}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- serveUntilDone(ctx, srv, newEchoServer()) }()
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

// newRequest returns a request with size bytes of text that depends on n.
func newRequest(n, size int) *grpc_testing.SimpleRequest {
	text := fmt.Appendf(nil, "message %d ", n)
	return &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: bytes.Repeat(text, size/len(text)+1)[:size]}}
}

// TestCalls makes unary calls and exchanges streams of messages, small and large.
func TestCalls(t *testing.T) {
	for _, model := range append(tcp.Models(), tcp.Auto) {
		t.Run(model, func(t *testing.T) {
			addr := startServer(t, model)
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			var clients sync.WaitGroup
			for n := range 10 {
				clients.Go(func() {
					checkCalls(t, ctx, addr, insecure.NewCredentials(), n)
				})
			}
			clients.Wait()
		})
	}
}

// checkCalls makes unary calls of several sizes and exchanges a stream.
func checkCalls(t *testing.T, ctx context.Context, addr string, creds credentials.TransportCredentials, n int) {
	cc, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Error(err)
		return
	}
	defer cc.Close()
	c := grpc_testing.NewBenchmarkServiceClient(cc)
	check := func(what string, want *grpc_testing.SimpleRequest, got *grpc_testing.SimpleResponse, err error) {
		if err != nil || !bytes.Equal(got.GetPayload().GetBody(), want.Payload.Body) {
			t.Errorf("%s with %d bytes: %d bytes, %v; want them back", what, len(want.Payload.Body), len(got.GetPayload().GetBody()), err)
		}
	}
	for _, size := range []int{1, 1000, 40_000, 3 << 20} {
		want := newRequest(n, size)
		got, err := c.UnaryCall(ctx, want)
		check("a call", want, got, err)
	}
	s, err := c.StreamingCall(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	for i := range 100 {
		want := newRequest(n*100+i, 1+i*100)
		if err := s.Send(want); err != nil {
			t.Errorf("message %d: %v", i, err)
			return
		}
		got, err := s.Recv()
		check("a message of a stream", want, got, err)
	}
	_ = s.CloseSend()
	if _, err := s.Recv(); err != io.EOF {
		t.Errorf("the end of a stream: %v; want io.EOF", err)
	}
}

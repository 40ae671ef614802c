package lab

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"
)

const (
	// readyBound is how long a server may take to answer its first
	// connection. One that followed a run of a million connections, on
	// a busy machine, took more than 10 s.
	readyBound = 30 * time.Second
	// probeBound is how long one attempt to reach it may take.
	probeBound = time.Second
	// poll is the time between two looks at something that is awaited.
	poll = 20 * time.Millisecond
)

// server is a subject that runs.
type server struct {
	process *process
	addr    string
	bound   time.Duration // readyBound, unless it is set
}

// startServer starts a subject's command on the given CPUs. The caller ends its
// process.
func (r *runner) startServer(ctx context.Context, command []string, addr string, cpus []int) (*server, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	p, err := r.launcher.start(command, cpus, nil)
	if err != nil {
		return nil, err
	}
	return &server{process: p, addr: addr}, nil
}

// watch returns a context that ends, with the reason as its cause, when the
// server ends by itself. The returned function releases it and waits.
func (s *server) watch(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wait sync.WaitGroup
	wait.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.process.done:
			cancel(s.process.failure("the server"))
		}
	})
	return ctx, func() {
		cancel(nil)
		wait.Wait()
	}
}

// awaitReady waits until the server answers, and returns the connection over
// which it did.
func (s *server) awaitReady(ctx context.Context, app string, trust *tls.Config) (net.Conn, error) {
	within := cmp.Or(s.bound, readyBound)
	bound, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var last error
	for {
		conn, err := probe(bound, s.addr, app, trust)
		if err == nil {
			return conn, nil
		}
		if bound.Err() == nil || last == nil {
			last = err // and not that there was no more time
		}
		if pause(bound, poll) != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, fmt.Errorf("the server was not ready within %v: %w%s", within, last, s.process.said())
		}
	}
}

// probe connects to addr and has the app answer once. So the connection has been
// accepted, not only queued. With trust it speaks TLS.
func probe(ctx context.Context, addr, app string, trust *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	plain := conn
	if trust != nil {
		conn = tls.Client(conn, trust)
	}
	if err := ask(conn, app); err != nil {
		plain.Close()
		return nil, err
	}
	return conn, nil
}

// freeAddr returns a loopback address that nobody listens on. It looks below
// the range that systems take client ports from, so that none of the many
// connections of a load takes the port first.
func freeAddr() (string, error) {
	const from, to, tries = 20000, 30000, 100
	var last error
	for range tries {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(from+rand.IntN(to-from)))
		ln, err := net.Listen("tcp", addr)
		if err == nil {
			return addr, ln.Close()
		}
		last = err
	}
	return "", fmt.Errorf("no free port found in %d tries: %w", tries, last)
}

// pause waits for d or until ctx ends, whose cause it returns.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

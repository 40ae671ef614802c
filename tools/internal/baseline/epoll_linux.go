package baseline

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// The designs in this file were published and compared by others (github.com/smallnest/1m-go-tcp-server, see
// docs/results.md). The properties that make them slow are kept. Connections are those of package net. Each of them is
// registered twice: in the epoll instance of Go's runtime, and level-triggered in an epoll instance of the server. A
// goroutine waits for events of the second one. It finds each ready connection in a map, under a lock, and calls Read
// and Write, which block. A client that does not read therefore delays all other connections of its loop.
//
// Three errors of the originals would have made the figures meaningless and are repaired. First, a connection that has
// ended is removed. The originals kept it and counted its failing reads as messages. Second, a connection is handed to
// a pool once, and again when a worker has finished with it. The originals queued it for each event, so two workers
// could have it at the same time. Third, an incomplete message does not block the loop: its bytes are read and kept.
//
// Ownership: the accepting goroutine adds connections to a loop, whose map has a lock. One goroutine waits for a loop's
// events. Only this goroutine, or the worker to which it has handed a connection, reads from the connection and removes
// it. When the server ends, it closes all connections, which wakes both.

const hasEpoll = true

const (
	// pollBatch is the maximum number of events per wait. pollWait is the timeout of a wait in milliseconds.
	pollBatch, pollWait = 100, 100
	// reactorWorkers is the number of goroutines of a reactor, and reactorQueue is the capacity of their queue.
	reactorWorkers, reactorQueue = 10, 1000
)

// startEpollLoops starts the event loops of the design. The loops end when ctx ends. startEpollLoops returns one
// function per loop. The function adds a connection to the loop. If that fails, the function closes the connection.
func (s *plainServer) startEpollLoops(ctx context.Context, o Options) (addConnFuncs []func(net.Conn), err error) {
	var loops []*epollLoop
	n := 1
	if o.Design == Epolls {
		n = o.Loops
	}
	for range n {
		l, err := newEpollLoop(s, o)
		if err != nil {
			for _, l := range loops {
				unix.Close(l.fd)
			}
			return nil, err
		}
		loops = append(loops, l)
	}
	for _, l := range loops {
		s.wait.Go(func() { l.serveEventsUntilDone(ctx, o) })
		addConnFuncs = append(addConnFuncs, l.registerConnOrClose)
	}
	return addConnFuncs, nil
}

type epollLoop struct {
	server  *plainServer
	fd      int
	events  uint32
	answer  func(line []byte) []byte // nil: echo all input
	maxLine int                      // maximum length of a line

	mu    sync.RWMutex
	conns map[int32]*epollConn
}

type epollConn struct {
	net.Conn
	raw         syscall.RawConn
	fd          int32
	partialLine []byte
	// served orders the accesses of successive workers for Go's memory model.
	served atomic.Uint64
}

func newEpollLoop(s *plainServer, o Options) (*epollLoop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	l := &epollLoop{server: s, fd: fd, events: unix.EPOLLIN | unix.EPOLLHUP,
		answer: lineHandlers[o.App], maxLine: o.Buffer, conns: make(map[int32]*epollConn)}
	if o.Design == Reactor {
		l.events |= unix.EPOLLONESHOT
	}
	return l, nil
}

func (l *epollLoop) registerConnOrClose(conn net.Conn) {
	c := &epollConn{Conn: conn}
	var err error
	if c.raw, err = conn.(syscall.Conn).SyscallConn(); err == nil {
		err = c.raw.Control(func(fd uintptr) { c.fd = int32(fd) })
	}
	l.mu.Lock()
	l.conns[c.fd] = c
	l.mu.Unlock()
	if err != nil || l.epollCtl(unix.EPOLL_CTL_ADD, c) != nil {
		l.unregisterAndCloseConn(c)
	}
}

func (l *epollLoop) unregisterAndCloseConn(c *epollConn) {
	_ = l.epollCtl(unix.EPOLL_CTL_DEL, c) // closing also removes the registration
	l.mu.Lock()
	if l.conns[c.fd] == c {
		delete(l.conns, c.fd)
	}
	l.mu.Unlock()
	l.server.closeAndUntrackConn(c.Conn)
}

func (l *epollLoop) epollCtl(op int, c *epollConn) error {
	var errno error
	err := c.raw.Control(func(fd uintptr) {
		errno = unix.EpollCtl(l.fd, op, int(fd), &unix.EpollEvent{Events: l.events, Fd: c.fd})
	})
	return errors.Join(err, errno)
}

func (l *epollLoop) serveEventsUntilDone(ctx context.Context, o Options) {
	defer unix.Close(l.fd)
	ready := l.newReadAndAnswerFunc(o)
	if o.Design == Reactor {
		var end func()
		ready, end = l.startReactorWorkers(ctx, o)
		defer end()
	}
	for ctx.Err() == nil {
		conns, err := l.pollReadyConns()
		if err != nil {
			return // impossible for an open instance
		}
		for _, c := range conns {
			ready(c)
		}
	}
}

func (l *epollLoop) pollReadyConns() ([]*epollConn, error) {
	events := make([]unix.EpollEvent, pollBatch)
	n, err := unix.EpollWait(l.fd, events, pollWait)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return nil, err
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	var conns []*epollConn
	for _, e := range events[:max(n, 0)] {
		if c := l.conns[e.Fd]; c != nil {
			conns = append(conns, c)
		}
	}
	return conns, nil
}

// newReadAndAnswerFunc returns a function that reads from a connection once and answers the input. On an error, the
// returned function closes the connection. The returned function must not be called concurrently, because all calls use
// the same buffer.
func (l *epollLoop) newReadAndAnswerFunc(o Options) func(*epollConn) {
	buf := make([]byte, o.Buffer)
	return func(c *epollConn) {
		if l.readOnceAndAnswer(c, buf) != nil {
			l.unregisterAndCloseConn(c)
		}
	}
}

// startReactorWorkers starts goroutines that serve the connections in a queue. The returned function enqueue adds a
// connection to the queue. If the queue is full, enqueue waits for space or for the end of ctx. The returned function
// stop waits until the goroutines have ended. enqueue must not be called after stop.
func (l *epollLoop) startReactorWorkers(ctx context.Context, o Options) (enqueue func(*epollConn), stop func()) {
	queue := make(chan *epollConn, reactorQueue)
	var workers sync.WaitGroup
	for range reactorWorkers {
		workers.Go(func() {
			buf := make([]byte, o.Buffer)
			for c := range queue {
				c.served.Load()
				err := l.readOnceAndAnswer(c, buf)
				c.served.Add(1)
				if err != nil || l.epollCtl(unix.EPOLL_CTL_MOD, c) != nil {
					l.unregisterAndCloseConn(c)
				}
			}
		})
	}
	enqueue = func(c *epollConn) {
		select {
		case queue <- c:
		case <-ctx.Done():
		}
	}
	return enqueue, func() {
		close(queue)
		workers.Wait()
	}
}

func (l *epollLoop) readOnceAndAnswer(c *epollConn, buf []byte) error {
	n, err := c.Read(buf)
	if err != nil {
		return err
	}
	if l.answer == nil {
		_, err = c.Write(buf[:n])
		return err
	}
	in := buf[:n]
	if len(c.partialLine) > 0 {
		in = append(c.partialLine, in...)
	}
	for {
		end := bytes.IndexByte(in, '\n') + 1
		if end == 0 {
			break
		}
		if _, err := c.Write(l.answer(in[:end])); err != nil {
			return err
		}
		in = in[end:]
	}
	if len(in) >= l.maxLine {
		return errors.New("line longer than its buffer")
	}
	c.partialLine = append(c.partialLine[:0:0], in...) // no memory if there are no bytes to keep
	return nil
}

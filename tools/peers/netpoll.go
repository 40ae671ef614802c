package main

import (
	"bytes"
	"context"
	"errors"
	"net"

	"github.com/cloudwego/netpoll"
)

// maxPending limits the length of a line or a request's head, in bytes.
const maxPending = 64 << 10

var errMessageTooLong = errors.New("message is longer than 64 KiB")

// serveNetpoll serves with netpoll: its pollers read, and goroutines of its pool handle the input of
// connections.
func serveNetpoll(handle func(in netpoll.Reader, out netpoll.Writer) error) serveFunc {
	return func(ctx context.Context, ln net.Listener, ready func()) error {
		loop, err := netpoll.NewEventLoop(func(_ context.Context, conn netpoll.Connection) error {
			err := handle(conn.Reader(), conn.Writer())
			if err != nil {
				conn.Close()
			}
			return err
		})
		if err == nil && loop == nil { // on Windows
			err = errors.New("netpoll is not available on Windows; use another --server")
		}
		if err != nil {
			ln.Close()
			return err
		}
		ready()
		return serveUntilDone(ctx, func() error { return loop.Serve(ln) }, func() error {
			bound, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
			defer cancel()
			return loop.Shutdown(bound)
		})
	}
}

func echoNetpoll(in netpoll.Reader, out netpoll.Writer) error {
	return echoBytes(in, out, in.Len())
}

func echoNetpollLines(in netpoll.Reader, out netpoll.Writer) error {
	have, err := in.Peek(in.Len())
	if err != nil {
		return err
	}
	whole := bytes.LastIndexByte(have, '\n') + 1
	if len(have)-whole > maxPending {
		return errMessageTooLong
	}
	if whole == 0 {
		return nil
	}
	return echoBytes(in, out, whole)
}

// echoBytes writes the next n bytes. It releases them only when they are written, because the writer does not
// copy large buffers.
func echoBytes(in netpoll.Reader, out netpoll.Writer, n int) error {
	p, err := in.Next(n)
	if err != nil {
		return err
	}
	if _, err := out.WriteBinary(p); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return in.Release()
}

// replyNetpollHTTP replies to all complete requests in one write.
func replyNetpollHTTP(in netpoll.Reader, out netpoll.Writer) error {
	have, err := in.Peek(in.Len())
	if err != nil {
		return err
	}
	requests, used := countRequests(have)
	if len(have)-used > maxPending {
		return errMessageTooLong
	}
	if requests == 0 {
		return nil
	}
	if err := in.Skip(used); err != nil {
		return err
	}
	text := responseNow()
	room, err := out.Malloc(requests * len(text))
	if err != nil {
		return err
	}
	for range requests {
		room = room[copy(room, text):]
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return in.Release()
}

//go:build !linux || !cgo

package main

import (
	"context"
	"errors"
	"net"
)

func serveHeartbeatsInC(settings) serveFunc {
	return func(_ context.Context, ln net.Listener, _ func()) error {
		ln.Close()
		return errors.New("the server for heartbeats was built without C; expected a build on Linux with a C compiler")
	}
}

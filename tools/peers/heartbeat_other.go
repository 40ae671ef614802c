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
		return errors.New("built without C; expected Linux and a C compiler")
	}
}

//go:build !linux

package baseline

import (
	"context"
	"errors"
	"net"
)

const hasEpoll = false

func (*plainServer) startEpollLoops(context.Context, Options) ([]func(net.Conn), error) {
	return nil, errors.ErrUnsupported
}

func listenReusePort(context.Context, string) (net.Listener, error) {
	return nil, errors.ErrUnsupported
}

func servePrefork(context.Context, net.Listener, PreforkOptions) error {
	return errors.ErrUnsupported
}

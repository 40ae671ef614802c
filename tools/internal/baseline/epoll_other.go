//go:build !linux

package baseline

import (
	"context"
	"errors"
	"net"
)

// canEpoll says that there is epoll.
const canEpoll = false

func (*server) polled(context.Context, Options) ([]func(net.Conn), error) {
	return nil, errors.ErrUnsupported
}

func listenShared(context.Context, string) (net.Listener, error) {
	return nil, errors.ErrUnsupported
}

func servePrefork(context.Context, net.Listener, PreforkOptions) error {
	return errors.ErrUnsupported
}

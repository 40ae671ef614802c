//go:build !linux

package lab

import (
	"context"
	"errors"
	"net"
)

// canEpoll says that there is epoll.
const canEpoll = false

func (*plain) polled(context.Context, PlainOptions) (func(net.Conn), error) {
	return nil, errors.ErrUnsupported
}

func listenShared(context.Context, string) (net.Listener, error) {
	return nil, errors.ErrUnsupported
}

func plainPrefork(context.Context, net.Listener, PreforkOptions) error {
	return errors.ErrUnsupported
}

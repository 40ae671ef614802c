//go:build !linux

// Package epoll is the model of event loops on Linux's epoll.
package epoll

import (
	"errors"
	"runtime"

	"github.com/myriad-go/myriad/internal/engine"
)

var errUnsupported = errors.New("I/O model epoll needs Linux; this is " + runtime.GOOS)

// Model is a placeholder for systems without epoll. Its functions Available and Start return an error.
var Model = engine.Model{
	Name:      "epoll",
	HasLoops:  true,
	Available: func() error { return errUnsupported },
	Start:     func(engine.Config) (engine.Engine, error) { return nil, errUnsupported },
}

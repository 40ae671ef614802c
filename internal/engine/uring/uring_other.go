//go:build !linux

// Package uring is the model of event loops on Linux's io_uring.
package uring

import (
	"errors"
	"runtime"

	"github.com/myriad-go/myriad/internal/engine"
)

var errUnsupported = errors.New("I/O model uring needs Linux; this is " + runtime.GOOS)

// Model is a placeholder for systems without io_uring. Its functions Available and Start return an error.
var Model = engine.Model{
	Name:      "uring",
	HasLoops:  true,
	Available: func() error { return errUnsupported },
	Start:     func(engine.Config) (engine.Engine, error) { return nil, errUnsupported },
}

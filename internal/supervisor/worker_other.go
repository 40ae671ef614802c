//go:build !linux

package supervisor

import (
	"context"
	"errors"

	"github.com/myriad-go/myriad/internal/engine"
)

var errLinux = errors.New("worker processes need Linux")

// Start fails, because supervisors need Linux.
func Start(Config) (*Supervisor, error) { return nil, errLinux }

func (w *Worker) validateAndInheritDescriptors() error { return errLinux }

func (w *Worker) startHandoffOrderHandler(engine.Engine, func(context.Context)) (stop func()) {
	return func() {}
}

func raiseSIGTERM() {}

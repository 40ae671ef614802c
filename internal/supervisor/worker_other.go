//go:build !linux

package supervisor

import (
	"context"
	"errors"

	"github.com/myriad-go/myriad/internal/engine"
)

var errLinux = errors.New("worker processes need Linux")

// Start fails: supervisors are a matter of Linux.
func Start(Config) (*Supervisor, error) { return nil, errLinux }

func (w *Worker) inherit() error { return errLinux }

func (w *Worker) attend(engine.Engine, func(context.Context)) (done func()) { return func() {} }

func raise() {}

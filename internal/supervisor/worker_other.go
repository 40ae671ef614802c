//go:build !linux

package supervisor

import "errors"

var errLinux = errors.New("worker processes need Linux")

// Start fails: supervisors are a matter of Linux.
func Start(Config) (*Supervisor, error) { return nil, errLinux }

func (w *Worker) inherit() error { return errLinux }

func raise() {}

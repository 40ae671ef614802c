//go:build !linux

package faults

import "errors"

var errNoNamespaces = errors.New("faults: network namespaces need Linux")

// NewNamespace makes one.
func NewNamespace() (*Namespace, error) { return nil, errNoNamespaces }

// Do calls f on a thread that is in the network. What f opens, and the processes
// that it starts, are in it too; not what other goroutines do for f.
func (n *Namespace) Do(f func() error) error { return errNoNamespaces }

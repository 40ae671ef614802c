//go:build !linux

package faults

import "errors"

var errNoNamespaces = errors.New("faults: network namespaces need Linux")

// NewNamespace fails, because it needs Linux.
func NewNamespace() (*Namespace, error) { return nil, errNoNamespaces }

// RunInside fails, because it needs Linux.
func (n *Namespace) RunInside(f func() error) error { return errNoNamespaces }

//go:build !linux

package faults

import "errors"

var errNoNamespaces = errors.New("faults: network namespaces need Linux")

// NewNamespace fails: it needs Linux.
func NewNamespace() (*Namespace, error) { return nil, errNoNamespaces }

// RunInside fails: it needs Linux.
func (n *Namespace) RunInside(f func() error) error { return errNoNamespaces }

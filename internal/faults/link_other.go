//go:build !linux

package faults

type linkEnds struct{}

// NewLink makes a link.
func NewLink(w Weather) (*Link, error) { return nil, errNoNamespaces }

// Close takes the link down and waits for that.
func (l *Link) Close() {}

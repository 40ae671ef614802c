//go:build !linux

package faults

import "errors"

func (s *Swarm) start() error { return errors.New("faults: a Swarm needs Linux") }

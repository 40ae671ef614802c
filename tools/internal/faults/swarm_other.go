//go:build !linux

package faults

import "errors"

func (s *Swarm) startLoop() error { return errors.New("faults: a Swarm needs Linux") }

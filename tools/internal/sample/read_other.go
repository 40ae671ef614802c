//go:build !linux

package sample

import "github.com/myriad-go/myriad/tools/internal/procfs"

func (s *Sample) read(*Sampler, []int) error { return procfs.ErrNotAvailable }

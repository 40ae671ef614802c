//go:build !linux

package doctor

import "github.com/myriad-go/myriad/tools/internal/procfs"

func read(int) (*Facts, error) { return nil, procfs.ErrNotAvailable }

func readElsewhere(string) (string, error) { return "", procfs.ErrNotAvailable }

//go:build !linux

package doctor

import "github.com/myriad-go/myriad/internal/procfs"

func limitPlace(Change) (place, error) { return nil, procfs.ErrNotAvailable }

func addressPlace(Change) (place, error) { return nil, procfs.ErrNotAvailable }

// link is an interface.
type link string

func (link) read() (string, error) { return "", procfs.ErrNotAvailable }
func (link) write(string) error    { return procfs.ErrNotAvailable }

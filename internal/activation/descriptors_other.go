//go:build !linux

package activation

import (
	"errors"
	"os"
)

// adoptDescriptors fails: it needs Linux.
func adoptDescriptors([]string) ([]*os.File, error) {
	return nil, errors.New("LISTEN_PID and LISTEN_FDS are set, but socket activation needs Linux; unset them")
}

func formatMonotonicTime() string { return "" }

//go:build !linux

package activation

import (
	"errors"
	"os"
)

// adoptDescriptors fails: service managers that pass listeners so are a matter of Linux.
func adoptDescriptors([]string) ([]*os.File, error) {
	return nil, errors.New("LISTEN_PID and LISTEN_FDS are set, and taking listeners over needs Linux; unset them")
}

func formatMonotonicTime() string { return "" }

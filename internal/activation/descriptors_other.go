//go:build !linux

package activation

import (
	"errors"
	"os"
)

// adoptOneDescriptorPerName fails, because socket activation needs Linux.
func adoptOneDescriptorPerName([]string) ([]*os.File, error) {
	return nil, errors.New("LISTEN_PID and LISTEN_FDS are set, but socket activation needs Linux; unset them")
}

func formatMonotonicUsecField() string { return "" }

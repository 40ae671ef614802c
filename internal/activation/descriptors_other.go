//go:build !linux

package activation

import (
	"errors"
	"os"
)

// adoptListeningSocketsInOrder fails, because socket activation needs Linux.
func adoptListeningSocketsInOrder([]string) ([]*os.File, error) {
	return nil, errors.New("LISTEN_PID and LISTEN_FDS are set, but socket activation needs Linux; unset them")
}

func formatMonotonicUsecField() string { return "" }

//go:build !linux

package run

import (
	"errors"
	"os/exec"
	"runtime"
)

// startOn starts a process; there is no pinning on this system.
func startOn(cmd *exec.Cmd, _ []int) error { return cmd.Start() }

func killGroup(int) {}

func groupLives(int) bool { return false }

func allowedCPUs() ([]int, error) {
	return nil, errors.New("not available on " + runtime.GOOS)
}

func raiseFileLimit() error { return nil }

//go:build !linux

package run

import (
	"errors"
	"os/exec"
	"runtime"
)

func startOnCPUsAndPinThread(cmd *exec.Cmd, _ []int) error { return cmd.Start() }

func killGroup(int) {}

func isGroupAlive(int) bool { return false }

func readAllowedCPUs() ([]int, error) {
	return nil, errors.New("CPU affinity is not available on " + runtime.GOOS)
}

func raiseDescriptorLimit() error { return nil }

package run

import (
	"os/exec"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/tools/internal/procfs"
)

// startOnCPUsAndPinThread pins the current thread to the given CPUs and starts a process, which inherits these CPUs.
// The calling goroutine must be locked to its thread. The thread remains pinned.
func startOnCPUsAndPinThread(cmd *exec.Cmd, cpus []int) error {
	if len(cpus) > 0 {
		var set unix.CPUSet
		for _, cpu := range cpus {
			set.Set(cpu)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
	}
	// In its own group, the child does not receive the terminal's Ctrl-C. The lab ends the child itself. A signal to
	// the group also reaches the child's children.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd.Start()
}

func killGroup(pid int) { _ = unix.Kill(-pid, unix.SIGKILL) }

func isGroupAlive(group int) bool {
	if unix.Kill(-group, 0) != nil {
		return false
	}
	all, err := procfs.ReadAllStats()
	return err == nil && slices.ContainsFunc(all, func(s procfs.Stat) bool { return s.Group == group && !s.Ended })
}

func readAllowedCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	var cpus []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

func raiseDescriptorLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}

package run

import (
	"os/exec"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/tools/internal/procfs"
)

// startOnCPUs starts a process on the given CPUs, or on those of this thread when
// there are none. The caller's thread is locked, and keeps the CPUs.
func startOnCPUs(cmd *exec.Cmd, cpus []int) error {
	if len(cpus) > 0 {
		var set unix.CPUSet
		for _, cpu := range cpus {
			set.Set(cpu)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
	}
	// A group of its own keeps the terminal's Ctrl-C from the child, whose
	// end is ours to order, and makes its own children reachable.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd.Start()
}

// killGroup kills what is left of the process group of a child. The number
// cannot belong to anyone else while a member lives; without members the call
// finds nothing.
func killGroup(pid int) { _ = unix.Kill(-pid, unix.SIGKILL) }

// isGroupAlive reports whether a process of a group has not ended yet. Without any, the
// signal of number 0 fails, which costs one call.
func isGroupAlive(group int) bool {
	if unix.Kill(-group, 0) != nil {
		return false
	}
	all, err := procfs.Processes()
	return err == nil && slices.ContainsFunc(all, func(s procfs.Stat) bool { return s.Group == group && !s.Ended })
}

// readAllowedCPUs lists the CPUs that this process may run on.
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

// raiseDescriptorLimit raises the soft limit of open descriptors to the hard one,
// for this process and for the children that it starts from now on.
func raiseDescriptorLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}
